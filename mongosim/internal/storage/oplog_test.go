package storage_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func TestOplog(t *testing.T) {
	entry := doc(t, bson.D{{Key: "x", Value: strings.Repeat("e", 80)}})
	s := storage.New(storage.Options{OplogBytes: int64(len(entry)) * 5})
	at := func(n int) oplog.OpTime { return oplog.NewOpTime(uint32(n), 1, 1) }
	write(t, s, func(w *storage.Writer) {
		for n := 1; n <= 9; n++ {
			w.Append(entry, at(n))
		}
	})
	list := func(from, back uint32) (forward, backward []uint32) {
		_ = s.Read(func(r *storage.Reader) error {
			for e := range r.Oplog().From(bson.Timestamp{T: from}) {
				forward = append(forward, e.At.TS.T)
			}
			for e := range r.Oplog().Backward(bson.Timestamp{T: back}) {
				backward = append(backward, e.At.TS.T)
			}
			return nil
		})
		return forward, backward
	}
	check := func(what string, got, want []uint32) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	forward, backward := list(4, 0)
	check("nothing is dropped before it is stable", forward, []uint32{4, 5, 6, 7, 8, 9})
	check("backward", backward, []uint32{9, 8, 7, 6, 5, 4, 3, 2, 1})
	write(t, s, func(w *storage.Writer) { w.SetStable(bson.Timestamp{T: 3, I: 1}) })
	forward, backward = list(0, 6)
	check("what is not stable stays", forward, []uint32{4, 5, 6, 7, 8, 9})
	check("backward from 6", backward, []uint32{5, 4})
	write(t, s, func(w *storage.Writer) {
		if err := w.RollbackTo(bson.Timestamp{T: 7, I: 1}); err != nil {
			t.Fatal(err)
		}
		w.Append(entry, oplog.NewOpTime(8, 1, 2))
		w.SetStable(bson.Timestamp{T: 8, I: 1})
	})
	forward, _ = list(0, 0)
	check("after a rollback", forward, []uint32{4, 5, 6, 7, 8})
	_ = s.Read(func(r *storage.Reader) error {
		v := r.Oplog()
		if e, ok := v.At(bson.Timestamp{T: 8, I: 1}); !ok || e.At.Term != 2 {
			t.Errorf("entry 8: %v, %t", e.At, ok)
		}
		if _, ok := v.At(bson.Timestamp{T: 8, I: 2}); ok {
			t.Error("an entry that is not there")
		}
		first, _ := v.First()
		last, _ := v.Last()
		if first.At.TS.T != 4 || last.At.TS.T != 8 || v.Len() != 5 || v.Bytes() != int64(len(entry))*5 || v.MaxBytes() != v.Bytes() {
			t.Errorf("%v to %v, %d entries, %d bytes", first.At, last.At, v.Len(), v.Bytes())
		}
		return nil
	})
}

// TestHoldOplog keeps what an undecided transaction needs, also if its decision is
// rolled back.
func TestHoldOplog(t *testing.T) {
	entry := doc(t, bson.D{{Key: "x", Value: strings.Repeat("e", 80)}})
	s := storage.New(storage.Options{OplogBytes: int64(len(entry)) * 2})
	ts := func(n uint32) bson.Timestamp { return bson.Timestamp{T: n, I: 1} }
	first := func(s *storage.Store) (first uint32) {
		_ = s.Read(func(r *storage.Reader) error {
			e, _ := r.Oplog().First()
			first = e.At.TS.T
			return nil
		})
		return first
	}
	check := func(what string, s *storage.Store, want uint32) {
		t.Helper()
		if got := first(s); got != want {
			t.Errorf("%s the oplog begins at %d, want %d", what, got, want)
		}
	}
	write(t, s, func(w *storage.Writer) {
		for n := range uint32(9) {
			w.Append(entry, oplog.NewOpTime(n+1, 1, 1))
		}
		w.HoldOplog(ts(3))
		w.HoldOplog(bson.Timestamp{})
		w.ReleaseOplog(ts(1), ts(2)) // not held
		w.SetStable(ts(7))
	})
	check("held", s, 3)
	write(t, s, func(w *storage.Writer) { w.ReleaseOplog(ts(3), ts(8)) })
	check("not stable,", s, 3)
	copied, err := s.CloneAt(ts(7), storage.Options{OplogBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	write(t, copied, func(w *storage.Writer) { w.Append(entry, oplog.NewOpTime(8, 1, 1)) })
	check("in a copy from before the release", copied, 3)
	write(t, s, func(w *storage.Writer) {
		if err := w.RollbackTo(ts(7)); err != nil {
			t.Fatal(err)
		}
		for n := range uint32(3) {
			w.Append(entry, oplog.NewOpTime(8+n, 1, 2))
		}
		w.SetStable(ts(9))
	})
	check("the release rolled back,", s, 3)
	write(t, s, func(w *storage.Writer) { w.ReleaseOplog(ts(3), ts(9)) })
	check("released", s, 9)
}
