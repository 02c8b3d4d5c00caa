package applier

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// A copy that was taken during writes lacks collections that the source dropped
// meanwhile, and may have a view with the name of one. Operations on those are ignored in
// every form, and create nothing.
func TestCopiedWithoutCollection(t *testing.T) {
	ways := map[string]func(l *sourceLog, ops []bson.D){
		"plain": func(l *sourceLog, ops []bson.D) {
			for _, op := range ops {
				l.add(op)
			}
		},
		"grouped": func(l *sourceLog, ops []bson.D) { l.add(groupOp(ops...)) },
		"one lane each": func(l *sourceLog, ops []bson.D) {
			for _, op := range ops {
				l.add(l.transactionOp(op))
			}
		},
		"spanning": func(l *sourceLog, ops []bson.D) { l.add(l.transactionOp(ops...)) },
		"spanning one after the other": func(l *sourceLog, ops []bson.D) {
			l.add(l.transactionOp(ops...))
			l.add(l.transactionOp(ops...))
		},
	}
	for _, relaxed := range []bool{false, true} {
		for name, way := range ways {
			t.Run(fmt.Sprintf("%s relaxed=%v", name, relaxed), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 4, mongosim.Options{Members: 1})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "there"}})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "there"}, {Key: "pipeline", Value: bson.A{}}})
				before := collections(t, r.target)
				var ops []bson.D
				lost := 0
				for i := range int32(12) {
					ops = append(ops, insertOp("db.there", doc(i, 0)))
					for _, ns := range []string{"db.gone", "db.view", "db.system.buckets.gone"} {
						ops = append(ops, insertOp(ns, doc(i, 0)), setOp(ns, i, 1), upsertOp(ns, i), deleteOp(ns, i))
						lost += 4
					}
					ops = append(ops, setOp("db.there", i, 1))
				}
				l := newLog(t)
				way(l, ops)
				a := r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil, c.Relaxed = l.optime(), relaxed })
				if diff := cmp.Diff(before, collections(t, r.target)); diff != "" {
					t.Errorf("collections: %s", diff)
				}
				docs := texts(r.target.documents(t, "db.there"))
				slices.Sort(docs)
				if len(docs) != 12 || !strings.Contains(docs[0], `"v": {"$numberInt":"1"}`) {
					t.Errorf("documents: %s", docs)
				}
				if s := a.Stats(); s.Ignored < int64(lost) || s.Divergences != 0 {
					t.Errorf("%d ignored, %d divergences, want %d and none", s.Ignored, s.Divergences, lost)
				}
			})
		}
	}
}

// After the copy's end the same is a divergence.
func TestWithoutCollectionBehindTheCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4, mongosim.Options{Members: 1})
	l := newLog(t)
	l.add(insertOp("db.gone", doc(1, 0)))
	until := l.optime()
	l.add(insertOp("db.gone", doc(2, 0)))
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.CopiedUntil = until }))(t)
	err := a.run(t.Context(), l.batches(), 0)
	if d, ok := errors.AsType[*DivergenceError](err); !ok || d.OpTime != l.optime() {
		t.Errorf("%v, want a divergence at %s", err, l.optime())
	}
}

// upsertOp replaces or creates a document.
func upsertOp(ns string, id int32) bson.D {
	return bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: ns},
		{Key: "o", Value: doc(id, 7)},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}},
		{Key: "b", Value: true},
	}
}

func collections(t *testing.T, target *simTarget) []string {
	t.Helper()
	reply := target.run(t, "db", bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}})
	values := must.Get(reply.Lookup("cursor", "firstBatch").Array().Values())(t)
	var names []string
	for _, v := range values {
		names = append(names, v.Document().Lookup("name").StringValue())
	}
	slices.Sort(names)
	return names
}

// picky refuses to build indexes.
type picky struct {
	*commands
	refused []string
}

func (p *picky) Apply(_ context.Context, op *oplog.Op, again ddl.Mode) error {
	if len(p.refused) > 0 && op.Command == oplog.CommandCommitIndexBuild {
		return &ddl.IndexError{OpTime: op.OpTime, NS: "db.c", Index: p.refused[0], Err: servererr.New(servererr.CannotIndexParallelArrays, "no")}
	}
	p.applied = append(p.applied, op.Command.String()+" "+again.String())
	return nil
}

func (p *picky) DeferBuild(ctx context.Context, op *oplog.Op, index string) error {
	if index == "never" {
		return p.commands.DeferBuild(ctx, op, index) // it is still refused
	}
	p.refused = p.refused[1:]
	return p.commands.DeferBuild(ctx, op, index)
}

// Indexes that a copy does not allow are deferred, and the run continues.
func TestIndexesOfCopyHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
	l := newLog(t)
	l.alone(commandOp("db", bson.D{
		{Key: "commitIndexBuild", Value: "c"},
		{Key: "indexBuildUUID", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "indexes", Value: bson.A{bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}},
	}))
	l.add(insertOp("db.c", doc(1, 0)))
	var deferred []string
	run := func(refused ...string) (*picky, error) {
		p := &picky{refused: refused}
		a := must.Get(r.begin(t.Context(), func(c *Config) {
			p.commands = c.Commands.(*commands)
			c.Commands, c.CopiedUntil = p, l.optime()
			c.Observer = func(e event.Event) {
				if e.Message() == "index cannot be built on the copy, and is deferred" {
					deferred = append(deferred, event.Attr(e, keyIndex).String())
				}
			}
		}))(t)
		return p, a.run(t.Context(), l.batches(), 0)
	}
	_, err := run("never")
	if e, ok := errors.AsType[*ddl.IndexError](err); !ok || e.Index != "never" {
		t.Errorf("one that stays refused: %v", err)
	}
	p, err := run("a", "b")
	must.Succeed(t, err)
	want := []string{"commitIndexBuild db without a", "commitIndexBuild db without b", "commitIndexBuild copied"}
	if diff := cmp.Diff(want, p.applied); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"never", "a", "b"}, deferred); diff != "" {
		t.Error(diff)
	}
	if n := len(r.target.documents(t, "db.c")); n != 1 {
		t.Errorf("%d documents after it", n)
	}
}

// ending records the ends of copies, and fails those that are to fail.
type ending struct {
	*commands
	fails error
	ends  []oplog.OpTime
}

func (e *ending) EndCopy(_ context.Context, at oplog.OpTime) error {
	e.ends = append(e.ends, at)
	return e.fails
}

// A copy ends once the log has passed its end, even if nothing that is to be applied follows, and
// the end itself is not in the log, as it was rolled back or is a time. No watermark reaches it
// before.
func TestCopyEndsWithoutOperations(t *testing.T) {
	t.Parallel()
	noop := bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{{Key: "msg", Value: "periodic noop"}}}}
	logs := map[string]func(l *sourceLog) (until oplog.OpTime){
		"within a batch": func(l *sourceLog) oplog.OpTime {
			l.add(noop)
			until := l.optime()
			l.add(noop)
			return until
		},
		"a time": func(l *sourceLog) oplog.OpTime {
			until := oplog.OpTime{TS: bson.Timestamp{T: l.optime().TS.T, I: math.MaxUint32}, Term: oplog.UninitializedTerm}
			l.end()
			l.add(noop)
			return until
		},
		"rolled back": func(l *sourceLog) oplog.OpTime {
			until := oplog.OpTime{TS: bson.Timestamp{T: l.optime().TS.T, I: 7}, Term: 1}
			l.add(noop)
			l.add(noop)
			return until
		},
	}
	for name, more := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2, mongosim.Options{Members: 1})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
			l := newLog(t)
			l.add(insertOp("db.c", doc(1, 0)))
			until := more(l)
			run := func(fails error) (*ending, *attempt, error) {
				e := &ending{fails: fails}
				a := must.Get(r.begin(t.Context(), func(c *Config) {
					e.commands = c.Commands.(*commands)
					c.Commands, c.CopiedUntil = e, until
				}))(t)
				return e, a, a.run(t.Context(), l.batches(), 0)
			}
			no := errors.New("a collection was not copied")
			_, a, err := run(no)
			if !errors.Is(err, no) {
				t.Errorf("%v, want the error of the copy's end", err)
			}
			for _, w := range a.seen {
				if !w.Applied.Before(until) {
					t.Errorf("watermark %s, and the copy, which ends at %s, has not ended", w.Applied, until)
				}
			}
			e, _, err := run(nil)
			must.Succeed(t, err)
			if diff := cmp.Diff([]oplog.OpTime{until}, e.ends); diff != "" {
				t.Error(diff)
			}
		})
	}
}
