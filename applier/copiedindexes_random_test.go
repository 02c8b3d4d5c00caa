package applier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// A copy of a source under writes: each document is of another time, and so are the
// indexes. The log is applied to it, by processes that lose replies. At the end of the
// copy documents and indexes equal the source's, byte for byte, whatever the states in
// between.
func TestCopiedRandom(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	seeds := uint64(100)
	if race.Enabled {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			// A set of its own: one for all would keep the versions of all documents as long as
			// a transaction is open that an attempt had left.
			w := &moving{simTarget: &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}, rnd: rand.New(rand.NewPCG(seed, 14)), db: fmt.Sprint("src", seed), to: fmt.Sprint("dst", seed)}
			if seed%4 == 0 {
				w.large = map[int]string{0: ""}
			}
			w.live(t)
			w.fill(t)
			w.follow(t, fmt.Sprint("link", seed))
			w.compare(t)
			mu.Lock()
			defer mu.Unlock()
			for what, n := range w.told {
				seen[what] += n
			}
		})
	}
	t.Log(seen)
	for _, what := range []string{"deferred", "built", "oversized"} {
		if seen[what] == 0 && !race.Enabled { // with the race detector there are few seeds
			t.Errorf("nothing was ever %s", what)
		}
	}
}

// moving is a source, in one database of a set, and its copy in another.
type moving struct {
	*simTarget
	rnd    *rand.Rand
	db, to string
	// large are documents that have large fields after begin, one at a time, and which they
	// have.
	large map[int]string
	begin bson.Timestamp
	// copied are the documents as they were read, indexes as listed.
	copied  []bson.Raw
	indexes []bson.Raw
	told    map[string]int
}

const movingDocs = 6

var movingIndexes = []bson.D{
	{{Key: "key", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: -1}}}, {Key: "name", Value: "compound"}},
	{{Key: "key", Value: bson.D{{Key: "a", Value: "hashed"}}}, {Key: "name", Value: "hashed"}},
	{{Key: "key", Value: bson.D{{Key: "loc", Value: "2dsphere"}}}, {Key: "name", Value: "sphere"}},
	{{Key: "key", Value: bson.D{{Key: "c", Value: "text"}}}, {Key: "name", Value: "text"}},
	{{Key: "key", Value: bson.D{{Key: "b", Value: 1}}}, {Key: "name", Value: "plain"}, {Key: "expireAfterSeconds", Value: 1_000_000}},
	{{Key: "key", Value: bson.D{{Key: "a", Value: 1}, {Key: "_id", Value: 1}}}, {Key: "name", Value: "unique"}, {Key: "unique", Value: true}},
}

// try runs a command that the source may refuse.
func (m *moving) try(t *testing.T, cmd bson.D) {
	t.Helper()
	_, err := m.send(t.Context(), mongo.Command{DB: m.db, Body: must.Marshal(t, cmd)})
	if _, refused := asServerError(err); err != nil && !refused {
		t.Fatal(err)
	}
}

func (m *moving) build(t *testing.T) {
	t.Helper()
	m.try(t, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{movingIndexes[m.rnd.IntN(len(movingIndexes))]}}})
}

// live changes the source: before the copy starts, and during it.
func (m *moving) live(t *testing.T) {
	t.Helper()
	m.run(t, m.db, bson.D{{Key: "create", Value: "c"}})
	for range 3 {
		m.build(t)
	}
	for range 20 {
		m.write(t)
	}
	m.begin = m.newest(t)
	reads := map[int][]int{}
	for id := range movingDocs {
		at := m.rnd.IntN(60)
		if _, isLarge := m.large[id]; isLarge {
			at = at/2 + 30 // late, so that it has another large field than in the log
		}
		reads[at] = append(reads[at], id)
	}
	listed := m.rnd.IntN(40)
	for i := range 60 {
		m.write(t)
		for _, id := range reads[i] {
			reply := m.run(t, m.db, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}})
			docs, _, err := batchOf(reply)
			must.Succeed(t, err)
			m.copied = append(m.copied, docs...)
		}
		if i == listed {
			if m.rnd.IntN(2) == 0 {
				m.clean(t)
			}
			m.indexes = must.Get(catalog.Indexes(t.Context(), m, oplog.NewNamespace(m.db, "c")))(t)
		}
	}
}

// clean removes from all documents what indexes may not allow, and builds indexes. The log
// still has it.
func (m *moving) clean(t *testing.T) {
	t.Helper()
	m.try(t, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{}},
		{Key: "u", Value: bson.D{{Key: "$unset", Value: bson.D{{Key: "a", Value: 1}, {Key: "loc", Value: 1}, {Key: "language", Value: 1}}}}},
		{Key: "multi", Value: true},
	}}}})
	for range 4 {
		m.build(t)
	}
}

// write does one write, which may be refused.
func (m *moving) write(t *testing.T) {
	t.Helper()
	id := m.rnd.IntN(movingDocs)
	oneOf := func(of ...any) any { return of[m.rnd.IntN(len(of))] }
	array := bson.A{m.rnd.IntN(3), m.rnd.IntN(3)}
	var field bson.E
	switch m.rnd.IntN(5) {
	case 0:
		field = bson.E{Key: "a", Value: oneOf(m.rnd.IntN(9), array, nil)}
	case 1:
		field = bson.E{Key: "b", Value: oneOf(m.rnd.IntN(9), array)}
	case 2:
		field = bson.E{Key: "loc", Value: oneOf("nowhere", bson.A{1, 2}, bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{3, 4}}})}
	case 3:
		field = bson.E{Key: "language", Value: oneOf("german", 7)}
	default:
		field = bson.E{Key: fmt.Sprint("v", m.rnd.IntN(3)), Value: m.rnd.IntN(100)}
	}
	filter := bson.D{{Key: "_id", Value: id}}
	update := func(u any, upsert bool) {
		m.try(t, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: u}, {Key: "upsert", Value: upsert}}}}})
	}
	k := m.rnd.IntN(20)
	if has, isLarge := m.large[id]; isLarge && !m.begin.IsZero() && m.rnd.IntN(3) > 0 {
		if has == "" {
			field, k = bson.E{Key: fmt.Sprint("big", m.rnd.IntN(2)), Value: movingBig}, 0
			m.large[id] = field.Key
		} else {
			field, k = bson.E{Key: has}, 12
			m.large[id] = ""
		}
	}
	switch {
	case k < 12:
		update(bson.D{{Key: "$set", Value: bson.D{field}}}, true)
	case k < 15:
		update(bson.D{{Key: "$unset", Value: bson.D{{Key: field.Key, Value: 1}}}}, false)
	case k < 16:
		update(bson.D{field}, true)
	case k < 17:
		m.try(t, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: 1}}}}})
	case k < 18:
		names := []string{"compound", "hashed", "sphere", "text", "plain", "unique"}
		m.try(t, bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: names[m.rnd.IntN(len(names))]}})
	default:
		m.build(t)
	}
}

// movingBig is more than half of the size limit of a document.
var movingBig = strings.Repeat("x", 17<<19)

// newest returns the timestamp of the newest entry.
func (m *moving) newest(t *testing.T) bson.Timestamp {
	t.Helper()
	reply := m.run(t, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}},
		{Key: "limit", Value: 1},
	})
	docs, _, err := batchOf(reply)
	must.Succeed(t, err)
	var ts bson.Timestamp
	ts.T, ts.I = docs[0].Lookup("ts").Timestamp()
	return ts
}

// fill writes the copy, without its indexes.
func (m *moving) fill(t *testing.T) {
	t.Helper()
	m.run(t, m.to, bson.D{{Key: "create", Value: "c"}})
	for _, doc := range m.copied {
		m.run(t, m.to, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc}}})
	}
}

// log returns the source's entries since the start.
func (m *moving) log(t *testing.T) *sourceLog {
	t.Helper()
	docs := must.Get(catalog.ReadAll(t.Context(), m, "local", must.Marshal(t, bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: m.begin}}}}},
	})))(t)
	l := newLog(t)
	for _, doc := range docs {
		e := must.Get(oplog.ParseEntry(doc))(t)
		if e.NS.DB() != m.db {
			continue
		}
		command := e.Kind == oplog.KindCommand
		if command {
			l.end()
		}
		l.entries = append(l.entries, logged{raw: doc, last: command || m.rnd.IntN(6) == 0, alone: command})
	}
	l.end()
	return l
}

// buildCopied builds the indexes of the copy, and continues where one is refused.
func (m *moving) buildCopied(t *testing.T, exec *ddl.Executor) {
	t.Helper()
	for _, spec := range m.indexes[1:] {
		entry := must.Marshal(t, bson.D{
			{Key: "ts", Value: m.begin},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "wall", Value: bson.DateTime(1)},
			{Key: "op", Value: "c"},
			{Key: "ns", Value: m.db + ".$cmd"},
			{Key: "o", Value: bson.D{
				{Key: "commitIndexBuild", Value: "c"},
				{Key: "indexBuildUUID", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
				{Key: "indexes", Value: bson.A{spec}},
			}},
		})
		e := must.Get(oplog.ParseEntry(entry))(t)
		err := exec.Apply(t.Context(), &e.Op, ddl.Copied)
		if refused, ok := errors.AsType[*ddl.IndexError](err); ok {
			err = exec.DeferBuild(t.Context(), &e.Op, refused.Index)
		}
		must.Succeed(t, err)
	}
}

// follow applies the log to the copy, with processes that lose replies.
func (m *moving) follow(t *testing.T, link string) {
	t.Helper()
	l := m.log(t)
	r := rigOn(t, m.simTarget, link, 1+m.rnd.IntN(3))
	r.db = m.to
	names := must.Get(scope.New(scope.Config{Map: []string{m.db + "=" + m.to}, Include: []string{m.db + ".*"}}))(t)
	last := must.Get(oplog.ParseEntry(l.entries[len(l.entries)-1].raw))(t).OpTime
	m.told = map[string]int{}
	var mu sync.Mutex
	faults, built := 0, false
	m.intercept(func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if built && faults < 8 && m.rnd.IntN(40) == 0 && cmd.DB != "local" {
			faults++
			return &mongo.LostError{Err: errors.New("cut")}, m.rnd.IntN(2) == 0
		}
		return nil, false
	})
	defer m.intercept(nil)
	observe := func(e event.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e.Message() {
		case indexDeferred:
			m.told["deferred"]++
		case indexBuilt:
			m.told["built"]++
		case "document is too large while the copy is not consistent, and is set aside":
			m.told["oversized"]++
		}
	}
	for range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var exec *ddl.Executor
		a, err := r.begin(ctx, func(c *Config) {
			exec = must.Get(ddl.New(ddl.Config{
				Target: m, Fence: c.Checkpoint, Catalog: r.catalog, Scope: names, Link: link, Placed: true, Observer: observe,
			}))(t)
			c.Commands, c.Scope, c.Link, c.Observer, c.CopiedUntil = exec, names, link, observe, last
			c.FlushDocs, c.CoalesceWindow = 1+m.rnd.IntN(8), 1+m.rnd.IntN(8)
		})
		if err == nil {
			if !built {
				m.buildCopied(t, exec)
				mu.Lock()
				built = true
				mu.Unlock()
			}
			err = a.run(ctx, l.after(a.link.State().Applied), 1)
		}
		cancel()
		if err == nil {
			return
		}
		if isStop(err) {
			t.Fatal(err)
		}
	}
	t.Fatal("it does not come to an end")
}

func (m *moving) compare(t *testing.T) {
	t.Helper()
	from, to := oplog.NewNamespace(m.db, "c"), oplog.NewNamespace(m.to, "c")
	docs := func(ns oplog.Namespace) map[string]string {
		found := map[string]string{}
		for _, d := range must.Get(catalog.ReadAll(t.Context(), m, ns.DB(), must.Marshal(t, bson.D{{Key: "find", Value: "c"}})))(t) {
			found[d.Lookup("_id").String()] = strings.ReplaceAll(d.String(), movingBig, "BIG")
		}
		return found
	}
	if diff := cmp.Diff(docs(from), docs(to)); diff != "" {
		t.Errorf("documents: -source +target:\n%s", diff)
	}
	deferred := must.Get(ddl.ReadDeferred(t.Context(), m, "replicator", strings.Replace(m.to, "dst", "link", 1)))(t)
	for _, h := range deferred {
		if h.Absent {
			t.Errorf("the index %s is absent", h.Index)
		}
	}
	specs := func(ns oplog.Namespace) []string {
		list := must.Get(catalog.Indexes(t.Context(), m, ns))(t)
		_, list = deferred.Overlay(ns, nil, list)
		got := texts(list)
		slices.Sort(got)
		return got
	}
	if diff := cmp.Diff(specs(from), specs(to)); diff != "" {
		t.Errorf("indexes: -source +target:\n%s", diff)
	}
}
