package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Hello returns a server's reply to hello. Releases before 4.4.2 only know the command by its old name, isMaster. Each
// name in with is a further field of the command, with the value 1.
func Hello(ctx context.Context, c Caller, with ...string) (bson.Raw, error) {
	reply, err := c.Call(ctx, hello("hello", with))
	if servererr.IsNoCommand(err) {
		reply, err = c.Call(ctx, hello("isMaster", with))
	}
	return reply, err
}

func hello(name string, with []string) Command {
	body := bsoncore.NewDocumentBuilder().AppendInt32(name, 1)
	for _, field := range with {
		body = body.AppendInt32(field, 1)
	}
	return Command{DB: "admin", Body: bson.Raw(body.Build())}
}

// IsPrimary reports whether a reply to Hello is of a primary that accepts writes.
func IsPrimary(reply bson.Raw) bool {
	for _, name := range []string{"isWritablePrimary", "ismaster"} {
		e, _ := rawbson.Lookup(reply, name)
		if is, ok := e.Bool(); ok {
			return is
		}
	}
	return false
}

// uuidsWire is the wire version of 7.0: servers look up names in the catalog of the time as of which they read.
const uuidsWire = 21

// ExpectsUUIDs reports whether a reply to Hello is of a server whose finds take collectionUUID at any feature compatibility
// version. It refuses them, see servererr.IsOtherCollection, if the name is that of another collection, or of none, as of the time
// of the read: otherwise they would find no document of a collection that had another name then.
func ExpectsUUIDs(reply bson.Raw) bool {
	e, _ := rawbson.Lookup(reply, "maxWireVersion")
	version, _ := e.Int64()
	return version >= uuidsWire
}
