package read

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// runKillCursors ends cursors.
func runKillCursors(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	var ids, killed, gone []int64
	named := false
	read := dispatch.ArgReader("killCursors")
	err := dispatch.EachArg(r.Cmd, func(e *rawbson.Elem) error {
		if !e.Is("cursors") {
			return nil
		}
		array, ok := e.Array()
		if !ok {
			return read.Wrong(e, "array")
		}
		named = true
		it := rawbson.NewIter(array)
		for it.Next() {
			if it.Type != bson.TypeInt64 {
				return servererr.New(servererr.TypeMismatch,
					"BSON field 'killCursors.cursors.%s' is the wrong type '%s', expected type 'long'", it.Name(), bsontext.TypeName(it.Type))
			}
			id, _ := it.Int64()
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !named {
		return dispatch.MissingField("killCursors", "cursors")
	}
	for _, id := range ids {
		if err := mayKill(r, id); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if r.Server.Cursors.KillOne(id) {
			killed = append(killed, id)
		} else {
			gone = append(gone, id)
		}
	}
	for _, list := range []struct {
		name string
		ids  []int64
	}{{"cursorsKilled", killed}, {"cursorsNotFound", gone}, {"cursorsAlive", nil}, {"cursorsUnknown", nil}} {
		i, buf := bsoncore.AppendArrayElementStart(out.Buf, list.name)
		for n, id := range list.ids {
			buf = bsoncore.AppendInt64Element(buf, dispatch.ArrayKey(n), id)
		}
		out.Buf, _ = bsoncore.AppendArrayEnd(buf, i)
	}
	return nil
}

// mayKill asks whether the request may end a cursor: its own, or any.
func mayKill(r *dispatch.Request, id int64) error {
	owner, ns, ok := r.Server.Cursors.Owner(id)
	if !ok || owner == r.UserID() {
		return nil
	}
	return r.Allowed("killAnyCursor", ns.DB(), ns.Collection())
}
