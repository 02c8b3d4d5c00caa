package storage_test

import (
	"errors"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func index(t testing.TB, key bson.D, more ...bson.E) bson.Raw {
	t.Helper()
	return doc(t, append(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: key}, {Key: "name", Value: "i"}}, more...))
}

func json(t testing.TB, s string) bson.D {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return d
}

// over3 is the filter {k: {$gt: 3}}.
func over3(bson.Raw, *bsonorder.Collator) (func(bson.Raw) bool, error) {
	return func(d bson.Raw) bool { n, ok := d.Lookup("k").AsInt64OK(); return ok && n > 3 }, nil
}

// TestConstraints inserts documents one by one; the last one is accepted or not.
func TestConstraints(t *testing.T) {
	unique := bson.E{Key: "unique", Value: true}
	k := bson.D{{Key: "k", Value: int32(1)}}
	tests := []struct {
		name string
		spec bson.Raw
		docs string // one a line, without _id
		want string // the message, or nothing
		code servererr.Code
	}{
		{"not unique", index(t, k), `{"k": 1}` + "\n" + `{"k": 1}`, "", 0},
		{"unique", index(t, k, unique), `{"k": 1}` + "\n" + `{"k": 1.0}`, "E11000 duplicate key error collection: db.c index: i dup key: { k: 1.0 }", servererr.DuplicateKey},
		{"missing is null", index(t, k, unique), `{"a": 1}` + "\n" + `{"k": null}`, "E11000 duplicate key error collection: db.c index: i dup key: { k: null }", servererr.DuplicateKey},
		{"an empty array is not null", index(t, k, unique), `{"k": []}` + "\n" + `{"k": null}`, "", 0},
		{"empty arrays", index(t, k, unique), `{"k": []}` + "\n" + `{"k": []}`, "E11000 duplicate key error collection: db.c index: i dup key: { k: undefined }", servererr.DuplicateKey},
		{"sparse", index(t, k, unique, bson.E{Key: "sparse", Value: true}), `{"a": 1}` + "\n" + `{"a": 2}`, "", 0},
		{"sparse with null", index(t, k, unique, bson.E{Key: "sparse", Value: true}), `{"k": null}` + "\n" + `{"k": null}`, "dup key: { k: null }", servererr.DuplicateKey},
		{"multikey", index(t, k, unique), `{"k": [1, 2]}` + "\n" + `{"k": [3, 2]}`, "dup key: { k: 2 }", servererr.DuplicateKey},
		{"the same twice in one document", index(t, k, unique), `{"k": [1, 1]}`, "", 0},
		{"the first key in order is named", index(t, k, unique), `{"k": [5, 4]}` + "\n" + `{"k": [5, 4]}`, "dup key: { k: 4 }", servererr.DuplicateKey},
		{"descending order", index(t, bson.D{{Key: "k", Value: -1}}, unique), `{"k": [5, 4]}` + "\n" + `{"k": [5, 4]}`, "dup key: { k: 5 }", servererr.DuplicateKey},
		{"a nested array is a value", index(t, k, unique), `{"k": [[1]]}` + "\n" + `{"k": [1]}`, "", 0},
		{"dotted", index(t, bson.D{{Key: "a.b", Value: 1}}, unique), `{"a": {"b": 1}}` + "\n" + `{"a": [{"b": 2}, {"b": 1}]}`, "dup key: { a.b: 1 }", servererr.DuplicateKey},
		{"dotted, elements without it", index(t, bson.D{{Key: "a.b", Value: 1}}, unique), `{"a": [1, 2]}` + "\n" + `{}`, "dup key: { a.b: null }", servererr.DuplicateKey},
		{"dotted, a scalar in the way", index(t, bson.D{{Key: "a.b", Value: 1}}, unique), `{"a": 1}` + "\n" + `{}`, "dup key: { a.b: null }", servererr.DuplicateKey},
		{"positional", index(t, bson.D{{Key: "a.0", Value: 1}}, unique), `{"a": [1, 2]}` + "\n" + `{"a": [2, 1]}`, "", 0},
		{"positional, twice", index(t, bson.D{{Key: "a.1.b", Value: 1}}, unique), `{"a": [1, {"b": 2}]}` + "\n" + `{"a": [2, {"b": 2}]}`, "dup key: { a.1.b: 2 }", servererr.DuplicateKey},
		{"positional and a name", index(t, bson.D{{Key: "a.0", Value: 1}}), `{"a": [{"0": 1}]}`, "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '0' for array: { 0: { 0: 1 } }", 16746},
		{"compound", index(t, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: -1}}, unique), `{"a": 1, "b": 1}` + "\n" + `{"a": 1, "b": 2}`, "", 0},
		{"compound, equal", index(t, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: -1}}, unique), `{"a": 1, "b": 2}` + "\n" + `{"a": 1, "b": [1, 2]}`, "dup key: { a: 1, b: 2 }", servererr.DuplicateKey},
		{"compound, strings side by side", index(t, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, unique), `{"a": "x", "b": "yz"}` + "\n" + `{"a": "xy", "b": "z"}`, "", 0},
		{"compound sparse with one field", index(t, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, unique, bson.E{Key: "sparse", Value: true}), `{"a": 1}` + "\n" + `{"a": 1}`, "dup key: { a: 1, b: null }", servererr.DuplicateKey},
		{"arrays of one path", index(t, bson.D{{Key: "a.b", Value: 1}, {Key: "a.c", Value: 1}}, unique), `{"a": [{"b": 1, "c": 2}, {"b": 2, "c": 1}]}` + "\n" + `{"a": [{"b": 1, "c": 1}]}`, "", 0},
		{"parallel arrays", index(t, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}), `{"a": [1], "b": [1]}`, "cannot index parallel arrays [b] [a]", servererr.CannotIndexParallelArrays},
		{"parallel arrays inside", index(t, bson.D{{Key: "a.x", Value: 1}, {Key: "a.y", Value: 1}}), `{"a": [{"x": [1], "y": [1]}]}`, "cannot index parallel arrays [y] [x]", servererr.CannotIndexParallelArrays},
		{"hashed", index(t, bson.D{{Key: "a.b", Value: "hashed"}}), `{"a": [{"b": 1}]}`, "Error: hashed indexes do not currently support array values. Found array at path: a", 16766},
		{"hashed, no array", index(t, bson.D{{Key: "a.b", Value: "hashed"}}), `{"a": {"b": 1}}` + "\n" + `{"a": {"b": 1}}`, "", 0},
		{"text", index(t, bson.D{{Key: "_fts", Value: "text"}, {Key: "_ftsx", Value: 1}}), `{"_fts": [1], "_ftsx": [1]}`, "", 0},
		{"wildcard", index(t, bson.D{{Key: "w.$**", Value: 1}}), `{"w": [1]}`, "", 0},
		{"partial, outside", index(t, k, unique, bson.E{Key: "partialFilterExpression", Value: bson.D{}}), `{"k": 3}` + "\n" + `{"k": 3}`, "", 0},
		{"partial, inside", index(t, k, unique, bson.E{Key: "partialFilterExpression", Value: bson.D{}}), `{"k": 4}` + "\n" + `{"k": 4}`, "dup key: { k: 4 }", servererr.DuplicateKey},
		{"prepareUnique", index(t, k, bson.E{Key: "prepareUnique", Value: true}), `{"k": 1}` + "\n" + `{"k": 1}`, "dup key: { k: 1 }", servererr.DuplicateKey},
		{"collation", index(t, k, unique, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 1}}}), `{"k": "a"}` + "\n" + `{"k": "Á"}`, `index: i collation: { locale: "en", strength: 1 } dup key: { k: "0x`, servererr.DuplicateKey},
		{"no text", index(t, k, unique), `{"k": "a"}` + "\n" + `{"k": "b"}`, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lines := strings.Split(tt.docs, "\n")
			add := func(u *storage.Unit) error {
				for i, line := range lines {
					if _, err := u.Insert(coll, doc(t, append(bson.D{{Key: "_id", Value: i}}, json(t, line)...))); err != nil {
						if i < len(lines)-1 {
							t.Fatal(err)
						}
						return err
					}
				}
				return nil
			}
			check := func(what string, err error) {
				t.Helper()
				if err == nil {
					if tt.code != 0 {
						t.Errorf("%s: accepted", what)
					}
					return
				}
				if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != tt.code || !strings.Contains(e.Message, tt.want) {
					t.Errorf("%s: got %v, want %d %s", what, err, tt.code, tt.want)
				}
			}
			s := created(t, storage.Options{Filter: over3}, "db.c", nil)
			write(t, s, func(w *storage.Writer) {
				u := w.Begin(bson.Timestamp{})
				if err := u.AddIndex(coll, tt.spec, oplog.UUID{}); err != nil {
					t.Fatal(err)
				}
				check("insert", add(u))
				u.Abort()

				u = w.Begin(bson.Timestamp{})
				if err := add(u); err != nil {
					t.Fatal(err)
				}
				if tt.name != "prepareUnique" {
					check("index", u.AddIndex(coll, tt.spec, oplog.UUID{}))
				}
				u.Abort()

				// Two-phase: what comes in meanwhile is checked at the end.
				u = w.Begin(bson.Timestamp{})
				build := oplog.UUID{7}
				if err := u.AddIndex(coll, tt.spec, build); err != nil {
					t.Fatal(err)
				}
				if err := add(u); err != nil {
					t.Fatalf("insert during a build: %v", err)
				}
				if tt.name != "prepareUnique" {
					check("build", u.CommitIndexes(coll, build))
				}
				u.Abort()

				u = w.Begin(bson.Timestamp{})
				u.Relax()
				if err := u.AddIndex(coll, tt.spec, oplog.UUID{}); err != nil {
					t.Fatal(err)
				}
				if err := add(u); err != nil {
					t.Errorf("relaxed: %v", err)
				}
				c, _ := u.View().ByUUID(coll)
				if c.Len() != len(lines) {
					t.Errorf("relaxed: %d documents of %d", c.Len(), len(lines))
				}
			})
		})
	}
}

func TestDuplicateKeyInfo(t *testing.T) {
	s := created(t, storage.Options{}, "cmd.u", nil)
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: int32(1)}, {Key: "a", Value: "x"}, {Key: "b", Value: nil}})
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		spec := index(t, bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: int32(-1)}}, bson.E{Key: "unique", Value: true})
		if err := u.AddIndex(coll, spec, oplog.UUID{}); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			doc           bson.D
			message, info string
		}{
			{
				bson.D{{Key: "_id", Value: int64(1)}},
				"E11000 duplicate key error collection: cmd.u index: _id_ dup key: { _id: 1 }",
				`{"keyPattern": {"_id": {"$numberInt":"1"}},"keyValue": {"_id": {"$numberLong":"1"}}}`,
			},
			{
				bson.D{{Key: "_id", Value: int32(2)}, {Key: "a", Value: "x"}},
				`E11000 duplicate key error collection: cmd.u index: i dup key: { a: "x", b: null }`,
				`{"keyPattern": {"a": {"$numberInt":"1"},"b": {"$numberInt":"-1"}},"keyValue": {"a": "x","b": null}}`,
			},
		} {
			_, err := u.Insert(coll, doc(t, tt.doc))
			e, ok := errors.AsType[*servererr.Error](err)
			if !ok || e.Message != tt.message || e.Code != servererr.DuplicateKey {
				t.Fatalf("got %v", err)
			}
			if diff := gocmp.Diff(tt.info, e.Info.String()); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func TestKeysThatAreFreedAndTaken(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	k := func(id, k int) bson.Raw { return doc(t, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}}) }
	commit(t, s, bson.Timestamp{T: 2}, func(u *storage.Unit) error {
		return u.AddIndex(coll, index(t, bson.D{{Key: "k", Value: 1}}, bson.E{Key: "unique", Value: true}), oplog.UUID{})
	})
	insert(t, s, bson.Timestamp{T: 3}, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}, bson.D{{Key: "_id", Value: 2}, {Key: "k", Value: 2}})
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		// The keys change places, and back again.
		for _, step := range []struct{ at, k int }{{1, 3}, {2, 1}, {1, 2}, {2, 4}, {1, 1}, {2, 2}} {
			if err := u.Update(coll, storage.RecordID(step.at), k(step.at, step.k)); err != nil {
				t.Fatalf("%+v: %v", step, err)
			}
		}
		if err := u.Update(coll, 1, k(1, 9)); err != nil {
			t.Fatal(err)
		}
		o := w.Begin(bson.Timestamp{})
		for _, taken := range []int{1, 3, 9} {
			if _, err := o.Insert(coll, k(5, taken)); !errors.Is(err, storage.ErrWriteConflict) {
				t.Errorf("key %d: %v", taken, err)
			}
		}
		u.Abort()
		if _, err := o.Insert(coll, k(5, 1)); code(err) != servererr.DuplicateKey {
			t.Errorf("key 1 after the abort: %v", err)
		}
		if _, err := o.Insert(coll, k(5, 9)); err != nil {
			t.Errorf("key 9 after the abort: %v", err)
		}
	})
}

func TestPrepareUniqueKeepsDuplicates(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	one := func(id int) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "k", Value: 1}} }
	insert(t, s, bson.Timestamp{T: 2}, one(1), one(2), one(3))
	prepare := index(t, bson.D{{Key: "k", Value: 1}}, bson.E{Key: "prepareUnique", Value: true})
	unique := index(t, bson.D{{Key: "k", Value: 1}}, bson.E{Key: "unique", Value: true})
	commit(t, s, bson.Timestamp{T: 3}, func(u *storage.Unit) error {
		if err := u.AddIndex(coll, index(t, bson.D{{Key: "k", Value: 1}}), oplog.UUID{}); err != nil {
			return err
		}
		return u.SetIndex(coll, "i", prepare)
	})
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		for gone := range 3 {
			if _, err := u.Insert(coll, doc(t, one(9))); code(err) != servererr.DuplicateKey {
				t.Fatalf("with %d gone: %v", gone, err)
			}
			err := u.SetIndex(coll, "i", unique)
			if want := map[bool]servererr.Code{true: servererr.DuplicateKey}[gone < 2]; code(err) != want {
				t.Fatalf("unique with %d gone: %v", gone, err)
			}
			if err := u.Delete(coll, storage.RecordID(gone+1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := u.Insert(coll, doc(t, one(9))); err != nil {
			t.Error(err)
		}
	})
}

func TestIndexChanges(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	a, b := index(t, bson.D{{Key: "a", Value: 1}}), doc(t, bson.D{{Key: "key", Value: bson.D{{Key: "b", Value: 1}}}, {Key: "name", Value: "b"}})
	build := oplog.UUID{5}
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		for _, tt := range []struct {
			name string
			err  error
			want servererr.Code
		}{
			{"no such collection", u.AddIndex(oplog.UUID{8}, a, oplog.UUID{}), servererr.NamespaceNotFound},
			{"start a build", u.AddIndex(coll, a, build), 0},
			{"add", u.AddIndex(coll, b, oplog.UUID{}), 0},
			{"add again", u.AddIndex(coll, b, oplog.UUID{}), servererr.IndexAlreadyExists},
			{"without a name", u.AddIndex(coll, bson.Raw{5, 0, 0, 0, 0}, oplog.UUID{}), servererr.CannotCreateIndex},
			{"partial and unique without a filter", u.AddIndex(coll, doc(t, bson.D{
				{Key: "key", Value: bson.D{{Key: "p", Value: 1}}},
				{Key: "name", Value: "p"},
				{Key: "unique", Value: true},
				{Key: "partialFilterExpression", Value: bson.D{}},
			}), oplog.UUID{}), servererr.NotImplemented},
			{"commit another build", u.CommitIndexes(coll, oplog.UUID{6}), servererr.IndexNotFound},
			{"drop none", u.DropIndex(coll, "x"), servererr.IndexNotFound},
			{"drop the one on _id", u.DropIndex(coll, "_id_"), servererr.InvalidOptions},
			{"change the key", u.SetIndex(coll, "b", a), servererr.InvalidOptions},
			{"change none", u.SetIndex(coll, "x", a), servererr.IndexNotFound},
			{"hide", u.SetIndex(coll, "b", doc(t, bson.D{{Key: "key", Value: bson.D{{Key: "b", Value: 1}}}, {Key: "name", Value: "b"}, {Key: "hidden", Value: true}})), 0},
		} {
			if code(tt.err) != tt.want {
				t.Errorf("%s: got %v, want %d", tt.name, tt.err, tt.want)
			}
		}
		show := func() string {
			c, _ := u.View().ByUUID(coll)
			var names []string
			for _, i := range c.Indexes {
				if i.Building != (i.BuildUUID == build) {
					t.Errorf("%s: building %t by %s", i.Name, i.Building, i.BuildUUID)
				}
				names = append(names, i.Name+map[bool]string{true: "*"}[i.Building])
			}
			return strings.Join(names, " ")
		}
		if got := show(); got != "_id_ i* b" {
			t.Errorf("indexes %s", got)
		}
		if err := u.CommitIndexes(coll, build); err != nil {
			t.Fatal(err)
		}
		if err := u.DropIndex(coll, "b"); err != nil {
			t.Fatal(err)
		}
		if got := show(); got != "_id_ i" {
			t.Errorf("indexes %s", got)
		}
	})
}

func TestRefusals(t *testing.T) {
	s := created(t, storage.Options{}, "db.c", nil)
	insert(t, s, bson.Timestamp{T: 2}, bson.D{{Key: "_id", Value: 1}})
	write(t, s, func(w *storage.Writer) {
		u := w.Begin(bson.Timestamp{})
		_, noID := u.Insert(coll, doc(t, bson.D{{Key: "x", Value: 1}}))
		for _, tt := range []struct {
			name string
			err  error
			want servererr.Code
		}{
			{"no _id", noID, servererr.BadValue},
			{"another _id", u.Update(coll, 1, doc(t, bson.D{{Key: "_id", Value: 2}})), servererr.ImmutableField},
			{"no name", u.Create("db", oplog.UUID{4}, nil, nil), servererr.InvalidNamespace},
			{"no UUID", u.Create("db.x", oplog.UUID{}, nil, nil), servererr.InvalidUUID},
			{"the UUID of another", u.Create("db.x", coll, nil, nil), servererr.NamespaceExists},
			{"the name of another", u.Create("db.c", oplog.UUID{4}, nil, nil), servererr.NamespaceExists},
			{"into local", u.Rename(coll, "local.c"), servererr.IllegalOperation},
			{"to no name", u.Rename(coll, "c"), servererr.InvalidNamespace},
			{"corrupt options", u.SetOptions(coll, bson.Raw{1, 2, 3}), servererr.InvalidBSON},
			{"corrupt index", u.AddIndex(coll, append(index(t, bson.D{{Key: "a", Value: 1}}), 0), oplog.UUID{}), servererr.CannotCreateIndex},
		} {
			if code(tt.err) != tt.want {
				t.Errorf("%s: got %v, want %d", tt.name, tt.err, tt.want)
			}
		}
		for name, err := range map[string]error{
			"update": u.Update(coll, 7, doc(t, bson.D{{Key: "_id", Value: 2}})),
			"delete": u.Delete(coll, 7),
		} {
			if !errors.Is(err, storage.ErrNoRecord) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if u.Changed() {
			t.Error("refused writes changed something")
		}
	})
}
