package ddl_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// indexesOf returns the definitions of the indexes of a createIndexes, nil for another command.
func indexesOf(cmd mongo.Command) []bson.RawValue {
	if _, err := cmd.Body.LookupErr("createIndexes"); err != nil {
		return nil
	}
	list, _ := cmd.Body.Lookup("indexes").Array().Values()
	return list
}

// TestBuildOverMemory: the memory limit of a server is that of all indexes of a command together. An index that exceeds it alone is left out,
// or, on a copy, deferred, and is built once the limit is higher. No build is sent again as it is: it would read the whole collection again.
func TestBuildOverMemory(t *testing.T) {
	t.Parallel()
	const commit = `c db.$cmd {"commitIndexBuild": "a", "indexBuildUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}, "indexes": [` +
		`{"v": 2, "key": {"x": 1}, "name": "x_1"}, {"v": 2, "key": {"large": 1}, "name": "large_1"}]}`
	for _, mode := range []ddl.Mode{ddl.Once, ddl.Maybe, ddl.Copied} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
			sent, over := 0, servererr.New(servererr.ExceededMemoryLimit, "no")
			b.before = func(cmd mongo.Command) error {
				list := indexesOf(cmd)
				if len(list) > 0 {
					sent++
				}
				if len(list) > 1 || len(list) == 1 && strings.Contains(list[0].String(), "large") {
					return over
				}
				return nil
			}
			op := b.operation(t, commit)
			err := b.exec.Apply(t.Context(), op, mode)
			if e, is := errors.AsType[*ddl.IndexError](err); is && mode == ddl.Copied && e.Index == "large_1" {
				err = b.exec.DeferBuild(t.Context(), op, e.Index)
			}
			must.Succeed(t, err)
			if sent != 3 {
				t.Errorf("%d commands, want 3", sent)
			}
			specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
			if len(specs) != 1 || !specs[0].Absent || specs[0].Index != "large_1" {
				t.Errorf("deferred: %v", specs)
			}
			if got := must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t); len(got) != 2 {
				t.Errorf("indexes: %s", got)
			}
			// The end of a copy tries it once more, and a later one succeeds.
			for _, want := range []int{2, 3} {
				must.Succeed(t, b.exec.EndCopy(t.Context(), op.OpTime))
				if got := must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t); len(got) != want {
					t.Errorf("indexes: %s", got)
				}
				b.before = nil
			}
		})
	}
}

// TestConvertOverMemory: an index that the link has left out, and that still exceeds the memory, does not keep a cutover from its end.
func TestConvertOverMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
	b.refuses("createIndexes", servererr.ExceededMemoryLimit)
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1"}`), ddl.Once))
	c := must.Get(ddl.NewConverter(t.Context(), b, open{b.server}, "replicator", "link"))(t)
	told := ""
	must.Succeed(t, c.Convert(t.Context(), func(done ddl.Converted) { told += done.Index + " " + done.What }))
	if !strings.HasPrefix(told, "x_1 is not built, as the target refuses it") {
		t.Error(told)
	}
}

// TestQuorum: where the set cannot have a majority for index builds, as one of its two members builds none, its primary's readiness is enough. A
// head start has the same.
func TestQuorum(t *testing.T) {
	t.Parallel()
	const start = `c db.$cmd {"startIndexBuild": "a", "indexBuildUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}, "indexes": [` +
		`{"v": 2, "key": {"x": 1}, "name": "x_1"}]}`
	for _, early := range []bool{false, true} {
		b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
		must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
		b.before = func(cmd mongo.Command) error {
			if len(indexesOf(cmd)) > 0 && cmd.Body.Lookup("commitQuorum").Type == bson.TypeString {
				return servererr.New(servererr.UnsatisfiableCommitQuorum, "Commit quorum cannot be satisfied with the current replica set configuration")
			}
			return nil
		}
		if early {
			h := must.Get(b.exec.HeadStart(t.Context(), b.operation(t, start)))(t)
			must.Succeed(t, h.Run(t.Context(), t.Context()))
		} else {
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1"}`), ddl.Once))
			if told := b.told(); !strings.Contains(told, "WARN: index is built without a majority") {
				t.Error(told)
			}
		}
		if got := must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t); len(got) != 2 {
			t.Errorf("early=%v: indexes: %s", early, got)
		}
	}
}

// TestConvertAgain: an index that was changed while the target examined it is made unique in the next try, for which the server asks.
func TestConvertAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`), ddl.Once))
	modified := 0
	b.before = func(cmd mongo.Command) error {
		if _, err := cmd.Body.LookupErr("collMod"); err == nil && cmd.Body.Lookup("index", "unique").Type == bson.TypeBoolean && modified == 0 {
			modified++
			return servererr.New(servererr.CommandFailed,
				"The index was modified by another thread. Please try to rerun the command and make sure no other threads are modifying the index.")
		}
		return nil
	}
	c := must.Get(ddl.NewConverter(t.Context(), b, open{b.server}, "replicator", "link"))(t)
	told := ""
	must.Succeed(t, c.Convert(t.Context(), func(done ddl.Converted) { told += done.Index + " " + done.What }))
	if told != "x_1 made unique" || modified != 1 {
		t.Errorf("%s after %d refusals", told, modified)
	}
}

// TestHeadStartOverMemory: a head start whose build needs too much memory ends, for the commit to leave the index out. Each try would read
// the whole collection.
func TestHeadStartOverMemory(t *testing.T) {
	t.Parallel()
	const start = `c db.$cmd {"startIndexBuild": "a", "indexBuildUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}, "indexes": [` +
		`{"v": 2, "key": {"x": 1}, "name": "x_1"}]}`
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"create": "a"}`), ddl.Once))
	stopped, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	tries := 0
	b.before = func(cmd mongo.Command) error {
		if len(indexesOf(cmd)) == 0 {
			return nil
		}
		if tries++; tries > 1 {
			stop(errors.New("it is tried again"))
		}
		return servererr.New(servererr.ExceededMemoryLimit, "no")
	}
	h := must.Get(b.exec.HeadStart(t.Context(), b.operation(t, start)))(t)
	if err := h.Run(t.Context(), stopped); !servererr.IsBuildTooLarge(err) || tries != 1 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
