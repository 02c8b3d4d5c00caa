package replset

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Hello runs hello on a member, with $replData and $oplogQueryData. Releases before
// 4.4.2 only know the command by its old name.
func Hello(ctx context.Context, member mongo.Caller) (bson.Raw, error) {
	reply, err := member.Call(ctx, mongo.Command{DB: "admin", Body: hello("hello")})
	if servererr.IsNoCommand(err) {
		reply, err = member.Call(ctx, mongo.Command{DB: "admin", Body: hello("isMaster")})
	}
	return reply, err
}

func hello(name string) bson.Raw {
	return bson.Raw(document().AppendInt32(name, 1).AppendInt32("$replData", 1).AppendInt32("$oplogQueryData", 1).Build())
}

// RollbackID returns the rollback id in the $oplogQueryData of a reply. Unlike the
// command for it, this needs no privilege.
func RollbackID(reply bson.Raw) (int64, bool) {
	e, _ := rawbson.Lookup(reply, "$oplogQueryData")
	data, _ := e.Document()
	e, _ = rawbson.Lookup(data, "rbid")
	return e.Int64()
}
