package replay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

var dialects = []opwrite.Dialect{
	{Version: "4.4.10"}, {Version: "5.0.7", FCV: "4.4"}, {Version: "5.0.7"}, {Version: "7.0.5"}, {Version: "8.0.1"},
}

// TestSecondary writes at random, and checks that a member which applies the log
// has the same data, catalog and session records at every timestamp; that it knows
// the same retryable statements and prepared transactions when it takes over; and
// that a rollback to anywhere, and the rest of the log again, lead to the same.
func TestSecondary(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.Version+" "+d.FCV, func(t *testing.T) { rapid.Check(t, func(rt *rapid.T) { secondary(t, rt, d) }) })
	}
}

func secondary(t *testing.T, rt *rapid.T, d opwrite.Dialect) {
	t.Helper()
	p := newPrimary(t, rt, d)
	for range rapid.IntRange(1, 40).Draw(rt, "steps") {
		p.step()
	}
	log := p.log()
	if len(log) == 0 {
		return
	}

	copied := storage.New(storage.Options{})
	opts := replay.Options{TrimCapped: d.TrimsCapped()}
	prepared := apply(t, copied, opts, log)
	for _, e := range log {
		sameAt(t, p.store, copied, e)
	}
	// As a primary of its own, which steps down at once.
	write(t, copied, func(*storage.Writer) error {
		for _, one := range prepared {
			p.newPath(copied).Adopt(one).Release(nil)
		}
		return nil
	})
	// Back to some entry, and on from there.
	back := rapid.IntRange(0, len(log)-1).Draw(rt, "back")
	at, err := oplog.ParseEntry(log[back])
	check(t, err)
	write(t, copied, func(w *storage.Writer) error { return w.RollbackTo(at.OpTime.TS) })
	prepared = apply(t, copied, opts, log[back+1:])
	sameAt(t, p.store, copied, log[len(log)-1])

	p.takeOver(copied, prepared)
}

// apply applies entries in batches by Appliers that take over from each other.
func apply(t *testing.T, store *storage.Store, opts replay.Options, entries []bson.Raw) []opwrite.Prepared {
	t.Helper()
	for {
		a, err := replay.New(store, opts)
		check(t, err)
		n := min(len(entries), 7)
		if _, err := a.Apply(entries[:n]); err != nil {
			t.Fatal(err)
		}
		if entries = entries[n:]; len(entries) == 0 {
			return a.Prepared()
		}
		check(t, a.Close())
	}
}

// sameAt compares two stores as of an entry.
func sameAt(t *testing.T, a, b *storage.Store, raw bson.Raw) {
	t.Helper()
	e, err := oplog.ParseEntry(raw)
	check(t, err)
	if want, got := dump(t, a, e.OpTime.TS), dump(t, b, e.OpTime.TS); want != got {
		t.Fatalf("after %s:\n%s", raw, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
	}
}

func dump(t *testing.T, store *storage.Store, at bson.Timestamp) string {
	t.Helper()
	var out strings.Builder
	read(t, store, func(r *storage.Reader) {
		for _, c := range r.View(at).Collections("") {
			fmt.Fprintf(&out, "%s %s %s %s\n", c.NS, c.UUID, c.Options, c.IDIndex)
			for _, i := range c.Indexes {
				fmt.Fprintf(&out, "  %s %s %v %s\n", i.Name, i.Spec, i.Building, i.BuildUUID)
			}
			docs := c.Natural(0)
			if c.CappedBytes == 0 { // the order of places is a member's own
				docs = c.ByID(storage.Bound{}, storage.Bound{}, false)
			}
			for d := range docs {
				fmt.Fprintf(&out, "  %s\n", d.Doc)
			}
		}
	})
	return out.String()
}

// primary writes at random.
type primary struct {
	t       *testing.T
	rt      *rapid.T
	dialect opwrite.Dialect
	store   *storage.Store
	path    *opwrite.Path
	now     int64
	uuids   byte
	// numbers are the sessions' newest numbers, open their transactions, and stmts
	// the retryable statements of the newest number.
	numbers [3]int64
	open    [3]*opwrite.Txn
	stmts   [3]map[int32]bool
}

func newPrimary(t *testing.T, rt *rapid.T, d opwrite.Dialect) *primary {
	t.Helper()
	p := &primary{t: t, rt: rt, dialect: d, store: storage.New(storage.Options{}), now: 1000}
	p.path = p.newPath(p.store)
	return p
}

func (p *primary) newPath(store *storage.Store) *opwrite.Path {
	path, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: p.dialect, Host: "h:1", MaxApplyOpsBytes: 600,
		Term: func() (int64, error) { return 3, nil },
		Now:  func() time.Time { p.now++; return time.UnixMilli(p.now * 300) },
		NewUUID: func() oplog.UUID {
			p.uuids++
			return oplog.UUID{p.uuids * 37, 1, p.uuids}
		},
	})
	check(p.t, err)
	return path
}

func (p *primary) log() (entries []bson.Raw) {
	read(p.t, p.store, func(r *storage.Reader) {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			entries = append(entries, e.Raw)
		}
	})
	return entries
}

func (p *primary) session(n int) *opwrite.Session {
	lsid := document(p.t, bson.D{
		{Key: "id", Value: bson.Binary{Subtype: 4, Data: append([]byte{byte(n)}, make([]byte, 15)...)}},
		{Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}},
	})
	return &opwrite.Session{LSID: lsid, TxnNumber: p.numbers[n]}
}

// refused are the errors that random writes may meet.
func (p *primary) refused(err error) {
	p.t.Helper()
	if _, ok := errors.AsType[*servererr.Error](err); err != nil && !ok && !errors.Is(err, storage.ErrWriteConflict) {
		p.t.Fatal(err)
	}
}

func (p *primary) write(fn func(b *opwrite.Batch) error) {
	p.t.Helper()
	p.refused(p.path.Write(fn))
}

func (p *primary) step() {
	switch kind := rapid.IntRange(0, 19).Draw(p.rt, "kind"); {
	case kind < 9:
		p.write(func(b *opwrite.Batch) error { return p.crud(b, p.stmt(), kind) })
	case kind < 15:
		p.transaction()
	default:
		p.write(func(b *opwrite.Batch) error { return p.ddl(b) })
	}
}

// stmt returns a statement of a session, or none.
func (p *primary) stmt() func() opwrite.Stmt {
	n := rapid.IntRange(-1, len(p.numbers)-1).Draw(p.rt, "session")
	if n < 0 || p.open[n] != nil {
		return func() opwrite.Stmt { return opwrite.Stmt{} }
	}
	if p.stmts[n] == nil || rapid.Bool().Draw(p.rt, "new number") {
		p.numbers[n]++
		p.stmts[n] = map[int32]bool{}
	}
	return func() opwrite.Stmt {
		id := int32(len(p.stmts[n]))
		p.stmts[n][id] = false
		return opwrite.Stmt{Session: p.session(n), ID: id}
	}
}

func (p *primary) done(s opwrite.Stmt) {
	if s.Session != nil {
		_, data := s.Session.LSID.Lookup("id").Binary()
		p.stmts[data[0]][s.ID] = true
	}
}

func (p *primary) ns() oplog.Namespace {
	return rapid.SampledFrom([]oplog.Namespace{"a.x", "a.y", "b.x", "b.capped"}).Draw(p.rt, "ns")
}

func (p *primary) doc(id any) bson.Raw {
	return document(p.t, bson.D{
		{Key: "_id", Value: id},
		{Key: "n", Value: rapid.Int32Range(0, 3).Draw(p.rt, "n")},
		{Key: "s", Value: strings.Repeat("s", rapid.IntRange(0, 90).Draw(p.rt, "s"))},
	})
}

// collection finds a collection, or makes it.
func (p *primary) collection(ops opwrite.Ops) (*storage.Collection, error) {
	ns := p.ns()
	if c, ok := ops.View().Collection(ns); ok {
		return c, nil
	}
	options := bson.D{}
	if ns.Collection() == "capped" {
		options = bson.D{{Key: "capped", Value: true}, {Key: "size", Value: int32(4096)}, {Key: "max", Value: int32(4)}}
	}
	return ops.Create(ns, document(p.t, options), nil)
}

func (p *primary) pick(c *storage.Collection) (storage.Record, bool) {
	all := slices.Collect(c.Natural(0))
	if len(all) == 0 {
		return storage.Record{}, false
	}
	return rapid.SampledFrom(all).Draw(p.rt, "doc"), true
}

func (p *primary) crud(ops opwrite.Ops, stmt func() opwrite.Stmt, kind int) error {
	c, err := p.collection(ops)
	if err != nil {
		return err
	}
	old, ok := p.pick(c)
	switch {
	case kind < 4 || !ok:
		var docs []bson.Raw
		var stmts []opwrite.Stmt
		for range rapid.IntRange(1, 6).Draw(p.rt, "docs") {
			docs = append(docs, p.doc(rapid.Int32Range(0, 40).Draw(p.rt, "id")))
			if s := stmt(); s.Session != nil {
				stmts = append(stmts, s)
			}
		}
		n, err := ops.Insert(c, docs, stmts)
		for i := range stmts[:min(n, len(stmts))] {
			p.done(stmts[i])
		}
		return err
	case kind < 7:
		s, up := stmt(), p.update(&old)
		if s.Session != nil && s.ID == 0 { // a findAndModify is alone under its number
			up.Image = rapid.SampledFrom([]opwrite.Image{opwrite.NoImage, opwrite.PreImage, opwrite.PostImage}).Draw(p.rt, "image")
		}
		if string(up.Post) == string(old.Doc) {
			return nil
		}
		if err = ops.Update(c, old, up, s); err == nil {
			p.done(s)
		}
		return err
	case kind < 8:
		s, image := stmt(), opwrite.NoImage
		if s.Session != nil && s.ID == 0 && rapid.Bool().Draw(p.rt, "image") {
			image = opwrite.PreImage
		}
		if err = ops.Delete(c, old, s, image); err == nil {
			p.done(s)
		}
		return err
	default:
		if b, ok := ops.(*opwrite.Batch); ok {
			return b.DeleteMany(c, slices.Collect(c.Natural(0)))
		}
		return ops.Delete(c, old, opwrite.Stmt{}, opwrite.NoImage)
	}
}

func (p *primary) update(old *storage.Record) opwrite.Update {
	id := old.Doc.Lookup("_id")
	post := p.doc(id)
	switch rapid.IntRange(0, 2).Draw(p.rt, "form") {
	case 0:
		return opwrite.Update{Post: post}
	case 1:
		return opwrite.Update{Post: post, ByPipeline: true}
	}
	// By operators: the fields set are logged in both forms.
	e, _ := rawbson.Lookup(post, "n")
	set := bson.D{{Key: "n", Value: e.Raw()}}
	post, err := update.Apply(old.Doc, document(p.t, bson.D{{Key: "$set", Value: set}}))
	check(p.t, err)
	diff, _ := update.Diff(old.Doc, post, 0)
	if len(diff) <= rawbson.MinSize {
		diff = nil
	}
	if diff == nil {
		return opwrite.Update{Post: post}
	}
	return opwrite.Update{Post: post, Delta: diff, Modifiers: document(p.t, bson.D{{Key: "$set", Value: set}})}
}

func (p *primary) transaction() {
	n := rapid.IntRange(0, len(p.open)-1).Draw(p.rt, "session")
	txn := p.open[n]
	if txn == nil {
		p.numbers[n]++
		p.stmts[n] = nil
		p.write(func(b *opwrite.Batch) error {
			p.open[n] = b.Begin(p.session(n), bson.Timestamp{})
			return nil
		})
		return
	}
	p.write(func(b *opwrite.Batch) error {
		var err error
		switch rapid.IntRange(0, 9).Draw(p.rt, "in transaction") {
		case 0:
			p.open[n] = nil
			return txn.Abort(b)
		case 1:
			at, err := txn.Prepare(b)
			if err == nil && rapid.Bool().Draw(p.rt, "decided") {
				p.open[n] = nil
				_, err = txn.CommitPrepared(b, at.TS)
			}
			return err
		case 2:
			if _, err = txn.Commit(b); err == nil {
				p.open[n] = nil
			}
			return err
		default:
			err = p.crud(txn, func() opwrite.Stmt { return opwrite.Stmt{} }, rapid.IntRange(0, 8).Draw(p.rt, "kind"))
			if errors.Is(err, storage.ErrWriteConflict) {
				p.open[n] = nil
				return txn.Abort(b)
			}
			return err
		}
	})
}

func (p *primary) ddl(b *opwrite.Batch) error {
	c, err := p.collection(b)
	if err != nil {
		return err
	}
	switch rapid.IntRange(0, 11).Draw(p.rt, "ddl") {
	case 0:
		return b.Drop(c)
	case 1:
		return b.DropDatabase(c.NS.DB())
	case 2, 3:
		to := p.ns()
		target, taken := b.View().Collection(to)
		if to == c.NS {
			return nil
		}
		if !taken {
			target = nil
		}
		return b.Rename(c, to, target, rapid.Bool().Draw(p.rt, "stayTemp"))
	case 4, 5:
		if len(c.Indexes) > 1 {
			return b.DropIndex(c, "n_1")
		}
		return b.CreateIndexes(c, []bson.Raw{document(p.t, bson.D{
			{Key: "v", Value: int32(2)},
			{Key: "unique", Value: rapid.Bool().Draw(p.rt, "unique")},
			{Key: "key", Value: bson.D{{Key: "n", Value: int32(1)}}},
			{Key: "name", Value: "n_1"},
		})})
	case 6:
		if c.CappedBytes == 0 {
			return b.ConvertToCapped(c, 512)
		}
		return b.EmptyCapped(c)
	case 7:
		if len(c.Indexes) < 2 {
			return nil
		}
		changes := document(p.t, bson.D{{Key: "index", Value: bson.D{{Key: "name", Value: "n_1"}, {Key: "hidden", Value: rapid.Bool().Draw(p.rt, "hidden")}}}})
		return p.collMod(b, c, changes)
	case 8:
		return p.collMod(b, c, document(p.t, bson.D{{Key: "validator", Value: bson.D{{Key: "n", Value: int32(1)}}}}))
	case 9:
		return b.Note(document(p.t, bson.D{{Key: "msg", Value: "note"}}))
	case 10:
		_, err := b.Create("b.temporary", document(p.t, bson.D{{Key: "temp", Value: true}}), nil)
		return errors.Join(err, b.StepUp())
	default:
		var ops bson.A
		for range rapid.IntRange(0, 3).Draw(p.rt, "applied") {
			doc := p.doc(rapid.Int32Range(0, 40).Draw(p.rt, "id"))
			id := bson.D{{Key: "_id", Value: doc.Lookup("_id")}}
			ops = append(ops, rapid.SampledFrom([]bson.D{
				{{Key: "op", Value: "i"}, {Key: "ns", Value: c.NS}, {Key: "o", Value: doc}},
				{{Key: "op", Value: "u"}, {Key: "ns", Value: c.NS}, {Key: "o2", Value: id}, {Key: "o", Value: doc}},
				{{Key: "op", Value: "u"}, {Key: "ns", Value: c.NS}, {Key: "o2", Value: id}, {Key: "o", Value: bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "n", Value: int32(9)}}}}}}}},
				{{Key: "op", Value: "d"}, {Key: "ns", Value: c.NS}, {Key: "o", Value: id}},
			}).Draw(p.rt, "op"))
		}
		_, err := replay.ApplyOps(b, document(p.t, bson.D{{Key: "applyOps", Value: ops}, {Key: "allowAtomic", Value: rapid.Bool().Draw(p.rt, "atomic")}}))
		return err
	}
}

func (p *primary) collMod(b *opwrite.Batch, c *storage.Collection, changes bson.Raw) error {
	options, index, spec, err := replay.Modified(c, changes)
	if err != nil {
		return err
	}
	o := append(bson.D{{Key: "collMod", Value: c.NS.Collection()}}, elements(p.t, changes)...)
	return b.CollMod(c, options, index, spec, document(p.t, o), document(p.t, bson.D{}))
}

func elements(t *testing.T, doc bson.Raw) bson.D {
	t.Helper()
	var d bson.D
	check(t, bson.Unmarshal(doc, &d))
	return d
}

// takeOver makes a primary of another store and checks that it knows what this
// one has promised.
func (p *primary) takeOver(store *storage.Store, prepared []opwrite.Prepared) {
	p.t.Helper()
	path := p.newPath(store)
	waiting := 0
	for n, txn := range p.open {
		if txn != nil {
			check(p.t, p.path.Write(func(b *opwrite.Batch) error {
				state, err := b.SessionRecord(p.session(n).LSID)
				if err == nil && state.State == opwrite.StatePrepared && state.TxnNumber == p.numbers[n] {
					waiting++
				}
				return err
			}))
		}
	}
	if waiting != len(prepared) {
		p.t.Fatalf("%d prepared transactions were found, %d wait", len(prepared), waiting)
	}
	check(p.t, path.Write(func(b *opwrite.Batch) error {
		for n, stmts := range p.stmts {
			for id, want := range stmts {
				entry, _, done, err := b.Executed(opwrite.Stmt{Session: p.session(n), ID: id})
				if err != nil || done != want {
					p.t.Fatalf("statement %d of session %d, number %d: executed %v, %v, want %v; entry %s", id, n, p.numbers[n], done, err, want, entry.Raw)
				}
			}
		}
		for _, one := range prepared {
			if _, err := path.Adopt(one).CommitPrepared(b, one.At.TS); err != nil {
				return err
			}
		}
		return nil
	}))
}
