package storage_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// body is a document of 200 bytes; setID changes its _id.
func body(b *testing.B) bson.Raw {
	b.Helper()
	return doc(b, bson.D{{Key: "_id", Value: bson.ObjectID{}}, {Key: "s", Value: strings.Repeat("x", 170)}})
}

func setID(d bson.Raw, n uint32) { binary.BigEndian.PutUint32(d[17:], n) }

// stream commits one write per turn, with the stable timestamp close behind.
func stream(b *testing.B, s *storage.Store, fn func(u *storage.Unit, n uint32) error) {
	b.Helper()
	b.ReportAllocs()
	n := uint32(0)
	for b.Loop() {
		err := s.Write(func(w *storage.Writer) error {
			u := w.Begin(bson.Timestamp{})
			if err := fn(u, n); err != nil {
				return err
			}
			at := bson.Timestamp{T: 10 + n/30_000, I: n % 30_000}
			u.Commit(at)
			w.SetStable(at)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

func start(b *testing.B, n uint32) (*storage.Store, bson.Raw) {
	b.Helper()
	s := created(b, storage.Options{}, "db.c", nil)
	d := body(b)
	commit(b, s, bson.Timestamp{T: 2}, func(u *storage.Unit) error {
		for i := range n {
			setID(d, i)
			if _, err := u.Insert(coll, d); err != nil {
				return err
			}
		}
		return nil
	})
	return s, d
}

func BenchmarkInsert(b *testing.B) {
	s, d := start(b, 0)
	stream(b, s, func(u *storage.Unit, n uint32) error {
		setID(d, n)
		_, err := u.Insert(coll, d)
		return err
	})
}

func BenchmarkInsertUnique(b *testing.B) {
	s, d := start(b, 0)
	spec := doc(b, bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}, {Key: "s", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}})
	commit(b, s, bson.Timestamp{T: 3}, func(u *storage.Unit) error { return u.AddIndex(coll, spec, oplog.UUID{}) })
	stream(b, s, func(u *storage.Unit, n uint32) error {
		setID(d, n)
		_, err := u.Insert(coll, d)
		return err
	})
}

func BenchmarkUpdate(b *testing.B) {
	const docs = 100_000
	s, d := start(b, docs)
	stream(b, s, func(u *storage.Unit, n uint32) error {
		i := n * 7919 % docs
		setID(d, i)
		return u.Update(coll, storage.RecordID(i+1), d)
	})
}

func BenchmarkGet(b *testing.B) {
	const docs = 100_000
	s, d := start(b, docs)
	_ = s.Read(func(r *storage.Reader) error {
		c, _ := r.View(bson.Timestamp{}).Collection("db.c")
		b.ReportAllocs()
		n := uint32(0)
		for b.Loop() {
			setID(d, n*7919%docs)
			n++
			if _, ok := c.Get(bson.RawValue{Type: bson.TypeObjectID, Value: d[9:21]}); !ok {
				b.Fatal("not found")
			}
		}
		return nil
	})
}

func BenchmarkNatural(b *testing.B) {
	const docs = 100_000
	s, _ := start(b, docs)
	_ = s.Read(func(r *storage.Reader) error {
		c, _ := r.View(bson.Timestamp{}).Collection("db.c")
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range c.Natural(0) {
				n++
			}
			if n != docs {
				b.Fatalf("%d documents", n)
			}
		}
		return nil
	})
}
