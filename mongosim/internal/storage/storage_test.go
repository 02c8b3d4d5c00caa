package storage_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

var coll = oplog.UUID{1}

func doc(t testing.TB, d bson.D) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, s *storage.Store, fn func(w *storage.Writer)) {
	t.Helper()
	if err := s.Write(func(w *storage.Writer) error { fn(w); return nil }); err != nil {
		t.Fatal(err)
	}
}

// commit runs fn on a unit of its own and commits it.
func commit(t testing.TB, s *storage.Store, at bson.Timestamp, fn func(u *storage.Unit) error) {
	t.Helper()
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		if err := fn(u); err != nil {
			t.Fatal(err)
		}
		u.Commit(at)
	})
}

func created(t testing.TB, opts storage.Options, ns oplog.Namespace, options bson.Raw) *storage.Store {
	t.Helper()
	s := storage.New(opts)
	commit(t, s, bson.Timestamp{T: 1}, func(u *storage.Unit) error { return u.Create(ns, coll, options, idSpec()) })
	return s
}

func insert(t testing.TB, s *storage.Store, at bson.Timestamp, docs ...bson.D) {
	t.Helper()
	commit(t, s, at, func(u *storage.Unit) error {
		for _, d := range docs {
			if _, err := u.Insert(coll, doc(t, d)); err != nil {
				return err
			}
		}
		return nil
	})
}

// natural returns the documents of the collection in natural order.
func natural(s *storage.Store, at bson.Timestamp) []string {
	out := []string{}
	_ = s.Read(func(r *storage.Reader) error {
		c, ok := r.View(at).ByUUID(coll)
		if !ok {
			return nil
		}
		for rec := range c.Natural(0) {
			out = append(out, rec.Doc.Lookup("_id").String())
		}
		return nil
	})
	return out
}

func code(err error) servererr.Code {
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok {
		return 0
	}
	return e.Code
}

func TestUnitsEndWithTheirWrite(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	var left, kept *storage.Unit
	write(t, s, func(w *storage.Writer) {
		left, kept = w.Begin(bson.Timestamp{}), w.Begin(bson.Timestamp{})
		kept.Keep()
		for id, u := range []*storage.Unit{left, kept} {
			if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: id}})); err != nil {
				t.Fatal(err)
			}
		}
	})
	if left.Open() || !kept.Open() {
		t.Errorf("left open %t, kept open %t", left.Open(), kept.Open())
	}
	write(t, s, func(*storage.Writer) {
		if _, err := left.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 3}})); !errors.Is(err, storage.ErrEnded) {
			t.Errorf("insert by an ended unit: %v", err)
		}
		left.Abort()
		kept.Commit(bson.Timestamp{T: 2})
	})
	if got, want := natural(s, bson.Timestamp{}), []string{`{"$numberInt":"1"}`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAPanicEndsTheWrite(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	func() {
		defer func() { _ = recover() }()
		_ = s.Write(func(w *storage.Writer) error {
			u := w.Begin(bson.Timestamp{})
			if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 1}})); err != nil {
				t.Error(err)
			}
			panic("test")
		})
	}()
	if got := natural(s, bson.Timestamp{}); len(got) != 0 {
		t.Errorf("got %v, want nothing", got)
	}
}

func TestInvariants(t *testing.T) {
	at := func(i uint32) oplog.OpTime { return oplog.NewOpTime(1, i, 1) }
	tests := map[string]func(w *storage.Writer, u *storage.Unit){
		"append at the same optime": func(w *storage.Writer, _ *storage.Unit) { w.Append(idSpec(), at(5)); w.Append(idSpec(), at(5)) },
		"append of an older term": func(w *storage.Writer, _ *storage.Unit) {
			w.Append(idSpec(), at(5))
			w.Append(idSpec(), oplog.NewOpTime(1, 6, 0))
		},
		"commit at no time":  func(_ *storage.Writer, u *storage.Unit) { u.Commit(bson.Timestamp{}) },
		"commit in the past": func(_ *storage.Writer, u *storage.Unit) { u.Commit(bson.Timestamp{T: 1}) },
		"commit twice": func(_ *storage.Writer, u *storage.Unit) {
			u.Commit(bson.Timestamp{T: 5})
			u.Commit(bson.Timestamp{T: 5})
		},
		"commit after abort":  func(_ *storage.Writer, u *storage.Unit) { u.Abort(); u.Commit(bson.Timestamp{T: 5}) },
		"prepare after abort": func(_ *storage.Writer, u *storage.Unit) { u.Abort(); u.Prepare(bson.Timestamp{T: 5}) },
		"commit before prepare": func(_ *storage.Writer, u *storage.Unit) {
			u.Prepare(bson.Timestamp{T: 5})
			u.Commit(bson.Timestamp{T: 4})
		},
	}
	for name, fn := range tests {
		t.Run(name, func(t *testing.T) {
			s := created(t, storage.Options{}, "db.c", nil)
			insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: 1}})
			defer func() {
				if r, ok := recover().(string); !ok || !strings.Contains(r, "invariant") {
					t.Errorf("recovered %v, want a broken invariant", r)
				}
			}()
			_ = s.Write(func(w *storage.Writer) error {
				u := w.Begin(bson.Timestamp{})
				if err := u.Update(coll, 1, doc(t, bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}})); err != nil {
					t.Error(err)
				}
				fn(w, u)
				return nil
			})
			t.Error("no panic")
		})
	}
}

func TestLocalHasNoVersions(t *testing.T) {
	s := storage.New(storage.Options{})
	other := oplog.UUID{2}
	commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error { return u.Create("local.x", coll, nil, idSpec()) })
	commit(t, s, bson.Timestamp{T: 5}, func(u *storage.Unit) error { return u.Create("db.c", other, nil, idSpec()) })
	for n := range 3 {
		commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error {
			if n == 0 {
				_, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 1}}))
				return err
			}
			return u.Update(coll, 1, doc(t, bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: n}}))
		})
	}
	check := func(s *storage.Store, at bson.Timestamp, want int) {
		t.Helper()
		_ = s.Read(func(r *storage.Reader) error {
			c, ok := r.View(at).Collection("local.x")
			if !ok {
				t.Fatal("local.x is not there")
			}
			rec, ok := c.Get(bson.RawValue{Type: bson.TypeInt32, Value: []byte{1, 0, 0, 0}})
			if n := int(rec.Doc.Lookup("n").AsInt64()); !ok || n != want {
				t.Errorf("at %v: %s, want %d", at, rec.Doc, want)
			}
			if c.Len() != 1 {
				t.Errorf("at %v there are %d", at, c.Len())
			}
			return nil
		})
	}
	check(s, bson.Timestamp{}, 2)
	check(s, bson.Timestamp{T: 1}, 2)
	write(t, s, func(w *storage.Writer) {
		// A transaction that began long ago sees it too.
		u := w.Begin(bson.Timestamp{T: 5})
		if err := u.Update(coll, 1, doc(t, bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 3}})); err != nil {
			t.Error(err)
		}
		u.Abort()
		if err := w.RollbackTo(bson.Timestamp{T: 1}); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.View(bson.Timestamp{}).Collection("db.c"); ok {
			t.Error("db.c is still there")
		}
	})
	check(s, bson.Timestamp{}, 2)

	c, err := s.CloneAt(bson.Timestamp{}, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Read(func(r *storage.Reader) error {
		if got := r.View(bson.Timestamp{}).Databases(); len(got) != 0 {
			t.Errorf("the copy has %v", got)
		}
		return nil
	})
	s.Become(c)
	check(s, bson.Timestamp{}, 2)
	commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error { return u.Delete(coll, 1) })
	commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error { return u.Drop(coll) })
	commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error { return u.Create("local.x", coll, nil, idSpec()) })
	if got := natural(s, bson.Timestamp{}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestPins(t *testing.T) {
	s := created(t, storage.Options{HistorySeconds: 1}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 10}, bson.D{{Key: "_id", Value: 1}})
	release, err := s.Pin(bson.Timestamp{T: 10})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, bson.Timestamp{T: 20}, func(u *storage.Unit) error { return u.Delete(coll, 1) })
	write(t, s, func(w *storage.Writer) { w.SetStable(bson.Timestamp{T: 100}) })
	if got := natural(s, bson.Timestamp{T: 10}); len(got) != 1 {
		t.Errorf("pinned, and yet %v", got)
	}
	release()
	release()
	write(t, s, func(w *storage.Writer) { w.SetStable(bson.Timestamp{T: 101}) })
	_, err = s.Pin(bson.Timestamp{T: 10})
	if code(err) != servererr.SnapshotTooOld {
		t.Errorf("got %v, want SnapshotTooOld", err)
	}
	if _, err := s.CloneAt(bson.Timestamp{T: 10}, storage.Options{}); code(err) != servererr.SnapshotTooOld {
		t.Errorf("got %v, want SnapshotTooOld", err)
	}
	if got := natural(s, bson.Timestamp{T: 100}); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestChanged(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	steps := []struct {
		name string
		want bool
		fn   func(w *storage.Writer)
	}{
		{"nothing", false, func(*storage.Writer) {}},
		{"abort", false, func(w *storage.Writer) { w.Begin(bson.Timestamp{}).Abort() }},
		{"empty commit", false, func(w *storage.Writer) { w.Begin(bson.Timestamp{}).Commit(bson.Timestamp{T: 2}) }},
		{"append", true, func(w *storage.Writer) { w.Append(idSpec(), oplog.NewOpTime(3, 1, 1)) }},
		{"stable", true, func(w *storage.Writer) { w.SetStable(bson.Timestamp{T: 3}) }},
		{"stable back", false, func(w *storage.Writer) { w.SetStable(bson.Timestamp{T: 2}) }},
		{"rollback", true, func(w *storage.Writer) {
			if err := w.RollbackTo(bson.Timestamp{T: 4}); err != nil {
				t.Error(err)
			}
		}},
		{"commit", true, func(w *storage.Writer) {
			u := w.Begin(bson.Timestamp{})
			if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 1}})); err != nil {
				t.Error(err)
			}
			u.Commit(bson.Timestamp{T: 5})
		}},
	}
	for _, step := range steps {
		c := s.Changed()
		write(t, s, step.fn)
		select {
		case <-c:
			if !step.want {
				t.Errorf("%s: a signal", step.name)
			}
		default:
			if step.want {
				t.Errorf("%s: no signal", step.name)
			}
		}
	}
}

func TestFull(t *testing.T) {
	full := false
	s := created(t, storage.Options{Full: func() bool { return full }}, "db.c", nil)
	full = true
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 1}})); code(err) != servererr.OutOfDiskSpace {
			t.Errorf("insert: %v", err)
		}
		if err := u.Create("db.d", oplog.UUID{3}, nil, nil); code(err) != servererr.OutOfDiskSpace {
			t.Errorf("create: %v", err)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	french := bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: int32(2)}}
	s := created(t, storage.Options{}, "db.c", doc(t, bson.D{{Key: "collation", Value: french}}))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 200 {
				id := bson.D{{Key: "_id", Value: string(rune('a'+g)) + string(rune('a'+n%20))}}
				changed := s.Changed()
				release, err := s.Pin(bson.Timestamp{})
				if err != nil {
					t.Error(err)
					return
				}
				_ = s.Read(func(r *storage.Reader) error {
					c, _ := r.View(bson.Timestamp{}).Collection("db.c")
					c.Get(doc(t, id).Lookup("_id"))
					before := ""
					for rec := range c.ByID(storage.Bound{}, storage.Bound{}, false) {
						if id := rec.Doc.Lookup("_id").StringValue(); id <= before {
							t.Errorf("%s after %s", id, before)
						} else {
							before = id
						}
					}
					return nil
				})
				write(t, s, func(w *storage.Writer) {
					u := w.Begin(bson.Timestamp{})
					c, _ := u.View().Collection("db.c")
					at := bson.Timestamp{T: w.Newest().T + 1}
					var err error
					if r, ok := c.Get(doc(t, id).Lookup("_id")); ok {
						err = u.Delete(coll, r.ID)
					} else {
						_, err = u.Insert(coll, doc(t, id))
					}
					if err != nil {
						t.Error(err)
					}
					u.Commit(at)
					w.SetStable(at)
				})
				<-changed
				release()
			}
		})
	}
	wg.Wait()
}

// TestRollbackOfALateCommit undoes the commit of a prepared unit that is seen from
// long before the stable timestamp on, for its entry is after it.
func TestRollbackOfALateCommit(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: "kept"}})
	var u *storage.Unit
	write(t, s, func(w *storage.Writer) {
		u = w.Begin(bson.Timestamp{})
		if err := u.Delete(coll, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: "late"}})); err != nil {
			t.Fatal(err)
		}
		u.Prepare(bson.Timestamp{T: 10})
		w.SetStable(bson.Timestamp{T: 100})
	})
	write(t, s, func(w *storage.Writer) {
		u.CommitAt(bson.Timestamp{T: 10}, bson.Timestamp{T: 101})
		w.SetStable(bson.Timestamp{T: 100, I: 1})
	})
	if got, want := natural(s, bson.Timestamp{T: 100}), []string{`"late"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	write(t, s, func(w *storage.Writer) {
		if err := w.RollbackTo(bson.Timestamp{T: 100, I: 2}); err != nil {
			t.Fatal(err)
		}
	})
	if got, want := natural(s, bson.Timestamp{}), []string{`"kept"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestSnapshotFromBeforeALateCommit has a unit whose snapshot is newer than the
// time of a commit, and older than the commit itself.
func TestSnapshotFromBeforeALateCommit(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: 1}})
	var late, reader *storage.Unit
	write(t, s, func(w *storage.Writer) {
		late = w.Begin(bson.Timestamp{})
		if err := late.Delete(coll, 1); err != nil {
			t.Fatal(err)
		}
		late.Prepare(bson.Timestamp{T: 10})
	})
	insert(t, s, bson.Timestamp{T: 50}, bson.D{{Key: "_id", Value: 2}})
	write(t, s, func(w *storage.Writer) {
		reader = w.Begin(bson.Timestamp{})
		reader.Keep()
	})
	write(t, s, func(w *storage.Writer) {
		late.CommitAt(bson.Timestamp{T: 10}, bson.Timestamp{T: 51})
		w.SetStable(bson.Timestamp{T: 100})
	})
	write(t, s, func(*storage.Writer) {
		if c, _ := reader.View().ByUUID(coll); c.Len() != 2 {
			t.Errorf("%d documents in a snapshot that had 2", c.Len())
		}
		if err := reader.Update(coll, 1, doc(t, bson.D{{Key: "_id", Value: 1}})); !errors.Is(err, storage.ErrWriteConflict) {
			t.Errorf("update of what has been deleted: %v", err)
		}
	})
	if got := natural(s, bson.Timestamp{T: 50}); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}
