package guard_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/oplog"
)

// TestDeletesOfReplaced: what the server has deleted from a capped collection is its own also where there is another collection of that name
// by the time it is examined, which is not capped, and where the capped one has another name by then. A client's delete from a collection that is not capped
// is foreign also where a capped one has taken its place.
func TestDeletesOfReplaced(t *testing.T) {
	t.Parallel()
	ring := bson.D{{Key: "create", Value: "ring"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}, {Key: "max", Value: 1}}
	plain := bson.D{{Key: "create", Value: "ring"}}
	insert := bson.D{{Key: "insert", Value: "ring"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}}}
	drop := bson.D{{Key: "drop", Value: "ring"}}
	away := bson.D{{Key: "renameCollection", Value: "shop.ring"}, {Key: "to", Value: "shop.was"}}
	remove := bson.D{{Key: "delete", Value: "ring"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}}
	for name, c := range map[string]struct {
		cmds    []bson.D
		foreign int
	}{
		"kept":         {[]bson.D{ring, insert}, 0},
		"replaced":     {[]bson.D{ring, insert, drop, plain}, 0},
		"renamed":      {[]bson.D{ring, insert, away, plain}, 0},
		"plain":        {[]bson.D{plain, insert, remove}, 1},
		"capped since": {[]bson.D{plain, insert, remove, away, ring}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := target(t)
			from := must.Get(replset.NewestEntry(t.Context(), set, replset.Local))(t)
			for _, cmd := range c.cmds {
				db := "shop"
				if cmd[0].Key == "renameCollection" {
					db = "admin"
				}
				must.Get(set.Call(t.Context(), cmdOf(t, db, cmd)))(t)
			}
			upTo := must.Get(replset.NewestEntry(t.Context(), set, replset.Local))(t)
			found, _, err := guard.Examine(t.Context(), set, guard.WatchConfig{
				Link: "dr", Instance: "I", MetaDB: "replicator", Scope: all{}, Sessions: sessions,
				Deletes: func(ctx context.Context, ns oplog.Namespace, id oplog.UUID) (bool, error) {
					return guard.Deletes(ctx, set, ns, id)
				},
			}, guard.State{At: from.OpTime}, upTo.OpTime, nil, func([]guard.Write) bool { return false })
			must.Succeed(t, err)
			n := 0
			for i := range found {
				if found[i].Kind == "delete" {
					n++
				}
			}
			if n != c.foreign {
				t.Errorf("%d foreign deletes, want %d: %+v", n, c.foreign, found)
			}
		})
	}
}

// lists are the filters of the lists of collections that a target was asked for.
type lists struct {
	mongo.Caller
	filters []string
}

func (l *lists) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if simcaller.Name(cmd) == "listCollections" {
		l.filters = append(l.filters, cmd.Body.Lookup("filter").Document().Index(0).Key())
	}
	return l.Caller.Call(ctx, cmd)
}

// TestDeletesOfPresent: a collection that still has its name is found by it. By its id a server would go through all collections of the
// database, for each reply of the oplog.
func TestDeletesOfPresent(t *testing.T) {
	t.Parallel()
	set := target(t)
	must.Get(set.Call(t.Context(), cmdOf(t, "shop", bson.D{{Key: "create", Value: "ring"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})))(t)
	reply := must.Get(set.Call(t.Context(), cmdOf(t, "shop", bson.D{{Key: "listCollections", Value: 1}})))(t)
	_, data := reply.Lookup("cursor", "firstBatch", "0", "info", "uuid").Binary()
	for name, want := range map[string]string{"shop.ring": "name", "shop.was": "name info.uuid"} {
		l := &lists{Caller: set}
		if !must.Get(guard.Deletes(t.Context(), l, oplog.Namespace(name), oplog.UUID(data)))(t) {
			t.Errorf("%s: it is capped", name)
		}
		if got := strings.Join(l.filters, " "); got != want {
			t.Errorf("%s: asked by %s, want %s", name, got, want)
		}
	}
}
