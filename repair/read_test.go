package repair

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// counted counts commands by their names.
type counted struct {
	mongo.Caller
	of map[string]int
}

// Call implements mongo.Caller.
func (c *counted) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.of[cmd.Body.Index(0).Key()]++
	return c.Caller.Call(ctx, cmd)
}

// TestReadAsOf: documents are read as of an earlier time, in replies of a few documents each, from all
// servers: from those before 5.0 in a transaction, which is not left open.
func TestReadAsOf(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			set := mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: dialect, TTLInterval: -1, Moods: mongosim.Moods{OneIn: map[string]int{"short-batch": 1}}})
			c := client.Open(t, driver.Config{URI: set.URI(), AppName: "replicator"})
			call := func(cmd bson.D) {
				t.Helper()
				must.Get(c.Call(t.Context(), mongo.Command{DB: "d", Body: must.Marshal(t, cmd)}))(t)
			}
			majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
			var ids, large []bson.RawValue
			var all bson.A
			for _, doc := range docs(0, 50, "before") {
				ids, all = append(ids, idOf(doc)), append(all, doc)
			}
			call(bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: all}, majority})
			for _, doc := range docs(100, 103, strings.Repeat("x", 3<<20)) {
				large = append(large, idOf(doc))
				call(bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{doc}}, majority})
			}
			at := must.Get(mongo.OperationTime(t.Context(), c))(t)
			call(bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "v", Value: "before"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: "after"}}}}}, {Key: "multi", Value: true},
			}}}, majority})
			call(bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}, majority})

			sent := &counted{Caller: c, of: map[string]int{}}
			read := func(ids []bson.RawValue) ([]bson.Raw, error) {
				return byIDs(t.Context(), sent, "d.a", oplog.UUID{}, ids, at)
			}
			if got := must.Get(read(ids))(t); len(got) != len(ids) || len(unlike(got, docs(0, 50, "before"))) > 0 {
				t.Errorf("%d documents: %v", len(got), got)
			}
			if got := must.Get(read(large[:1]))(t); len(got) != 1 || len(got[0]) < 3<<20 {
				t.Errorf("a large one: %d documents", len(got))
			}
			if got, err := read(large); !errors.Is(err, applier.ErrRepairSize) {
				t.Errorf("large ones: %d documents, %v", len(got), err)
			}
			if begun, ended := sent.of["find"]-3, sent.of["abortTransaction"]; dialect < "5.0" && (begun != 3 || ended != 3) || dialect >= "5.0" && begun+ended > 0 {
				t.Errorf("%d transactions are begun, %d ended", begun, ended)
			}
		})
	}
}

// TestRenamedBack: documents of a collection that had another name as of the cut, and has its own again, are not the same because
// neither side has any under the name.
func TestRenamedBack(t *testing.T) {
	t.Parallel()
	open := func() mongo.Caller {
		set := mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: "7.0", TTLInterval: -1})
		return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	}
	source, target := open(), open()
	both := []mongo.Caller{source, target}
	call := func(c mongo.Caller, db string, cmd bson.D) {
		t.Helper()
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
		must.Get(mongo.Twice(c).Call(t.Context(), mongo.Command{DB: db, Body: must.Marshal(t, cmd)}))(t)
	}
	one := docs(0, 1, "s")
	for _, c := range both {
		call(c, "d", bson.D{{Key: "create", Value: "a"}})
	}
	call(source, "d", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: one}})
	rename := func(from, to string) {
		for _, c := range both {
			call(c, "admin", bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}})
		}
	}
	cut := func() *checkpoint.Cut {
		at := must.Get(mongo.OperationTime(t.Context(), source))(t)
		return &checkpoint.Cut{Source: oplog.OpTime{TS: at, Term: 1}, Target: must.Get(mongo.OperationTime(t.Context(), target))(t)}
	}
	j := &job{m: New(Config{Source: mongo.Twice(source), Target: mongo.Twice(target)}), source: "d.a", target: "d.a"}
	ids := []bson.RawValue{idOf(one[0])}
	rename("d.a", "d.away")
	at := cut()
	rename("d.away", "d.a")
	if different, err := j.compare(t.Context(), ids, at); !errors.Is(err, errChanged) {
		t.Errorf("as of a time at which it had another name: %v, %v", different, err)
	}
	if different, err := j.compare(t.Context(), ids, cut()); err != nil || len(different) != 1 {
		t.Errorf("%v, %v", different, err)
	}
}

// TestProvedAsStored: documents that are found the same are noted by the _ids that they have, and not by those of the request, which
// may be numbers of another type: differences are known by them.
func TestProvedAsStored(t *testing.T) {
	t.Parallel()
	open := func() mongo.Caller {
		c := client.Open(t, driver.Config{URI: mongosim.StartTest(t, mongosim.Options{Members: 1, TTLInterval: -1}).URI(), AppName: mongosim.Stage})
		must.Get(mongo.Twice(c).Call(t.Context(), mongo.Command{DB: "d", Body: must.Marshal(t, bson.D{
			{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: int64(7)}}}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
		})}))(t)
		return mongo.Twice(c)
	}
	source, target := open(), open()
	var proved []bson.RawValue
	j := &job{m: New(Config{Source: source, Target: target, Proved: func(_ context.Context, _ oplog.Namespace, ids []bson.RawValue, _ *checkpoint.Cut) error {
		proved = ids
		return nil
	}}), source: "d.a", target: "d.a"}
	at := must.Get(mongo.OperationTime(t.Context(), source))(t)
	cut := &checkpoint.Cut{Source: oplog.OpTime{TS: at, Term: 1}, Target: must.Get(mongo.OperationTime(t.Context(), target))(t)}
	var ids []bson.RawValue
	for _, id := range []any{float64(7), int32(8), 8.5} {
		ids = append(ids, must.Marshal(t, bson.D{{Key: "_id", Value: id}}).Lookup("_id"))
	}
	different := must.Get(j.compare(t.Context(), ids, cut))(t)
	if note := j.note(t.Context(), ids, different, cut); note != "" || len(different) > 0 {
		t.Fatal(note, different)
	}
	// One that both sides lack may have been any number: the repair has deleted it.
	var types []bson.Type
	for _, id := range proved {
		types = append(types, id.Type)
	}
	if !slices.Equal(types, []bson.Type{bson.TypeInt64, bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDouble}) {
		t.Errorf("noted %v", proved)
	}
}
