package storage_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// shown is a state in a form to compare.
type shown struct {
	NS      string
	Options int32
	Unique  bool
	Natural []string
	Len     int
}

func showModel(s state) []shown {
	out := []shown{}
	for _, c := range s {
		x := shown{NS: c.ns, Options: c.options, Unique: c.unique, Natural: []string{}, Len: len(c.docs)}
		for _, rid := range slices.Sorted(maps.Keys(c.docs)) {
			x.Natural = append(x.Natural, fmt.Sprint(rid, " ", c.docs[rid].id, " ", c.docs[rid].n))
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b shown) int { return strings.Compare(a.NS, b.NS) })
	return out
}

func line(r storage.Record) string {
	return fmt.Sprint(r.ID, " ", r.Doc.Lookup("_id").AsInt64(), " ", r.Doc.Lookup("n").AsInt64())
}

func (m *model) showStore(v storage.View) []shown {
	out := []shown{}
	for _, c := range v.Collections("") {
		x := shown{NS: string(c.NS), Natural: []string{}, Len: c.Len()}
		if o, err := c.Options.LookupErr("max"); err == nil {
			x.Options = o.Int32()
		}
		x.Unique = len(c.Indexes) == 2
		var bytes int64
		var byID, backward []string
		for r := range c.Natural(0) {
			x.Natural = append(x.Natural, line(r))
			bytes += int64(len(r.Doc))
			if got, ok := c.Get(r.Doc.Lookup("_id")); !ok || got.ID != r.ID {
				m.t.Fatalf("Get of %s gives %v", r.Doc, got)
			}
			if got, ok := c.Record(r.ID); !ok || string(got.Doc) != string(r.Doc) {
				m.t.Fatalf("Record of %s gives %v", r.Doc, got)
			}
		}
		for r := range c.NaturalBackward(0) {
			backward = append(backward, line(r))
		}
		slices.Reverse(backward)
		if !slices.Equal(backward, x.Natural) {
			m.t.Fatalf("backward %v, forward %v", backward, x.Natural)
		}
		before := int64(-1)
		for r := range c.ByID(storage.Bound{}, storage.Bound{}, false) {
			byID = append(byID, line(r))
			if id := r.Doc.Lookup("_id").AsInt64(); id <= before {
				m.t.Fatalf("_id %d comes after %d", id, before)
			} else {
				before = id
			}
		}
		slices.Sort(byID)
		if sorted := slices.Sorted(slices.Values(x.Natural)); !slices.Equal(byID, sorted) {
			m.t.Fatalf("by _id %v, forward %v", byID, sorted)
		}
		if c.Bytes() != bytes {
			m.t.Fatalf("%s has %d bytes, counted %d", c.NS, bytes, c.Bytes())
		}
		if same, ok := v.ByUUID(c.UUID); !ok || same.NS != c.NS {
			m.t.Fatalf("%s is not found by its UUID", c.NS)
		}
		out = append(out, x)
	}
	return out
}

func (m *model) check(*rapid.T) {
	err := m.store.Read(func(r *storage.Reader) error {
		oldest := r.Oldest()
		low := uint64(oldest.T)<<4 | uint64(oldest.I)
		if m.stable > 0 && oplog.CompareTimestamps(oldest, stamp(m.stable)) > 0 {
			m.t.Fatalf("the oldest readable time %v is after the stable one", oldest)
		}
		for ts := range m.pins {
			if ts < low {
				m.t.Fatalf("pinned %d, oldest is %d", ts, low)
			}
		}
		times := []uint64{low, all, rapid.Uint64Range(low, m.clock+1).Draw(m.t, "view"), rapid.Uint64Range(low, m.clock+1).Draw(m.t, "view")}
		for _, ts := range times {
			at := stamp(ts)
			if ts == all {
				at = bson.Timestamp{}
			} else if ts == 0 {
				continue
			}
			if diff := gocmp.Diff(showModel(m.at(ts, m.seq)), m.showStore(r.View(at))); diff != "" {
				m.t.Fatalf("at %d of %d (-model +store):\n%s", ts, m.clock, diff)
			}
		}
		var log []uint64
		for e := range r.Oplog().From(bson.Timestamp{}) {
			log = append(log, uint64(e.At.TS.T)<<4|uint64(e.At.TS.I))
		}
		if !slices.Equal(log, m.log) {
			m.t.Fatalf("the oplog has %v, want %v", log, m.log)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.write(func(*storage.Writer) {
		for i, u := range m.units {
			if diff := gocmp.Diff(showModel(u.state), m.showStore(u.real.View())); diff != "" {
				m.t.Fatalf("unit %d (-model +store):\n%s", i, diff)
			}
		}
	})
}

// TestAgainstModel runs units of all kinds against a slow model: which writes are
// refused and why, and what every view shows at every time.
func TestAgainstModel(t *testing.T) {
	counts := map[string]int{}
	run := func(rt *rapid.T) {
		m := &model{t: rt, store: storage.New(storage.Options{HistorySeconds: 2}), clock: 16, pins: map[uint64]func(){}, counts: counts}
		m.create()
		for range rapid.IntRange(0, 6).Draw(rt, "first") {
			m.insert()
		}
		m.commit()
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"begin":   func(*rapid.T) { m.begin() },
			"insert":  func(*rapid.T) { m.insert() },
			"insert2": func(*rapid.T) { m.insert() },
			"insert3": func(*rapid.T) { m.insert() },
			"change":  func(*rapid.T) { m.change() },
			"change2": func(*rapid.T) { m.change() },
			"change3": func(*rapid.T) { m.change() },
			"create":  func(*rapid.T) { m.create() },
			"ddl":     func(*rapid.T) { m.ddl() },
			"commit":  func(*rapid.T) { m.commit() },
			"commit2": func(*rapid.T) { m.commit() },
			"prepare": func(*rapid.T) { m.prepare() },
			"abort":   func(*rapid.T) { m.abort() },
			"stable":  func(*rapid.T) { m.setStable() },
			"pin":     func(*rapid.T) { m.pin() },
			"back":    func(*rapid.T) { m.rollBack() },
			"clone":   func(*rapid.T) { m.copy() },
		})
	}
	// Some things are rare: a few more rounds are run for those that have not come.
	never := ""
	for round := 0; round < 4 || never != "" && round < 40; round++ {
		rapid.Check(t, run)
		never = ""
		for _, what := range []string{"insert", "update", "delete", "create", "drop", "rename", "index", "truncate", "commit", "prepare", "abort", "rollback", "clone", "conflict", "DuplicateKey"} {
			if counts[what] == 0 {
				never = what
			}
		}
	}
	if never != "" {
		t.Errorf("%s never happened: %v", never, counts)
	}
	t.Log(counts)
}
