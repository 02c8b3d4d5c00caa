package storage_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func (m *model) write(fn func(w *storage.Writer)) {
	if err := m.store.Write(func(w *storage.Writer) error { fn(w); return nil }); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) tick() uint64 {
	m.clock += uint64(rapid.SampledFrom([]int{1, 1, 1, 16, 40}).Draw(m.t, "tick"))
	return m.clock
}

func (m *model) begin() {
	if len(m.units) > 3 {
		return
	}
	m.write(func(w *storage.Writer) {
		u := &modelUnit{touched: map[string]bool{}, seq: m.seq, ts: all}
		newest, oldest := w.Newest(), w.Oldest()
		u.readTS = uint64(newest.T)<<4 | uint64(newest.I)
		var at bson.Timestamp
		if rapid.Bool().Draw(m.t, "snapshot") {
			from := uint64(oldest.T)<<4 | uint64(oldest.I)
			u.ts = rapid.Uint64Range(max(from, 1), max(u.readTS, from, 1)).Draw(m.t, "at")
			u.readTS = u.ts
			at = stamp(u.ts)
		}
		u.real = w.Begin(at)
		u.real.Keep()
		u.base, u.state = m.at(u.ts, u.seq), m.at(u.ts, u.seq)
		m.units = append(m.units, u)
	})
}

func (m *model) unit() *modelUnit {
	if len(m.units) == 0 {
		m.begin()
	}
	return m.units[rapid.IntRange(0, len(m.units)-1).Draw(m.t, "unit")]
}

func (m *model) insert() {
	u := m.unit()
	if u.prepared != 0 {
		return
	}
	coll := m.anyColl(u)
	raw, doc := m.drawDoc(rapid.IntRange(0, 12).Draw(m.t, "id"))
	meta, id := fmt.Sprint("meta ", coll), fmt.Sprint("id ", coll, doc.id)
	touched := []string{id, fmt.Sprint("data ", coll)}
	conflict := m.conflicts(u, meta)
	var code servererr.Code
	c := u.state[coll]
	switch {
	case conflict:
	case c == nil:
		code = servererr.NamespaceNotFound
	case m.conflicts(u, id):
		conflict = true
	default:
		now := m.now(u)[coll]
		for _, d := range now.docs {
			if d.id == doc.id {
				code = servererr.DuplicateKey
			}
		}
		if _, taken := keyNames(coll, modelDoc{}, doc); c.unique && code == 0 {
			touched = append(touched, taken...)
			conflict, code = m.keyOutcome(u, now, coll, 0, taken, doc.k)
		}
	}
	m.write(func(*storage.Writer) {
		rid, err := u.real.Insert(coll, raw)
		clear(raw) // the store has to have its own
		m.do(u, "insert "+doc.id, err, conflict, code, append(touched, fmt.Sprint("doc ", coll, rid)), func(s state) {
			s[coll].docs[rid] = doc
		})
	})
}

// keyOutcome returns the outcome of a write that takes keys, in the order of the
// index.
func (m *model) keyOutcome(u *modelUnit, now *modelColl, coll oplog.UUID, rid storage.RecordID, taken, keys []string) (bool, servererr.Code) {
	order := slices.Clone(keys) // one digit, or a word: undefined, null, then numbers
	slices.SortFunc(order, func(a, b string) int { return cmp.Compare(rankOf(a), rankOf(b)) })
	for _, k := range order {
		name := fmt.Sprint("key ", coll, k)
		if !slices.Contains(taken, name) {
			continue
		}
		if m.conflicts(u, name) {
			return true, 0
		}
		if holds(now, rid, []string{k}) {
			return false, servererr.DuplicateKey
		}
	}
	return false, 0
}

func (m *model) change() {
	u := m.unit()
	coll := m.anyColl(u)
	c := u.state[coll]
	if u.prepared != 0 || c == nil || len(c.docs) == 0 {
		return
	}
	rids := slices.Sorted(maps.Keys(c.docs))
	rid := rapid.SampledFrom(rids).Draw(m.t, "rid")
	old := c.docs[rid]
	var n int
	_, _ = fmt.Sscan(old.id, &n)
	raw, doc := m.drawDoc(n)
	remove := rapid.IntRange(0, 2).Draw(m.t, "remove") == 0
	touched := []string{fmt.Sprint("doc ", coll, rid), fmt.Sprint("data ", coll)}
	conflict := m.conflicts(u, fmt.Sprint("meta ", coll), touched[0])
	if remove {
		doc = modelDoc{}
		touched = append(touched, fmt.Sprint("id ", coll, old.id))
	}
	freed, taken := keyNames(coll, old, doc)
	var code servererr.Code
	if c.unique && !conflict {
		touched = append(append(touched, freed...), taken...)
		conflict, code = m.keyOutcome(u, m.now(u)[coll], coll, rid, taken, doc.k)
	}
	m.write(func(*storage.Writer) {
		if remove {
			m.do(u, "delete "+old.id, u.real.Delete(coll, rid), conflict, code, touched, func(s state) { delete(s[coll].docs, rid) })
			return
		}
		m.do(u, "update "+old.id, u.real.Update(coll, rid, raw), conflict, code, touched, func(s state) { s[coll].docs[rid] = doc })
	})
}

func (m *model) create() {
	u := m.unit()
	if u.prepared != 0 {
		return
	}
	ns := rapid.SampledFrom([]string{"a.a", "a.b", "a-b.c", "b.a"}).Draw(m.t, "ns")
	m.uuids++
	id := oplog.UUID{byte(m.uuids), byte(m.uuids >> 8)}
	var code servererr.Code
	conflict := m.conflicts(u, "name "+ns)
	if !conflict {
		for _, c := range u.state {
			if c.ns == ns {
				code = servererr.NamespaceExists
			}
		}
	}
	m.write(func(*storage.Writer) {
		err := u.real.Create(oplog.Namespace(ns), id, nil, idSpec())
		m.do(u, "create "+ns, err, conflict, code, []string{"name " + ns, fmt.Sprint("meta ", id)}, func(s state) {
			s[id] = &modelColl{ns: ns, docs: map[storage.RecordID]modelDoc{}}
		})
	})
}

func (m *model) ddl() {
	u := m.unit()
	if u.prepared != 0 {
		return
	}
	id := m.anyColl(u)
	c := u.state[id]
	if c == nil {
		return
	}
	meta := fmt.Sprint("meta ", id)
	conflict := m.conflicts(u, meta, fmt.Sprint("data ", id))
	m.write(func(*storage.Writer) {
		switch rapid.SampledFrom([]string{"drop", "rename", "options", "index", "index", "unindex", "truncate"}).Draw(m.t, "ddl") {
		case "drop":
			m.do(u, "drop", u.real.Drop(id), conflict, 0, []string{meta, "name " + c.ns}, func(s state) { delete(s, id) })
		case "rename":
			to := rapid.SampledFrom([]string{"a.a", "a.b", "a-b.c", "b.a"}).Draw(m.t, "to")
			var code servererr.Code
			if !conflict {
				if conflict = m.conflicts(u, "name "+to); !conflict {
					for _, o := range u.state {
						if o.ns == to {
							code = servererr.NamespaceExists
						}
					}
				}
			}
			m.do(u, "rename", u.real.Rename(id, oplog.Namespace(to)), conflict, code, []string{meta, "name " + c.ns, "name " + to}, func(s state) { s[id].ns = to })
		case "options":
			n := rapid.Int32Range(1, 9).Draw(m.t, "option")
			options, err := bson.Marshal(bson.D{{Key: "max", Value: n}})
			if err != nil {
				m.t.Fatal(err)
			}
			m.do(u, "options", u.real.SetOptions(id, options), conflict, 0, []string{meta}, func(s state) { s[id].options = n })
		case "index":
			if c.unique {
				return
			}
			var code servererr.Code
			for rid, doc := range c.docs {
				if holds(c, rid, doc.k) {
					code = servererr.DuplicateKey
				}
			}
			err := u.real.AddIndex(id, spec("k_1", "k", bson.E{Key: "unique", Value: true}), oplog.UUID{})
			m.do(u, "index", err, conflict, code, []string{meta}, func(s state) { s[id].unique = true })
		case "unindex":
			if !c.unique {
				return
			}
			m.do(u, "unindex", u.real.DropIndex(id, "k_1"), conflict, 0, []string{meta}, func(s state) { s[id].unique = false })
		case "truncate":
			if len(c.docs) == 0 {
				return
			}
			c = state{id: c}.clone()[id] // the documents that are there now
			touched := []string{fmt.Sprint("data ", id)}
			for rid, doc := range c.docs {
				touched = append(touched, fmt.Sprint("doc ", id, rid), fmt.Sprint("id ", id, doc.id))
				for _, k := range doc.k {
					if c.unique {
						touched = append(touched, fmt.Sprint("key ", id, k))
					}
				}
			}
			m.do(u, "truncate", u.real.Truncate(id), conflict, 0, touched, func(s state) {
				for rid := range c.docs {
					delete(s[id].docs, rid)
				}
			})
		}
	})
}

func (m *model) drop(u *modelUnit) {
	m.units = slices.DeleteFunc(m.units, func(o *modelUnit) bool { return o == u })
}

func (m *model) commit() {
	u := m.unit()
	ts := m.tick()
	durable := ts
	if u.prepared != 0 && rapid.Bool().Draw(m.t, "past") {
		ts = rapid.Uint64Range(u.prepared, ts).Draw(m.t, "commit")
	}
	m.write(func(w *storage.Writer) {
		if u.real.Changed() != (len(u.ops) > 0) {
			m.t.Fatalf("Changed is %t after %d changes", u.real.Changed(), len(u.ops))
		}
		u.real.CommitAt(stamp(ts), stamp(durable))
		w.Append(idSpec(), oplog.OpTime{TS: stamp(durable), Term: 1})
	})
	m.log = append(m.log, durable)
	m.drop(u)
	if len(u.ops) > 0 {
		m.seq++
		maps.DeleteFunc(u.touched, func(name string, _ bool) bool { return !u.changes(name) })
		m.commits = append(m.commits, modelCommit{ts: ts, durable: durable, seq: m.seq, ops: u.ops, touched: u.touched})
	}
	m.t.Logf("committed at %d (%d), #%d: %v", ts, durable, m.seq, slices.Sorted(maps.Keys(u.touched)))
	m.counts["commit"]++
}

func (m *model) prepare() {
	u := m.unit()
	if u.prepared != 0 || len(u.ops) == 0 {
		return
	}
	u.prepared = m.tick()
	m.write(func(w *storage.Writer) {
		u.real.Prepare(stamp(u.prepared))
		w.Append(idSpec(), oplog.OpTime{TS: stamp(u.prepared), Term: 1})
		if _, err := u.real.Insert(oplog.UUID{1}, idSpec()); !errors.Is(err, storage.ErrEnded) {
			m.t.Fatalf("an insert after prepare: %v", err)
		}
	})
	m.log = append(m.log, u.prepared)
	m.counts["prepare"]++
}

func (m *model) abort() {
	u := m.unit()
	m.write(func(*storage.Writer) { u.real.Abort() })
	m.drop(u)
	m.counts["abort"]++
}

func (m *model) setStable() {
	if len(m.log) == 0 {
		return
	}
	to := rapid.SampledFrom(m.log[max(0, len(m.log)-4):]).Draw(m.t, "stable")
	m.stable = max(m.stable, to)
	m.write(func(w *storage.Writer) { w.SetStable(stamp(to)) })
}

func (m *model) pin() {
	if len(m.pins) > 1 {
		for _, ts := range slices.Sorted(maps.Keys(m.pins)) {
			m.pins[ts]()
			delete(m.pins, ts)
		}
		return
	}
	at := rapid.Uint64Range(1, m.clock+1).Draw(m.t, "pin")
	var oldest bson.Timestamp
	_ = m.store.Read(func(r *storage.Reader) error { oldest = r.Oldest(); return nil })
	release, err := m.store.Pin(stamp(at))
	if tooOld := oplog.CompareTimestamps(stamp(at), oldest) < 0; tooOld != (err != nil) {
		m.t.Fatalf("pin at %v with oldest %v: %v", stamp(at), oldest, err)
	}
	if err == nil {
		if m.pins[at] == nil {
			m.pins[at] = release
		} else {
			release()
		}
	}
}

func (m *model) rollBack() {
	to := rapid.Uint64Range(m.stable, m.clock).Draw(m.t, "to")
	if rapid.IntRange(0, 3).Draw(m.t, "really") > 0 {
		return
	}
	m.write(func(w *storage.Writer) {
		if m.stable > 0 {
			if err := w.RollbackTo(stamp(m.stable - 1)); err == nil {
				m.t.Fatal("rolled back behind the stable timestamp")
			}
		}
		if err := w.RollbackTo(stamp(to)); err != nil {
			m.t.Fatal(err)
		}
	})
	m.log = slices.DeleteFunc(m.log, func(ts uint64) bool { return ts > to })
	saw := func(u *modelUnit) bool {
		for _, c := range m.commits {
			if c.durable > to && c.ts <= u.ts && c.seq <= u.seq {
				return true
			}
		}
		return max(u.readTS, u.prepared) > to
	}
	for _, u := range slices.Clone(m.units) {
		if !saw(u) {
			continue
		}
		if u.real.Open() {
			m.t.Fatal("a unit that read what was undone is still open")
		}
		m.drop(u)
		m.counts["aborted by rollback"]++
	}
	for _, u := range m.units {
		if !u.real.Open() {
			m.t.Fatal("a unit was aborted that read nothing of what was undone")
		}
	}
	m.commits = slices.DeleteFunc(m.commits, func(c modelCommit) bool { return c.durable > to })
	m.t.Logf("rolled back to %d", to)
	m.counts["rollback"]++
}

// copy makes a copy as an initial sync does, continues with it if permitted, and
// checks that constraints hold in it.
func (m *model) copy() {
	var oldest bson.Timestamp
	_ = m.store.Read(func(r *storage.Reader) error { oldest = r.Oldest(); return nil })
	low := uint64(oldest.T)<<4 | uint64(oldest.I)
	at := rapid.Uint64Range(max(low, 1), max(low, m.clock)).Draw(m.t, "clone")
	c, err := m.store.CloneAt(stamp(at), storage.Options{HistorySeconds: 2})
	if err != nil {
		m.t.Fatal(err)
	}
	other := storage.New(storage.Options{})
	other.Become(c)
	err = other.Write(func(w *storage.Writer) error {
		want := m.at(at, m.seq)
		if diff := gocmp.Diff(showModel(want), m.showStore(w.View(bson.Timestamp{}))); diff != "" {
			m.t.Fatalf("the copy at %d (-model +copy):\n%s", at, diff)
		}
		for id, coll := range want {
			for _, doc := range coll.docs {
				u := w.Begin(bson.Timestamp{})
				raw, err := bson.Marshal(bson.D{{Key: "_id", Value: int32(99)}, {Key: "k", Value: int32(rankOf(doc.k[0]))}})
				if err != nil {
					return err
				}
				if _, err := u.Insert(id, raw); coll.unique && rankOf(doc.k[0]) >= 0 && !errors.Is(err, servererr.New(servererr.DuplicateKey, "")) {
					m.t.Fatalf("a key twice in the copy: %v", err)
				}
				u.Abort()
			}
		}
		if last, ok := w.Oplog().Last(); ok && oplog.CompareTimestamps(last.At.TS, stamp(at)) > 0 {
			m.t.Fatalf("the copy at %d has the entry %s", at, last.At)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.counts["clone"]++
}
