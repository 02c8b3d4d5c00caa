package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 5000, 100)...)
	w.whole(w.collection("d.c"))
	if w.docs != 5000 {
		t.Errorf("%d documents were told of", w.docs)
	}
	ranges := must.Get(w.ranges(within(t)))(t)
	if r := ranges[0]; r.Docs != 5000 || r.Bytes != 5000*int64(len(numbered(t, 0, 1, 100)[0])) || r.Steps != 3 {
		t.Errorf("the range says %+v", r)
	}
}

func TestCopyEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run(t, w.source, "d", bson.D{{Key: "create", Value: "c"}})
	w.whole(w.collection("d.c"))
	if w.progressed != 1 {
		t.Errorf("%d steps", w.progressed)
	}
}

// mixed are documents with _ids of all types that a server takes.
func mixed(t fataler) []bson.Raw {
	var docs []bson.Raw
	ids := bsongen.IDs()
	for i := range 300 {
		ids = append(ids, int32(100+i), fmt.Sprintf("text %d", i), bson.ObjectID{9, byte(i), byte(i >> 8)}, bson.D{{Key: "x", Value: i}})
	}
	var values []bson.RawValue
	for _, id := range ids {
		v := rawID(id)
		if v.Type == bson.TypeEmbeddedDocument && bytes.Contains(v.Value, []byte("$gt")) {
			continue
		}
		if v.Type != bson.TypeRegex && v.Type != bson.TypeUndefined {
			values = append(values, v)
		}
	}
	slices.SortFunc(values, compareIDs)
	values = slices.CompactFunc(values, func(a, b bson.RawValue) bool { return compareIDs(a, b) == 0 })
	for i, v := range values {
		docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: v}, {Key: "n", Value: i}, {Key: "pad", Value: strings.Repeat("x", 1000)}}))
	}
	return docs
}

// idOrder makes the source refuse the requests for natural order, or return record ids
// that are not numbers.
func (w *world) idOrder(refuse bool) {
	w.source.Caller = &unnumbered{Caller: w.source.Caller, refuse: refuse}
}

// unnumbered is a server whose record ids are no numbers.
type unnumbered struct {
	mongo.Caller
	refuse bool
}

func (u *unnumbered) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if e, ok := rawbson.Lookup(cmd.Body, "showRecordId"); ok && e.Truth() && u.refuse {
		if _, token := rawbson.Lookup(cmd.Body, "$_requestResumeToken"); token {
			return nil, servererr.New(servererr.FailedToParse, "Failed to parse: Unrecognized field '$_requestResumeToken'.")
		}
	}
	reply, err := u.Caller.Call(ctx, cmd)
	// A type of the same length.
	return bytes.ReplaceAll(reply, []byte("\x12"+recordField+"\x00"), []byte("\x01"+recordField+"\x00")), err
}

func TestCopyRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		order order
		// again: its copy was lost with a member.
		again bool
		docs  func(t fataler) []bson.Raw
	}{
		{"natural", natural, false, func(t fataler) []bson.Raw { return numbered(t, 0, 3000, 1000) }},
		{"natural mixed", natural, false, mixed},
		{"_id", byID, false, func(t fataler) []bson.Raw { return numbered(t, 0, 3000, 1000) }},
		{"_id mixed", byID, false, mixed},
		{"again", byID, true, mixed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			insertRaw(t, w.source, "d.c", c.docs(t)...)
			if c.order == byID && !c.again {
				w.idOrder(false)
			}
			coll := w.collection("d.c")
			coll.ByID = c.again
			w.cfg.RangeBytes, w.cfg.FlushDocs = coll.Bytes/6, 100
			w.whole(coll)
			ranges := must.Get(w.ranges(within(t)))(t)
			if len(ranges) < 6 {
				t.Errorf("%d ranges", len(ranges))
			}
			var docs, most int64
			for _, r := range ranges {
				if s := must.Get(parseSpec(r.Spec))(t); s.order != c.order {
					t.Errorf("order %s", s.order)
				}
				docs, most = docs+r.Docs, max(most, r.Docs)
			}
			if docs != coll.Docs || most > coll.Docs/2 {
				t.Errorf("%d of %d documents were copied, %d of them in one range", docs, coll.Docs, most)
			}
		})
	}
}

func TestCopyWithoutRecordIDs(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]bool{"no numbers": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			insertRaw(t, w.source, "d.c", mixed(t)...)
			w.idOrder(refuse)
			w.whole(w.collection("d.c"))
		})
	}
}

func TestCopyGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 10, 10)...)
	coll := w.collection("d.c")
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	run(t, w.source, "d", bson.D{{Key: "drop", Value: "c"}})
	if err := w.copyAll(ctx, coll); !errors.Is(err, ErrGone) {
		t.Errorf("error %v", err)
	}
	coll.Docs, coll.Bytes = 1<<30, 1<<40
	if _, err := w.cloner().Split(ctx, coll, "d.c", Since{}); !errors.Is(err, ErrGone) {
		t.Errorf("error %v", err)
	}
}

// TestCopyRenamed: a collection that was renamed meanwhile is still the same, except
// for a cursor.
func TestCopyRenamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.batch = 20
	docs := numbered(t, 0, 50, 10)
	insertRaw(t, w.source, "d.c", docs...)
	coll := w.collection("d.c")
	replies := 0
	w.source.intercept(nil, func(mongo.Command) {
		if replies++; replies == 1 {
			run(t, w.source.Caller, "admin", bson.D{{Key: "renameCollection", Value: "d.c"}, {Key: "to", Value: "d.e"}})
		}
	})
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	must.Succeed(t, w.copyAll(ctx, coll))
	must.Succeed(t, difference(docs, read(t, w.target, "d.c"), true))
	if w.docs != 50 || replies < 3 {
		t.Errorf("%d documents in %d replies", w.docs, replies)
	}
	ranges := must.Get(w.ranges(ctx))(t)
	if !ranges[0].Done {
		t.Error("it is not done")
	}
}

// TestCopyCollated: a collection whose strings are compared by a collation.
func TestCopyCollated(t *testing.T) {
	t.Parallel()
	for _, order := range []order{natural, byID} {
		w := newWorld(t)
		run(t, w.source, "d", bson.D{{Key: "create", Value: "c"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
		var docs []bson.Raw
		for i := range 600 {
			id := fmt.Sprintf("%c%d", "aBcDeF"[i%6], i)
			docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: id}}))
		}
		insertRaw(t, w.source, "d.c", docs...)
		if order == byID {
			w.idOrder(false)
		}
		coll := w.collection("d.c")
		w.cfg.RangeBytes, w.batch = coll.Bytes/5, 17
		w.whole(coll)
		if n := len(must.Get(w.ranges(t.Context()))(t)); n < 5 {
			t.Errorf("%d ranges", n)
		}
		if w.docs != 600 {
			t.Errorf("%d documents were copied", w.docs)
		}
	}
}

// TestCopyBuckets copies the buckets of a time series, in either order.
func TestCopyBuckets(t *testing.T) {
	t.Parallel()
	for _, order := range []order{natural, byID} {
		w := newWorld(t)
		for _, c := range []mongo.Caller{w.source, w.target} {
			run(t, c, "d", bson.D{{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
		}
		const ns = "d.system.buckets.s"
		var docs []bson.Raw
		for i := range 500 {
			docs = append(docs, must.Marshal(t, bson.D{
				{Key: "_id", Value: bson.ObjectID{1, byte(i >> 8), byte(i)}},
				{Key: "control", Value: bson.D{{Key: "version", Value: 1}, {Key: "min", Value: bson.D{{Key: "t", Value: bson.DateTime(i)}}}, {Key: "max", Value: bson.D{{Key: "t", Value: bson.DateTime(i)}}}}},
				{Key: "data", Value: bson.D{{Key: "t", Value: bson.D{{Key: "0", Value: bson.DateTime(i)}}}}},
			}))
		}
		insertRaw(t, w.source, ns, docs...)
		if order == byID {
			w.idOrder(false)
		}
		coll := w.listed(ns)
		coll.IDIndex = nil
		w.cfg.RangeBytes, w.batch = coll.Bytes/5, 17
		w.whole(coll)
		if w.docs != 500 {
			t.Errorf("%d documents were copied", w.docs)
		}
	}
}

// TestCopyMixedBuckets: the target refuses buckets with values of several types in a field, as
// servers before 5.2 make them, until it is told so.
func TestCopyMixedBuckets(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, "6.0")
	for _, c := range []mongo.Caller{w.source, w.target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	}
	const ns = "d.system.buckets.s"
	insertRaw(t, w.source, ns, numbered(t, 0, 50, 10)...)
	w.cfg.FlushDocs = 7
	refused, allowed := 0, false
	w.target.intercept(func(cmd mongo.Command) (error, bool) {
		switch {
		case name(cmd) == "collMod":
			allowed = cmd.Body.Lookup("timeseriesBucketsMayHaveMixedSchemaData").Boolean()
		case cmd.DB == "d" && name(cmd) == "insert" && !allowed:
			refused++
			return servererr.New(servererr.MixedSchemaBuckets, "mixed"), false
		}
		return nil, false
	}, nil)
	coll := w.listed(ns)
	coll.IDIndex = nil
	w.whole(coll)
	if w.docs != 50 || refused != 1 {
		t.Errorf("%d documents were copied, %d commands refused", w.docs, refused)
	}
}

// TestCopyDropped drops the collection between two replies.
func TestCopyDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.batch = 10
	insertRaw(t, w.source, "d.c", numbered(t, 0, 100, 10)...)
	coll := w.collection("d.c")
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	replies := 0
	w.source.intercept(nil, func(mongo.Command) {
		if replies++; replies == 3 {
			run(t, w.source.Caller, "d", bson.D{{Key: "drop", Value: "c"}})
			insertRaw(t, w.source.Caller, "d.c", numbered(t, 1000, 10, 10)...)
		}
	})
	if err := w.copyAll(ctx, coll); !errors.Is(err, ErrGone) {
		t.Errorf("error %v", err)
	}
	for _, d := range read(t, w.target, "d.c") {
		if d.Lookup("_id").AsInt64() >= 1000 {
			t.Errorf("%s is not of that collection", d)
		}
	}
}

// TestDialects copies from other versions.
func TestDialects(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "6.0", "8.0"} {
		w := newWorldOf(t, dialect)
		insertRaw(t, w.source, "d.c", mixed(t)...)
		coll := w.collection("d.c")
		w.cfg.RangeBytes = coll.Bytes / 5
		w.cfg.After = clusterTime(t, w.source)
		w.whole(coll)
	}
}
