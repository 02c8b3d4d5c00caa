package ddl_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/memstore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// source is a database that somebody works on, and the log of that, in lines.
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
	// indexes are the fields behind their names.
	indexes map[string]string
}

func (c *sourced) clone() *sourced {
	d := *c
	d.indexes = maps.Clone(c.indexes)
	return &d
}

func (s *source) say(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

func (c *sourced) creation(name string) string {
	return fmt.Sprintf(`c db.$cmd {"create": %q, "validator": {"id": %d, "v": %d}, "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`, name, c.id, c.version)
}

func indexing(name, index, spec string) string {
	return fmt.Sprintf(`c db.$cmd {"createIndexes": %q, "v": 2, %s, "name": %q}`, name, spec, index)
}

func (c *sourced) viewing(name string) string {
	return fmt.Sprintf(`{"_id": "db.%s", "viewOn": "base", "pipeline": [{"$match": {"id": %d, "v": %d}}]}`, name, c.id, c.version)
}

// specs are what an index may be: one that is held, one that is not.
var specs = []string{
	`"key": {"x": 1}, "unique": true`, `"key": {"x": 1}`, `"key": {"y": 1}, "expireAfterSeconds": 5`, `"key": {"z": 1}, "sparse": true`,
}

// work does one thing.
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

// change does something to a collection.
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

// TestPlacedHistories copies a database in the middle of what is done to it, under
// the names that its collections had when that began, and lets the log do the
// rest, with cuts. Whatever the source has done it comes out the same.
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
			// Listed now, by what they are.
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
			b.applyCut(t, b.operations(t, s.log[begin:]), ddl.Copied, rng)
			for _, what := range memstore.Diff(want.state(t, true), b.state(t, true)) {
				t.Error(what)
			}
			if t.Failed() {
				t.Logf("copied:\n%q\nthen:\n%q", list, s.log[begin:])
			}
		})
	}
}

func (b *bench) operations(t *testing.T, lines []string) []*oplog.Op {
	t.Helper()
	var ops []*oplog.Op
	for _, line := range lines {
		ops = append(ops, b.operation(t, line))
	}
	return ops
}
