package ddl_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// history has commands with many steps, and names that recur.
const history = `
c db.$cmd {"create": "a", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "plain"}
c db.$cmd {"commitIndexBuild": "a", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000001"}, "indexes": [{"v": 2, "key": {"x": 1}, "name": "unique", "unique": true}, {"v": 2, "key": {"y": 1}, "name": "y_1", "unique": true}, {"v": 2, "key": {"t": 1}, "name": "t_1", "expireAfterSeconds": 5}]}
c db.$cmd {"collMod": "a", "index": {"name": "y_1", "hidden": true}}
c db.$cmd {"collMod": "a", "index": {"name": "t_1", "expireAfterSeconds": 6}}
c db.$cmd {"create": "b", "temp": true, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"createIndexes": "b", "v": 2, "key": {"x": 1}, "name": "unique", "unique": true}
c db.$cmd {"createIndexes": "b", "v": 2, "key": {"z": 1}, "name": "z_1", "unique": true}
c db.$cmd {"renameCollection": "db.b", "to": "db.a", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}
c db.$cmd {"create": "b", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c db.$cmd {"createIndexes": "b", "v": 2, "key": {"w": 1}, "name": "w_1", "unique": true}
c db.$cmd {"createIndexes": "b", "v": 2, "key": {"w": 1}, "name": "w_plain"}
c db.$cmd {"dropIndexes": "b", "index": "w_1"}
c db.$cmd {"renameCollection": "db.a", "to": "db.c"}
c db.$cmd {"renameCollection": "db.b", "to": "db.a"}
i db.system.views {"_id": "db.v", "viewOn": "a", "pipeline": []}
i db.system.views {"_id": "db.w", "viewOn": "a", "pipeline": []}
u db.system.views {"_id": "db.v", "viewOn": "a", "pipeline": [], "collation": {"locale": "en", "strength": 2}} {"_id": "db.v"}
d db.system.views {"_id": "db.w"}
i db.system.views {"_id": "db.r", "viewOn": "a", "pipeline": [{"$unknown": 1}]}
u db.system.views {"$v": 2, "diff": {"u": {"pipeline": []}}} {"_id": "db.r"}
u db.system.views {"$v": 2, "diff": {"u": {"pipeline": [{"$unknown": 2}]}}} {"_id": "db.r"}
c db.$cmd {"createIndexes": "a", "v": 2, "key": {"r": "unknown"}, "name": "r_unknown"}
c db.$cmd {"commitIndexBuild": "a", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000002"}, "indexes": [{"v": 2, "key": {"s": 1}, "name": "s_1"}, {"v": 2, "key": {"s": "unknown"}, "name": "s_unknown", "unique": true}]}
c db.$cmd {"collMod": "a", "index": {"name": "s_unknown", "hidden": true}}
c db.$cmd {"renameCollection": "db.a", "to": "db.d"}
c db.$cmd {"dropIndexes": "d", "index": "r_unknown"}
c db.$cmd {"renameCollection": "db.d", "to": "db.a"}
c db.$cmd {"create": "system.buckets.m", "validator": {}, "clusteredIndex": true, "expireAfterSeconds": {"$numberLong": "100"}, "timeseries": {"timeField": "t", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}}
i db.system.views {"_id": "db.m", "viewOn": "system.buckets.m", "pipeline": []}
c db.$cmd {"collMod": "system.buckets.m", "expireAfterSeconds": {"$numberLong": "200"}, "timeseries": {"granularity": "minutes"}}
c db.$cmd {"create": "system.buckets.tmp.agg_out.1", "temp": true, "validator": {}, "clusteredIndex": true, "expireAfterSeconds": {"$numberLong": "300"}, "timeseries": {"timeField": "t", "granularity": "minutes", "bucketMaxSpanSeconds": 86400}}
c db.$cmd {"createIndexes": "system.buckets.tmp.agg_out.1", "v": 2, "key": {"control.min.x": 1, "control.max.x": 1}, "name": "x_1"}
c db.$cmd {"renameCollection": "db.system.buckets.tmp.agg_out.1", "to": "db.system.buckets.m", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}
c db.$cmd {"create": "system.buckets.tmp.agg_out.2", "temp": true, "validator": {}, "clusteredIndex": true, "timeseries": {"timeField": "t", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}}
c db.$cmd {"renameCollection": "db.system.buckets.tmp.agg_out.2", "to": "db.system.buckets.o"}
i db.system.views {"_id": "db.o", "viewOn": "system.buckets.o", "pipeline": []}
c db.$cmd {"create": "system.buckets.s", "validator": {}, "clusteredIndex": true, "timeseries": {"timeField": "t", "metaField": "m", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}}
i db.system.views {"_id": "db.s", "viewOn": "system.buckets.s", "pipeline": []}
c db.$cmd {"createIndexes": "system.buckets.s", "v": 2, "key": {"meta.x": 1}, "name": "x_1"}
c gone.$cmd {"create": "x", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c gone.$cmd {"createIndexes": "x", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}
i gone.system.views {"_id": "gone.v", "viewOn": "x", "pipeline": []}
c gone.$cmd {"create": "system.buckets.m", "validator": {}, "clusteredIndex": true, "expireAfterSeconds": {"$numberLong": "100"}, "timeseries": {"timeField": "t", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}}
i gone.system.views {"_id": "gone.m", "viewOn": "system.buckets.m", "pipeline": []}
c gone.$cmd {"dropDatabase": 1}
`

func (b *bench) history(t *testing.T) []*oplog.Op {
	t.Helper()
	var ops []*oplog.Op
	for line := range strings.Lines(strings.TrimSpace(history)) {
		ops = append(ops, b.operation(t, strings.TrimSpace(line)))
	}
	return ops
}

// TestCutHistory compares every interrupted run with an uninterrupted one.
func TestCutHistory(t *testing.T) {
	t.Parallel()
	whole := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	whole.before = func(cmd mongo.Command) error { return safe(cmd.Body) }
	for _, op := range whole.history(t) {
		if err := whole.exec.Apply(t.Context(), op, ddl.Once); err != nil {
			t.Fatalf("%s: %v", op.O, err)
		}
	}
	want, wantDeferred := whole.state(t, false), whole.deferredSpecs(t)
	if len(wantDeferred) == 0 {
		t.Fatal("nothing is deferred")
	}
	for seed := range uint64(16) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			b.applyCut(t, b.history(t), ddl.Once, rand.New(rand.NewPCG(seed, 1)))
			for _, what := range memstore.Diff(want, b.state(t, false)) {
				t.Error(what)
			}
			if diff := cmp.Diff(wantDeferred, b.deferredSpecs(t), cmpopts.IgnoreFields(ddl.DeferredSpec{}, "UUID")); diff != "" {
				t.Errorf("deferred (-want +got):\n%s", diff)
			}
		})
	}
}

// safe returns an error unless a command that changes something waits for a majority, and
// has a time limit exactly where the server cannot verify the intended collection.
func safe(cmd bson.Raw) error {
	elems, err := cmd.Elements()
	if err != nil {
		return err
	}
	name := elems[0].Key()
	switch name {
	case "find", "getMore", "listCollections", "listIndexes", "listDatabases", "hello":
		return nil
	}
	if _, inTxn := cmd.Lookup("autocommit").BooleanOK(); inTxn && name != "commitTransaction" {
		return nil
	}
	if w := cmd.Lookup("writeConcern").String(); w != `{"w": "majority"}` {
		return fmt.Errorf("%s with the write concern %s", name, w)
	}
	_, unlimited := cmd.LookupErr("maxTimeMS")
	_, byName := cmd.LookupErr("collectionUUID")
	over := cmd.Lookup("dropTarget").Type == bson.TypeBinary
	final := byName == nil && (name == "drop" || over)
	if wants := !final && name != "commitTransaction" && name != "createIndexes"; (unlimited == nil) != wants {
		return fmt.Errorf("%s: %s: a time limit is for what the server cannot restrict to the intended collection", name, cmd)
	}
	if quorum := cmd.Lookup("commitQuorum").String(); name == "createIndexes" && quorum != `"majority"` {
		return fmt.Errorf("%s with the quorum %s", name, quorum)
	}
	return nil
}

func (b *bench) deferredSpecs(t *testing.T) ddl.Specs {
	t.Helper()
	return must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
}

// An index of an earlier attempt is listed from the start of its build. The executor
// waits for the build.
func TestIndexUnderWayIsAskedForAgain(t *testing.T) {
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	ops := b.history(t)[:2]
	for _, op := range ops {
		must.Succeed(t, b.exec.Apply(t.Context(), op, ddl.Once))
	}
	asked := 0
	b.before = func(cmd mongo.Command) error {
		if _, err := cmd.Body.LookupErr("createIndexes"); err == nil {
			asked++
		}
		return nil
	}
	must.Succeed(t, b.exec.Apply(t.Context(), ops[1], ddl.Maybe))
	if asked != 1 {
		t.Errorf("it was asked for %d times, want once", asked)
	}
}
