package ddl_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// source is a simulated database under writes, and its log in lines.
type source struct {
	rng   *rand.Rand
	named map[string]*sourced
	made  int
	log   []string
}

// sourced is a collection, or a view.
type sourced struct {
	id      int
	view    bool
	version int
	// indexes are the fields after their names.
	indexes map[string]string
}

func (c *sourced) clone() *sourced {
	d := *c
	d.indexes = maps.Clone(c.indexes)
	return &d
}

func (s *source) say(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

func (c *sourced) creation(name string) string {
	return fmt.Sprintf(`c db.$cmd {"create": %q, "validator": {"id": %d, "v": %d}, "validationLevel": "strict", "validationAction": "error", `+
		`"idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`, name, c.id, c.version)
}

func indexing(name, index, spec string) string {
	return fmt.Sprintf(`c db.$cmd {"createIndexes": %q, "v": 2, %s, "name": %q}`, name, spec, index)
}

func (c *sourced) viewing(name string) string {
	return fmt.Sprintf(`{"_id": "db.%s", "viewOn": "base", "pipeline": [{"$match": {"id": %d, "v": %d}}]}`, name, c.id, c.version)
}

// specs are the kinds of indexes: one that is deferred, one that is not.
var specs = []string{
	`"key": {"x": 1}, "unique": true`, `"key": {"x": 1}`, `"key": {"y": 1}, "expireAfterSeconds": 5`, `"key": {"z": 1}, "sparse": true`,
}

// work makes one change.
func (s *source) work() {
	names := []string{"a", "b", "c", "d"}
	name := names[s.rng.IntN(len(names))]
	c := s.named[name]
	switch {
	case c == nil:
		s.made++
		c = &sourced{id: s.made, view: s.rng.IntN(3) == 0, indexes: map[string]string{}}
		s.named[name] = c
		if c.view {
			s.say("i db.system.views %s", c.viewing(name))
		} else {
			s.say("%s", c.creation(name))
		}
	case c.view && s.rng.IntN(2) == 0:
		c.version++
		s.say(`u db.system.views %s {"_id": "db.%s"}`, c.viewing(name), name)
	case c.view:
		delete(s.named, name)
		s.say(`d db.system.views {"_id": "db.%s"}`, name)
	default:
		s.change(name, c, names[s.rng.IntN(len(names))])
	}
}

// change changes a collection.
func (s *source) change(name string, c *sourced, other string) {
	index := "i" + strconv.Itoa(s.rng.IntN(2))
	switch s.rng.IntN(8) {
	case 0:
		delete(s.named, name)
		s.say(`c db.$cmd {"drop": %q}`, name)
	case 1:
		c.version++
		s.say(`c db.$cmd {"collMod": %q, "validator": {"id": %d, "v": %d}}`, name, c.id, c.version)
	case 2, 3:
		spec := specs[s.rng.IntN(len(specs))]
		taken := slices.Collect(maps.Values(c.indexes))
		if c.indexes[index] == "" && !slices.ContainsFunc(taken, func(x string) bool { return x[:14] == spec[:14] }) {
			c.indexes[index] = spec
			s.say("%s", indexing(name, index, spec))
		}
	case 4:
		if c.indexes[index] != "" {
			delete(c.indexes, index)
			s.say(`c db.$cmd {"dropIndexes": %q, "index": %q}`, name, index)
		}
	default:
		to, there := s.named[other], s.named[other] != nil
		if other == name || there && to.view {
			return
		}
		drop := ""
		if there {
			drop = `, "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}`
		}
		delete(s.named, name)
		s.named[other] = c
		s.say(`c db.$cmd {"renameCollection": "db.%s", "to": "db.%s", "stayTemp": false%s}`, name, other, drop)
	}
}

// TestPlacedHistories copies a database during changes, under the names that its
// collections had at the start, and applies the log, with interruptions. The result must
// equal the source.
func TestPlacedHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			s := &source{rng: rng, named: map[string]*sourced{}}
			some := func(n int) {
				for range n {
					s.work()
				}
			}
			some(rng.IntN(20))
			begin, before := len(s.log), maps.Clone(s.named)
			some(rng.IntN(25))
			// Listed now, with their types.
			listed := map[int]*sourced{}
			var list []string
			for name, c := range s.named {
				listed[c.id] = c.clone()
				if was := before[name]; c.view && (was == nil || was.view) {
					list = append(list, "i db.system.views "+c.viewing(name))
				}
			}
			slices.Sort(list)
			for _, name := range slices.Sorted(maps.Keys(before)) {
				c, there := listed[before[name].id]
				if !there || c.view {
					continue
				}
				list = append(list, c.creation(name))
				for _, index := range slices.Sorted(maps.Keys(c.indexes)) {
					list = append(list, indexing(name, index, c.indexes[index]))
				}
			}
			some(rng.IntN(15))

			want := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			for _, op := range want.operations(t, s.log) {
				if err := want.exec.Apply(t.Context(), op, ddl.Once); err != nil {
					t.Fatalf("the source: %s: %v", op.O, err)
				}
			}
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			b.cfg.Placed = true
			b.restart(t)
			for _, op := range b.operations(t, list) {
				if err := b.exec.Apply(t.Context(), op, ddl.Copied); err != nil {
					t.Fatalf("the copy: %s: %v", op.O, err)
				}
			}
			b.cutAndApply(t, b.operations(t, s.log[begin:]), ddl.Copied, rng)
			for _, what := range memstore.Diff(want.placedState(t), b.placedState(t)) {
				t.Error(what)
			}
			if t.Failed() {
				t.Logf("copied:\n%q\nthen:\n%q", list, s.log[begin:])
			}
		})
	}
}

// placedState is the state without the collection of view definitions, which is created
// with the first view and may stay.
func (b *bench) placedState(t *testing.T) memstore.State {
	t.Helper()
	state := b.state(t, true)
	state.Collections = slices.DeleteFunc(state.Collections, func(c memstore.CollectionState) bool { return c.NS.IsSystemViews() })
	return state
}

func (b *bench) operations(t *testing.T, lines []string) []*oplog.Op {
	t.Helper()
	var ops []*oplog.Op
	for _, line := range lines {
		ops = append(ops, b.operation(t, line))
	}
	return ops
}

// linesOf returns the commands of worker w for a number of collections.
func linesOf(w, collections int) (lines []string) {
	for i := range collections {
		db, name := fmt.Sprintf("db%d", i%3), fmt.Sprintf("c%d_%d", w, i)
		lines = append(lines,
			fmt.Sprintf(`c %s.$cmd {"create": %q, "temp": true, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`, db, name),
			fmt.Sprintf(`c %s.$cmd {"createIndexes": %q, "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`, db, name),
		)
		switch i % 4 {
		case 1:
			lines = append(lines, fmt.Sprintf(`c %s.$cmd {"renameCollection": "%s.%s", "to": "%s.%s_new"}`, db, db, name, db, name))
		case 2:
			lines = append(lines, fmt.Sprintf(`c %s.$cmd {"drop": %q}`, db, name))
		case 3:
			lines = append(lines, fmt.Sprintf(`i %s.system.views {"_id": "%s.%s_view", "viewOn": %q, "pipeline": []}`, db, db, name, name))
		}
	}
	return lines
}

// Executors that share a catalog work concurrently, each on collections of its own.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.cfg.Placed = true
	const workers, each = 6, 8
	var err error
	if b.cfg.Catalog, err = catalog.Load(t.Context(), b.server, nil); err != nil {
		t.Fatal(err)
	}
	cfg := b.cfg
	cfg.Observer = nil
	var g errgroup.Group
	for w := range workers {
		exec, err := ddl.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ops := b.operations(t, linesOf(w, each))
		g.Go(func() error {
			for _, op := range ops {
				if err := exec.Apply(t.Context(), op, ddl.Copied); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must.Succeed(t, g.Wait())
	// Their shared catalog must equal the target.
	fresh, err := catalog.Load(t.Context(), b.server, nil)
	if err != nil {
		t.Fatal(err)
	}
	for db := range 3 {
		name := fmt.Sprintf("db%d", db)
		want, err := fresh.Database(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.cfg.Catalog.Database(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		// The collection of view definitions is not read.
		want = slices.DeleteFunc(want, func(c *catalog.Collection) bool { return c.NS.IsSystemViews() })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if n := len(b.deferredSpecs(t)); n != workers*each/4*(2+1+2) {
		t.Errorf("%d specs are deferred", n)
	}
}

// TestPlacedOwn: a resync notes a rename under its own name, so that it does not replace
// the note of its link, and goes with the resync.
func TestPlacedOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.cfg.Placed, b.cfg.Own = true, "resync-1"
	b.restart(t)
	for _, op := range b.operations(t, []string{
		`c db.$cmd {"create": "a", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`,
		`c db.$cmd {"create": "b", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`,
		`c db.$cmd {"renameCollection": "db.a", "to": "db.b", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}`,
	}) {
		if err := b.exec.Apply(t.Context(), op, ddl.Copied); err != nil {
			t.Fatal(err)
		}
	}
	docs, err := catalog.ReadAll(t.Context(), b.server, "replicator", bsongen.FromJSON(t, `{"find": "renames"}`))
	if err != nil || len(docs) != 1 || docs[0].Lookup("_id").StringValue() != "resync-1" {
		t.Errorf("noted: %v, %v", docs, err)
	}
}
