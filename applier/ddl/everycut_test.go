package ddl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestEveryCut interrupts every operation of history at its n-th command, for each n, before it is sent or before its reply
// arrives, and repeats it with nothing in memory: after a copy, and on a copy. The catalog and the deferred specs must be those
// of a run without interruptions.
func TestEveryCut(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"7.0", "5.0", "8.0"} {
		if (testing.Short() || race.Enabled) && dialect != "7.0" {
			continue
		}
		for _, mode := range []ddl.Mode{ddl.Once, ddl.Copied} {
			t.Run(fmt.Sprintf("%s/%s", dialect, mode), func(t *testing.T) {
				t.Parallel()
				whole := newCutBench(t, dialect, mode)
				_, most := whole.cutEach(t, mode, -1, false)
				want, wantDeferred := whole.state(t, false), whole.deferredSpecs(t)
				for n := range most {
					for _, executed := range []bool{false, true} {
						t.Run(fmt.Sprintf("%d/%t", n, executed), func(t *testing.T) {
							t.Parallel()
							b := newCutBench(t, dialect, mode)
							if cuts, _ := b.cutEach(t, mode, n, executed); cuts == 0 {
								t.Error("nothing was cut")
							}
							for _, what := range memstore.Diff(want, b.state(t, false)) {
								t.Error(what)
							}
							if diff := cmp.Diff(wantDeferred, b.deferredSpecs(t), cmpopts.IgnoreFields(ddl.DeferredSpec{}, "UUID")); diff != "" {
								t.Errorf("deferred (-want +got):\n%s", diff)
							}
						})
					}
				}
			})
		}
	}
}

// newer is what a copy has before the history after it: its names are those of the log, and its indexes, options and views are newer.
const newer = `
{"create": "k", "validator": {"x": {"$gt": 2}}}
{"createIndexes": "k", "indexes": [{"key": {"y": 1}, "name": "y_1"}], "writeConcern": {"w": "majority"}}
{"create": "n"}
{"create": "p", "viewOn": "k", "pipeline": [{"$match": {"x": 1}}]}
{"create": "q", "viewOn": "k", "pipeline": []}
`

const newerHistory = `
c db.$cmd {"createIndexes": "k", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}
c db.$cmd {"collMod": "k", "index": {"name": "x_1", "hidden": true}, "validator": {"x": 1}}
c db.$cmd {"createIndexes": "k", "v": 2, "key": {"z": 1}, "name": "y_1", "unique": true}
c db.$cmd {"dropIndexes": "k", "index": "y_1"}
c db.$cmd {"commitIndexBuild": "k", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000003"}, "indexes": [{"v": 2, "key": {"y": 1}, "name": "y_1", "unique": true}, {"v": 2, "key": {"y": "unknown"}, "name": "y_unknown"}, {"v": 2, "key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 5}]}
c db.$cmd {"collMod": "k", "index": {"name": "t_1", "expireAfterSeconds": 6}}
c db.$cmd {"create": "q", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"createIndexes": "q", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}
c db.$cmd {"renameCollection": "db.q", "to": "db.q2"}
c db.$cmd {"create": "tmpAbCdE.convertToCapped.k", "capped": true, "size": 4096, "temp": true, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"renameCollection": "db.tmpAbCdE.convertToCapped.k", "to": "db.k", "stayTemp": false, "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}
c db.$cmd {"renameCollection": "db.gone", "to": "db.n", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000002"}}
c db.$cmd {"createIndexes": "n", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}
c db.$cmd {"drop": "n"}
c db.$cmd {"create": "n", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"createIndexes": "n", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}
c db.$cmd {"renameCollection": "db.q2", "to": "db.n", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000002"}}
i db.system.views {"_id": "db.q", "viewOn": "k", "pipeline": []}
i db.system.views {"_id": "db.p", "viewOn": "k", "pipeline": []}
u db.system.views {"_id": "db.p", "viewOn": "k", "pipeline": [], "collation": {"locale": "en", "strength": 2}} {"_id": "db.p"}
u db.system.views {"$v": 2, "diff": {"u": {"pipeline": [{"$unknown": 1}]}}} {"_id": "db.p"}
u db.system.views {"$v": 2, "diff": {"u": {"viewOn": "n", "pipeline": []}}} {"_id": "db.p"}
c db.$cmd {"drop": "system.views"}
i db.system.views {"_id": "db.p", "viewOn": "n", "pipeline": []}
`

// newCutBench returns a target that is empty, or, under Copied, a copy: its names are those of the log.
func newCutBench(t *testing.T, dialect string, mode ddl.Mode) *bench {
	t.Helper()
	b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
	b.cfg.Placed = mode == ddl.Copied
	if b.cfg.Placed {
		for cmd := range strings.Lines(strings.TrimSpace(newer)) {
			b.must(t, "db", cmd)
		}
	}
	b.restart(t)
	return b
}

// cutEach applies history, after newerHistory on a copy, and interrupts each operation once, at its n-th command from 0. It returns how
// many it has interrupted, and how many commands an operation has sent at most.
func (b *bench) cutEach(t *testing.T, mode ddl.Mode, n int, executed bool) (cuts, most int) {
	t.Helper()
	ops := b.history(t)
	if mode == ddl.Copied {
		ops = append(b.operations(t, strings.Split(strings.TrimSpace(newerHistory), "\n")), ops...)
	}
	for _, op := range ops {
		if b.cannot(t, op) {
			continue
		}
		uncut := b.cutAt(n, executed)
		err := b.applyDeferring(t.Context(), op, mode)
		uncut()
		most = max(most, b.sent)
		if isCut(err) {
			cuts++
			b.restart(t)
			err = b.applyDeferring(t.Context(), op, max(mode, ddl.Maybe))
		}
		if err != nil {
			t.Fatalf("%s: %v", op.O, err)
		}
	}
	return cuts, most
}

// cannot reports whether the target lacks what an operation needs: targets before 7.0.3 do not rename buckets.
func (b *bench) cannot(t *testing.T, op *oplog.Op) bool {
	t.Helper()
	major := b.must(t, "admin", `{"buildInfo": 1}`).Lookup("version").StringValue()
	text := op.O.String()
	return major < "7" && (strings.Contains(text, "agg_out") || strings.Contains(text, `"db.o"`))
}

// applyDeferring applies an operation as the applier does, which defers an index that a copy cannot have.
func (b *bench) applyDeferring(ctx context.Context, op *oplog.Op, mode ddl.Mode) error {
	for {
		err := b.exec.Apply(ctx, op, mode)
		refused, is := errors.AsType[*ddl.IndexError](err)
		if !is {
			return err
		}
		if err := b.exec.DeferBuild(ctx, op, refused.Index); err != nil {
			return err
		}
	}
}
