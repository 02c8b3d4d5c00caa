package promote

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// empty is a target that has nothing.
type empty struct{}

func (empty) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "m.deferred"}, {Key: "firstBatch", Value: bson.A{}}}}, {Key: "ok", Value: 1}})
}

// TestCheck: a dry run finds the entries after the checkpoint that a promotion could not apply, also those within a transaction.
func TestCheck(t *testing.T) {
	t.Parallel()
	entry := func(op, ns string, o bson.D, more ...bson.E) bson.D {
		return append(bson.D{
			{Key: "op", Value: op},
			{Key: "ns", Value: ns},
			{Key: "ui", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
			{Key: "o", Value: o},
			{Key: "ts", Value: bson.Timestamp{T: 100, I: 5}},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "wall", Value: bson.DateTime(0)},
		}, more...)
	}
	change := func(ns string, o bson.D) bson.D {
		return entry("u", ns, o, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	later := bson.D{{Key: "$v", Value: 3}, {Key: "diff", Value: bson.D{}}}
	unread := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{}}, {Key: "x", Value: 1}}
	txn := entry("c", "admin.$cmd", bson.D{{Key: "applyOps", Value: bson.A{bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: "shop.a"},
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "o", Value: later},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: 1}}},
	}}}}, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}})
	view := func(on string) bson.D {
		return entry("i", "shop.system.views", bson.D{{Key: "_id", Value: "shop.v"}, {Key: "viewOn", Value: on}, {Key: "pipeline", Value: bson.A{}}})
	}
	rename := entry("c", "shop.$cmd", bson.D{{Key: "renameCollection", Value: "shop.not"}, {Key: "to", Value: "shop.x"}})
	for name, c := range map[string]struct {
		entry     bson.D
		after     uint32 // the increment of the checkpoint
		barrier   checkpoint.Position
		unread    bool
		mustBe    bool // copied again
		unchecked bool
	}{
		"an insert":                             {entry: entry("i", "shop.a", bson.D{{Key: "_id", Value: 1}})},
		"a change of a later format":            {entry: change("shop.a", later), unread: true},
		"a change with an unknown field":        {entry: change("shop.a", unread), unread: true},
		"such a change that is not mirrored":    {entry: change("other.a", later)},
		"such a change up to the checkpoint":    {entry: change("shop.a", later), after: 5, unchecked: true},
		"such a change in a transaction":        {entry: txn, unread: true},
		"a view":                                {entry: view("b")},
		"a view of one in another database":     {entry: view("a"), unread: true},
		"a rename of one that is not mirrored":  {entry: rename, mustBe: true},
		"a transaction up to the checkpoint":    {entry: txn, after: 5, unchecked: true},
		"such a view up to the barrier":         {entry: view("a"), barrier: checkpoint.Position{OpTime: oplog.NewOpTime(100, 5, 1), Op: checkpoint.AllOps}, unchecked: true},
		"such a view after the barrier":         {entry: view("a"), barrier: checkpoint.Position{OpTime: oplog.NewOpTime(100, 4, 1), Op: checkpoint.AllOps}, unread: true},
		"such a view, begun at the barrier":     {entry: view("a"), barrier: checkpoint.Position{OpTime: oplog.NewOpTime(100, 5, 1)}, unread: true},
		"a view, up to one that has it already": {entry: view("a"), after: 5, unchecked: true},
	} {
		e, err := oplog.ParseEntry(must.Get(bson.Marshal(c.entry))(t))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		st := checkpoint.State{Applied: oplog.NewOpTime(100, c.after, 1), Barrier: c.barrier}
		check := &check{after: checkedAfter(&st), commands: ddl.Config{
			Target: empty{}, Link: "test", Scope: must.Get(scope.New(scope.Config{Include: []string{"shop"}, Exclude: []string{"shop.not"}, Map: []string{"shop.a=store.a"}}))(t),
		}}
		open := newOpenTxns(t.TempDir())
		err = open.add(t.Context(), &e, check)
		must.Succeed(t, open.assembler.Close())
		_, unread := errors.AsType[*oplog.EntryError](err)
		_, mustBe := errors.AsType[*ddl.ResyncError](err)
		if unread != c.unread || mustBe != c.mustBe || err != nil && !unread && !mustBe || (check.entries == 0) != c.unchecked {
			t.Errorf("%s: %v, %d entries were checked", name, err, check.entries)
		}
	}
}
