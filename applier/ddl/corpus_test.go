package ddl_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func scenarios(t *testing.T) []corpus.Scenario {
	t.Helper()
	return must.Get(corpus.Open("../../testdata/corpus"))(t)
}

// commands returns the operations of a recording that must be processed individually, in
// order, including those inside of other entries.
func commands(t *testing.T, s *corpus.Scenario) []*oplog.Op {
	t.Helper()
	var all []*oplog.Op
	take := func(op *oplog.Op) {
		if op.NS.DB() == "admin" || op.NS.DB() == "config" {
			return
		}
		if op.IsDDL() && op.Command != oplog.CommandCommitTransaction && op.Command != oplog.CommandAbortTransaction {
			all = append(all, op)
		}
	}
	for e, err := range s.Oplog() {
		if err != nil {
			t.Fatal(err)
		}
		if e.Command != oplog.CommandApplyOps {
			take(&e.Op)
			continue
		}
		group, err := e.ApplyOps()
		if err != nil {
			t.Fatal(err)
		}
		for op, err := range group.Ops() {
			if err != nil {
				t.Fatal(err)
			}
			take(&op)
		}
	}
	return all
}

// prepare creates the collections that a recording starts with.
func (b *bench) prepare(t *testing.T, s *corpus.Scenario) {
	t.Helper()
	before := must.Get(s.Before())(t)
	for _, c := range before.Collections {
		if c.Type != memstore.TypeCollection || c.NS.IsSystemViews() {
			continue
		}
		create := bson.D{{Key: "create", Value: c.NS.Collection()}}
		var options bson.D
		must.Succeed(t, bson.Unmarshal(c.Options, &options))
		b.run(t, c.NS.DB(), append(create, options...))
		for _, spec := range c.Indexes {
			if spec.Lookup("name").StringValue() != "_id_" {
				b.run(t, c.NS.DB(), bson.D{{Key: "createIndexes", Value: c.NS.Collection()}, {Key: "indexes", Value: bson.A{spec}}})
			}
		}
	}
	b.restart(t)
}

func (b *bench) run(t *testing.T, db string, cmd bson.D) {
	t.Helper()
	if _, err := b.Call(t.Context(), mongo.Command{DB: db, Body: must.Marshal(t, cmd)}); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
}

// mode returns the mode in which a recording's commands are applied.
func mode(s *corpus.Scenario) ddl.Mode {
	if s.Name == "fuzzy-clone" { // not a consistent snapshot
		return ddl.Copied
	}
	return ddl.Once
}

// bare returns a state without documents.
func bare(state memstore.State) memstore.State {
	state.Collections = slices.Clone(state.Collections)
	for i := range state.Collections {
		state.Collections[i].Documents = nil
	}
	return state
}

// TestRecordings executes all commands of the recordings, without the documents, and
// compares the catalogs.
func TestRecordings(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios(t) {
		for _, unique := range []ddl.UniqueIndexes{ddl.Relaxed, ddl.Serialized} {
			for _, dialect := range []string{"5.0", "7.0"} {
				if unique == ddl.Serialized && dialect == "7.0" {
					continue // scenarios have it
				}
				t.Run(fmt.Sprintf("%s/%d/%s", s.Name, unique, dialect), func(t *testing.T) {
					t.Parallel()
					b := newBench(t, dialect, unique, scope.Config{})
					b.prepare(t, &s)
					for _, op := range commands(t, &s) {
						if err := b.exec.Apply(t.Context(), op, mode(&s)); err != nil {
							t.Fatalf("%s: %v", op.O, err)
						}
					}
					b.compare(t, &s)
				})
			}
		}
	}
}

func (b *bench) compare(t *testing.T, s *corpus.Scenario) {
	t.Helper()
	after := must.Get(s.After())(t)
	for _, what := range memstore.Diff(bare(after), b.state(t, true)) {
		t.Error(what)
	}
}

// TestCut interrupts each operation at some command, before it is sent or before its
// reply arrives, and restarts with nothing in memory. The final catalog and the deferred
// specs must be the same.
func TestCut(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios(t) {
		if s.Name != "ddl" && s.Name != "commands" && s.Name != "timeseries" && s.Name != "fuzzy-clone" {
			continue
		}
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%s/%d", s.Name, seed), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "5.0", ddl.Relaxed, scope.Config{})
				b.prepare(t, &s)
				b.applyCut(t, commands(t, &s), mode(&s), rand.New(rand.NewPCG(seed, 0)))
				b.compare(t, &s)
			})
		}
	}
}

// applyCut applies operations, each of them interrupted once or twice.
func (b *bench) applyCut(t *testing.T, ops []*oplog.Op, first ddl.Mode, random *rand.Rand) {
	t.Helper()
	if b.cutAndApply(t, ops, first, random) == 0 && len(ops) > 10 {
		t.Error("nothing was cut")
	}
}

// cutAndApply returns how often it interrupted.
func (b *bench) cutAndApply(t *testing.T, ops []*oplog.Op, first ddl.Mode, random *rand.Rand) (cuts int) {
	t.Helper()
	for _, op := range ops {
		again := first
		for range random.IntN(3) {
			left := random.IntN(9)
			cut := func(mongo.Command) error {
				if left--; left < 0 {
					return &mongo.LostError{Host: "target", Err: errCut}
				}
				return nil
			}
			if random.IntN(2) == 0 {
				b.before = cut
			} else {
				b.after = cut
			}
			err := b.exec.Apply(t.Context(), op, again)
			b.before, b.after = nil, nil
			if err == nil {
				// Executed, but that could not be recorded.
				again = max(again, ddl.Maybe)
				b.restart(t)
				continue
			}
			if !isCut(err) {
				t.Fatalf("%s: %v", op.O, err)
			}
			cuts++
			again = max(again, ddl.Maybe)
			b.restart(t)
		}
		if err := b.exec.Apply(t.Context(), op, again); err != nil {
			t.Fatalf("%s, %s: %v", op.O, again, err)
		}
	}
	return cuts
}
