package storage_test

import (
	"runtime"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func TestMemoryFollowsTheStableTimestamp(t *testing.T) {
	const updates = 100_000
	s := created(t, storage.Options{}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 1}, bson.D{{Key: "_id", Value: 1}})
	body := doc(t, bson.D{{Key: "_id", Value: 1}, {Key: "s", Value: strings.Repeat("x", 1000)}})
	before := heap()
	for n := range uint32(updates) {
		at := bson.Timestamp{T: 2 + n/100, I: n % 100}
		write(t, s, func(w *storage.Writer) {
			u := w.Begin(bson.Timestamp{})
			if err := u.Update(coll, 1, body); err != nil {
				t.Fatal(err)
			}
			u.Commit(at)
			w.SetStable(at)
		})
	}
	if grown := heap() - before; grown > 2<<20 { // the last 5 seconds are 500 updates
		t.Errorf("%d KiB for one document", grown>>10)
	}
	if got := len(natural(s, bson.Timestamp{})); got != 1 {
		t.Errorf("%d documents", got)
	}
	runtime.KeepAlive(s)
}

func TestMemoryOfDeletedDocuments(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	before := heap()
	for n := range uint32(50_000) {
		at := bson.Timestamp{T: 2 + n/100, I: n % 100}
		write(t, s, func(w *storage.Writer) {
			u := w.Begin(bson.Timestamp{})
			if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: n}, {Key: "s", Value: strings.Repeat("x", 500)}})); err != nil {
				t.Fatal(err)
			}
			if n >= 100 {
				if err := u.Delete(coll, storage.RecordID(n-99)); err != nil {
					t.Fatal(err)
				}
			}
			u.Commit(at)
			w.SetStable(at)
		})
	}
	if grown := heap() - before; grown > 3<<20 {
		t.Errorf("%d KiB for 100 documents", grown>>10)
	}
	if got := len(natural(s, bson.Timestamp{})); got != 100 {
		t.Errorf("%d documents", got)
	}
	runtime.KeepAlive(s)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestManyCollections(t *testing.T) {
	s := storage.New(storage.Options{})
	const n = 10_000
	for i := range uint32(n) {
		id := oplog.UUID{byte(i), byte(i >> 8), 1}
		ns := oplog.NewNamespace("db", "c"+strings.Repeat("x", int(i%7))+string(rune('a'+i%26))+"."+id.String())
		commit(t, s, bson.Timestamp{T: 1, I: i}, func(u *storage.Unit) error { return u.Create(ns, id, nil, idSpec()) })
	}
	_ = s.Read(func(r *storage.Reader) error {
		if got := len(r.View(bson.Timestamp{}).Collections("db")); got != n {
			t.Errorf("%d collections, want %d", got, n)
		}
		if got := len(r.View(bson.Timestamp{T: 1, I: 99}).Collections("db")); got != 100 {
			t.Errorf("%d collections at an older time, want 100", got)
		}
		return nil
	})
}
