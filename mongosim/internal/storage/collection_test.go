package storage_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func TestCapped(t *testing.T) {
	size := len(doc(t, bson.D{{Key: "_id", Value: int32(1)}}))
	tests := []struct {
		name    string
		options bson.D
		want    int // documents that are left after each insert, at most
	}{
		{"by number", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: int32(1 << 20)}, {Key: "max", Value: int32(3)}}, 3},
		{"by size", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: int64(size*4 + 1)}}, 4},
		{"smaller than a document", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: float64(1)}}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := created(t, storage.Options{}, "db.c", doc(t, tt.options))
			for n := range int32(200) {
				commit(t, s, bson.Timestamp{T: 2, I: uint32(n)}, func(u *storage.Unit) error {
					if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: n}})); err != nil {
						return err
					}
					c, _ := u.View().ByUUID(coll)
					for _, r := range c.Excess() {
						if want := int64(n) - int64(tt.want); r.Doc.Lookup("_id").AsInt64() != want {
							t.Fatalf("%s goes after %d was inserted", r.Doc, n)
						}
						if err := u.Delete(coll, r.ID); err != nil {
							return err
						}
					}
					if c.Len() != min(int(n)+1, tt.want) {
						t.Fatalf("%d are left", c.Len())
					}
					return nil
				})
			}
			write(t, s, func(w *storage.Writer) {
				if err := w.RollbackTo(bson.Timestamp{T: 2, I: 50}); err != nil {
					t.Fatal(err)
				}
				u := w.Begin(bson.Timestamp{})
				if _, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: int32(999)}})); err != nil {
					t.Fatal(err)
				}
				c, _ := u.View().ByUUID(coll)
				if got := c.Excess(); len(got) != 1 || got[0].Doc.Lookup("_id").AsInt64() != int64(51-tt.want) {
					t.Errorf("after a rollback %v goes", got)
				}
			})
		})
	}
}

func TestCappedAfterTruncation(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", doc(t, bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 4096}, {Key: "max", Value: 2}}))
	three := func(from int) []bson.D {
		return []bson.D{{{Key: "_id", Value: from}}, {{Key: "_id", Value: from + 1}}, {{Key: "_id", Value: from + 2}}}
	}
	insert(t, s, bson.Timestamp{T: 2}, three(0)...)
	commit(t, s, bson.Timestamp{T: 3}, func(u *storage.Unit) error { return u.Truncate(coll) })
	insert(t, s, bson.Timestamp{T: 4}, three(10)...)
	_ = s.Read(func(r *storage.Reader) error {
		for at, want := range map[bson.Timestamp]string{{}: "10", {T: 2}: "0", {T: 3}: ""} {
			c, _ := r.View(at).ByUUID(coll)
			var got []string
			for _, rec := range c.Excess() {
				got = append(got, sprint(rec.Doc.Lookup("_id").AsInt64()))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("at %v: got %v, want %s", at, got, want)
			}
		}
		return nil
	})
}

func TestLoopsSurviveChanges(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	var docs []bson.D
	for n := range int32(500) {
		docs = append(docs, bson.D{{Key: "_id", Value: n}})
	}
	insert(t, s, bson.Timestamp{T: 2}, docs...)
	for name, loop := range map[string]func(c *storage.Collection) func(func(storage.Record) bool){
		"natural":  func(c *storage.Collection) func(func(storage.Record) bool) { return c.Natural(0) },
		"backward": func(c *storage.Collection) func(func(storage.Record) bool) { return c.NaturalBackward(0) },
		"by id": func(c *storage.Collection) func(func(storage.Record) bool) {
			return c.ByID(storage.Bound{}, storage.Bound{}, false)
		},
		"by id, reverse": func(c *storage.Collection) func(func(storage.Record) bool) {
			return c.ByID(storage.Bound{}, storage.Bound{}, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, s, func(w *storage.Writer) {
				u := w.Begin(bson.Timestamp{})
				c, _ := u.View().ByUUID(coll)
				n := 0
				for r := range loop(c) {
					n++
					if err := u.Delete(coll, r.ID); err != nil {
						t.Fatal(err)
					}
					// Another unit comes and goes, and changes the trees on the way.
					o := w.Begin(bson.Timestamp{})
					for i := range int32(3) {
						if _, err := o.Insert(coll, doc(t, bson.D{{Key: "_id", Value: 1000 + i}})); err != nil {
							t.Fatal(err)
						}
					}
					o.Abort()
				}
				if n != 500 || c.Len() != 0 {
					t.Errorf("%d documents were met, %d are left", n, c.Len())
				}
			})
		})
	}
}

func TestBounds(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: "b"}}, bson.D{{Key: "_id", Value: int64(3)}},
		bson.D{{Key: "_id", Value: 1.5}}, bson.D{{Key: "_id", Value: int32(2)}}, bson.D{{Key: "_id", Value: "a"}}, bson.D{{Key: "_id", Value: nil}})
	value := func(v any) bson.RawValue { return doc(t, bson.D{{Key: "v", Value: v}}).Lookup("v") }
	tests := []struct {
		name    string
		lo, hi  storage.Bound
		want    string
		reverse bool
	}{
		{name: "all", want: "null 1.5 2 3 a b"},
		{name: "all reverse", want: "b a 3 2 1.5 null", reverse: true},
		{name: "from", lo: storage.Bound{Value: value(2.0), Inclusive: true}, want: "2 3 a b"},
		{name: "after", lo: storage.Bound{Value: value(int64(2))}, want: "3 a b"},
		{name: "to", hi: storage.Bound{Value: value("a"), Inclusive: true}, want: "null 1.5 2 3 a"},
		{name: "before, reverse", hi: storage.Bound{Value: value("a")}, want: "3 2 1.5 null", reverse: true},
		{name: "one", lo: storage.Bound{Value: value(3.0), Inclusive: true}, hi: storage.Bound{Value: value(3.0), Inclusive: true}, want: "3"},
		{name: "none", lo: storage.Bound{Value: value(3.0)}, hi: storage.Bound{Value: value(3.0)}, want: ""},
		{name: "the wrong way round", lo: storage.Bound{Value: value("b")}, hi: storage.Bound{Value: value(1)}, want: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_ = s.Read(func(r *storage.Reader) error {
				c, _ := r.View(bson.Timestamp{}).Collection("db.c")
				var got []string
				for rec := range c.ByID(tt.lo, tt.hi, tt.reverse) {
					var v struct {
						ID any `bson:"_id"`
					}
					if err := bson.Unmarshal(rec.Doc, &v); err != nil {
						t.Fatal(err)
					}
					got = append(got, strings.Trim(strings.NewReplacer("<nil>", "null").Replace(sprint(v.ID)), `"`))
				}
				if strings.Join(got, " ") != tt.want {
					t.Errorf("got %v, want %s", got, tt.want)
				}
				return nil
			})
		})
	}
}

func TestCollation(t *testing.T) {
	french := bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: int32(2)}}
	s := created(t, storage.Options{}, "db.c", doc(t, bson.D{{Key: "collation", Value: french}}))
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: "Abc"}})
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		_, err := u.Insert(coll, doc(t, bson.D{{Key: "_id", Value: "aBC"}}))
		e, ok := errors.AsType[*servererr.Error](err)
		if !ok || e.Code != servererr.DuplicateKey ||
			!strings.HasPrefix(e.Message, `E11000 duplicate key error collection: db.c index: _id_ collation: { locale: "fr", strength: 2 } dup key: { _id: "0x`) {
			t.Fatalf("got %v", err)
		}
		var info struct {
			KeyPattern bson.D
			HexEncoded []bool
			Collation  bson.D
		}
		_ = bson.Unmarshal(e.Info, &info)
		if !slices.Equal(info.HexEncoded, []bool{true}) || !gocmp.Equal(info.Collation, french) {
			t.Errorf("info %s", e.Info)
		}
		c, _ := u.View().ByUUID(coll)
		if r, ok := c.Get(doc(t, bson.D{{Key: "v", Value: "ABC"}}).Lookup("v")); !ok || r.Doc.Lookup("_id").StringValue() != "Abc" {
			t.Errorf("Get gives %v", r)
		}
		odd := doc(t, bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}, {Key: "caseLevel", Value: true}}}})
		if err := u.Create("db.d", oplog.UUID{9}, odd, idSpec()); code(err) != servererr.NotImplemented {
			t.Errorf("a collation that nobody can follow: %v", err)
		}
	})
}

func TestClusteredOrder(t *testing.T) {
	s := storage.New(storage.Options{})
	commit(t, s, bson.Timestamp{T: 1}, func(u *storage.Unit) error {
		return u.Create("db.system.buckets.c", coll, doc(t, bson.D{{Key: "clusteredIndex", Value: true}}), nil)
	})
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: 5}}, bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 9}})
	_ = s.Read(func(r *storage.Reader) error {
		c, _ := r.View(bson.Timestamp{}).ByUUID(coll)
		for _, tt := range []struct {
			loop func(func(storage.Record) bool)
			want string
		}{
			{c.Natural(0), "2 5 9"},
			{c.Natural(1), "9"},
			{c.NaturalBackward(0), "9 5 2"},
			{c.NaturalBackward(3), "5 2"},
		} {
			var got []string
			for rec := range tt.loop {
				got = append(got, sprint(rec.Doc.Lookup("_id").AsInt64()))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		}
		return nil
	})
	write(t, s, func(w *storage.Writer) {
		if _, err := w.Begin(bson.Timestamp{}).Insert(coll, doc(t, bson.D{{Key: "_id", Value: 5}})); code(err) != servererr.DuplicateKey {
			t.Errorf("got %v", err)
		}
	})
}

func TestWithoutAnIndexOnID(t *testing.T) {
	s := storage.New(storage.Options{})
	commit(t, s, bson.Timestamp{}, func(u *storage.Unit) error { return u.Create("local.c", coll, nil, nil) })
	for _, d := range []bson.D{{{Key: "_id", Value: 1}}, {{Key: "_id", Value: 1}}, {{Key: "x", Value: 1}}, {{Key: "x", Value: 2}}} {
		insert(t, s, bson.Timestamp{}, d)
	}
	_ = s.Read(func(r *storage.Reader) error {
		c, _ := r.View(bson.Timestamp{}).ByUUID(coll)
		n := 0
		for range c.ByID(storage.Bound{}, storage.Bound{}, false) {
			n++
		}
		if n != 4 || c.Len() != 4 {
			t.Errorf("%d by _id, %d together", n, c.Len())
		}
		return nil
	})
	write(t, s, func(w *storage.Writer) {
		if err := w.Begin(bson.Timestamp{}).AddIndex(coll, idSpec(), oplog.UUID{}); code(err) != servererr.DuplicateKey {
			t.Errorf("an index on _id: %v", err)
		}
	})
}

func sprint(v any) string { return strings.TrimSpace(fmt.Sprintln(v)) }
