package replset

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Hello runs hello on a member, with $replData and $oplogQueryData.
func Hello(ctx context.Context, member mongo.Caller) (bson.Raw, error) {
	return mongo.Hello(ctx, member, "$replData", "$oplogQueryData")
}

// RollbackID returns the rollback id in the $oplogQueryData of a reply. Unlike the
// command for it, this needs no privilege.
func RollbackID(reply bson.Raw) (int64, bool) {
	e, _ := rawbson.Lookup(reply, "$oplogQueryData")
	data, _ := e.Document()
	e, _ = rawbson.Lookup(data, "rbid")
	return e.Int64()
}

// ErrNoConfig reports a member that has no configuration of its set: it has just been started, or the set has
// removed it.
var ErrNoConfig = errors.New("it has no configuration of its replica set at present: it is starting, or was removed from the set")

// Identity says which replica set a member belongs to.
type Identity struct {
	// ReplicaSetID is settings.replicaSetId of its configuration, zero if not reported.
	ReplicaSetID bson.RawValue
	SetName      string
	// RBID is the rollback id of Host, the member that was asked, -1 if not reported.
	RBID int64
	Host string
}

// Identify asks a member which set it belongs to.
func Identify(ctx context.Context, member mongo.Caller) (Identity, error) {
	id := Identity{RBID: -1}
	reply, err := Hello(ctx, member)
	if err != nil {
		return id, err
	}
	name, ok := reply.Lookup("setName").StringValueOK()
	if unconfigured, _ := reply.Lookup("isreplicaset").BooleanOK(); !ok && unconfigured {
		return id, ErrNoConfig
	}
	if !ok {
		return id, errors.New("it is not a member of a replica set, so it has no oplog: start it as a set of one")
	}
	id.SetName = name
	id.Host, _ = reply.Lookup("me").StringValueOK()
	if set, err := reply.LookupErr("$replData", "replicaSetId"); err == nil {
		id.ReplicaSetID = set
	}
	if rbid, ok := RollbackID(reply); ok {
		id.RBID = rbid
	}
	return id, nil
}
