package verify

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// shelf is a server with one collection, d.c, that returns its documents in their order here,
// in batches of some documents.
type shelf struct {
	docs    []bson.Raw
	options bson.D
	batch   int
	// finds counts the cursors that were opened.
	finds int
}

// Call implements mongo.Caller. Only one stream reads from a shelf at a time.
func (s *shelf) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	reply := func(id int, docs ...bson.Raw) (bson.Raw, error) {
		list := bsoncore.NewArrayBuilder()
		for _, d := range docs {
			list.AppendDocument(bsoncore.Document(d))
		}
		name := "firstBatch"
		if it.Is("getMore") {
			name = "nextBatch"
		}
		cursor := document().AppendInt64("id", int64(id)).AppendString("ns", "d.c").AppendArray(name, list.Build()).Build()
		return bson.Raw(document().AppendDocument("cursor", cursor).AppendInt32("ok", 1).Build()), nil
	}
	switch it.Name() {
	case "listDatabases":
		return bson.Marshal(bson.D{{Key: "databases", Value: bson.A{bson.D{{Key: "name", Value: "d"}}}}, {Key: "ok", Value: 1}})
	case "listCollections":
		one, err := bson.Marshal(bson.D{
			{Key: "name", Value: "c"},
			{Key: "type", Value: "collection"},
			{Key: "options", Value: append(bson.D{}, s.options...)},
			{Key: "info", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		})
		if err != nil {
			return nil, err
		}
		return reply(0, one)
	case "listIndexes":
		one, err := bson.Marshal(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}})
		if err != nil {
			return nil, err
		}
		return reply(0, one)
	case "find":
		s.finds++
		return s.more(0, reply)
	case "getMore":
		n, _ := it.Int64()
		return s.more(int(n), reply)
	default:
		return bson.Marshal(bson.D{{Key: "ok", Value: 1}})
	}
}

func (s *shelf) more(from int, reply func(id int, docs ...bson.Raw) (bson.Raw, error)) (bson.Raw, error) {
	to := min(len(s.docs), from+s.batch)
	if to == len(s.docs) {
		return reply(0, s.docs[from:to]...)
	}
	return reply(to, s.docs[from:to]...)
}

// model is the obvious comparison: by a map.
func model(source, target []bson.Raw) []string {
	key := func(d bson.Raw) string { return string(bsonorder.AppendKey(nil, idOf(d), nil)) }
	there := map[string]bson.Raw{}
	for _, d := range target {
		there[key(d)] = d
	}
	var all []string
	for _, d := range source {
		other, ok := there[key(d)]
		delete(there, key(d))
		switch {
		case !ok:
			all = append(all, "missing "+idOf(d).String())
		case !bytes.Equal(d, other):
			all = append(all, "differs "+idOf(d).String())
		}
	}
	for _, d := range there {
		all = append(all, "extra "+idOf(d).String())
	}
	slices.Sort(all)
	return all
}

// TestMerge: whatever the _ids are, and in whatever order the servers return them, the
// differences are those of the obvious comparison.
func TestMerge(t *testing.T) {
	t.Parallel()
	var ids []bson.RawValue
	for _, v := range bsongen.IDs() {
		if id := must.Marshal(t, bson.D{{Key: "_id", Value: v}}).Lookup("_id"); id.Type != bson.TypeRegex && id.Type != bson.TypeUndefined {
			ids = append(ids, id)
		}
	}
	names := must.Get(scope.New(scope.Config{}))(t)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(side string) []bson.Raw {
			var docs []bson.Raw
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(ids)-1), 0, 30, rapid.ID[int]).Draw(t, side) {
				x := rapid.IntRange(0, 3).Draw(t, "x") / 3
				docs = append(docs, doc(bsoncore.AppendValueElement(nil, "_id", coreValue(ids[i])), bsoncore.AppendInt32Element(nil, "x", int32(x))))
			}
			slices.SortFunc(docs, func(a, b bson.Raw) int { return bsonorder.Compare(idOf(a), idOf(b), nil) })
			return slices.CompactFunc(docs, func(a, b bson.Raw) bool { return bsonorder.Compare(idOf(a), idOf(b), nil) == 0 })
		}
		source := &shelf{docs: draw("source"), batch: rapid.IntRange(1, 10).Draw(t, "batch")}
		target := &shelf{docs: draw("target"), batch: rapid.IntRange(1, 10).Draw(t, "batch")}
		want := model(source.docs, target.docs)
		how := rapid.SampledFrom([]string{"sorted", "source shuffled", "both shuffled", "capped", "collation"}).Draw(t, "how")
		shuffle := func(s *shelf) {
			rng := rand.New(rand.NewPCG(1, uint64(len(s.docs)))) //nolint:gosec // A test.
			rng.Shuffle(len(s.docs), func(i, j int) { s.docs[i], s.docs[j] = s.docs[j], s.docs[i] })
		}
		switch how {
		case "source shuffled":
			shuffle(source)
		case "both shuffled":
			shuffle(source)
			shuffle(target)
		case "capped":
			source.options = bson.D{{Key: "capped", Value: true}}
			target.options = source.options
		case "collation":
			source.options = bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}
			target.options = source.options
			shuffle(source)
			target.docs = slices.Clone(target.docs)
			shuffle(target)
		}
		var got []string
		v, err := New(Config{Source: source, Target: target, Scope: names, Found: func(d *Difference) error {
			got = append(got, string(d.Kind)+" "+d.id().String())
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		summary, err := v.Run(context.Background())
		if err != nil || summary.Unchecked() > 0 {
			t.Fatalf("%v %+v", err, summary)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got\n%s\nwant\n%s", how, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		c := &summary.Collections[0]
		if c.SourceDocs != int64(len(source.docs)) || c.TargetDocs != int64(len(target.docs)) || c.EqualDocs+c.Differs+c.Missing != c.SourceDocs || c.EqualDocs+c.Differs+c.Extra != c.TargetDocs {
			t.Fatalf("%+v", c)
		}
	})
}

// TestInsertionOrder: with documents at other places at least one is named, and none if all are
// at their places among those that both sides have.
func TestInsertionOrder(t *testing.T) {
	t.Parallel()
	names := must.Get(scope.New(scope.Config{}))(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "documents")
		draw := func(side string) (docs []bson.Raw, kept []int) {
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			if rapid.Bool().Draw(t, side+" permuted") {
				order = rapid.Permutation(order).Draw(t, side)
			}
			for _, i := range order {
				if rapid.IntRange(0, 4).Draw(t, "kept") > 0 {
					docs = append(docs, doc(bsoncore.AppendInt32Element(nil, "_id", int32(i))))
					kept = append(kept, i)
				}
			}
			return docs, kept
		}
		options := bson.D{{Key: "capped", Value: true}}
		source, target := &shelf{options: options, batch: 3}, &shelf{options: options, batch: 4}
		var a, b []int
		source.docs, a = draw("source")
		target.docs, b = draw("target")
		aBoth := slices.DeleteFunc(slices.Clone(a), func(i int) bool { return !slices.Contains(b, i) })
		bBoth := slices.DeleteFunc(slices.Clone(b), func(i int) bool { return !slices.Contains(a, i) })
		displaced := 0
		v := must.Get(New(Config{Source: source, Target: target, Scope: names, Found: func(d *Difference) error {
			if d.Kind == Order {
				displaced++
			}
			return nil
		}}))(t)
		must.Get(v.Run(context.Background()))(t)
		if (displaced > 0) == slices.Equal(aBoth, bBoth) || displaced >= max(1, len(aBoth)) {
			t.Fatalf("%d displaced: %v, %v", displaced, a, b)
		}
	})
}

// TestCrowded: documents that wait for their counterpart take a limited amount of memory. Then
// the servers sort.
func TestCrowded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 1<<20)
	var docs []bson.Raw
	for i := range 30 {
		docs = append(docs, doc(element(t, "_id", int32(i)), element(t, "x", big)))
	}
	source := &shelf{docs: docs[:15], batch: 2, options: bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}}
	target := &shelf{docs: docs[15:], batch: 2, options: source.options}
	summary, found := check(t, Config{Source: source, Target: target, Memory: LeastMemory, Scope: everything(t)})
	c := &summary.Collections[0]
	if len(found) != 30 || c.Missing != 15 || c.Extra != 15 || c.How != string(sorted) || source.finds != 2 {
		t.Errorf("%d differences, %+v, %d reads", len(found), c, source.finds)
	}
	source.docs, target.docs = []bson.Raw{docs[1], docs[0]}, []bson.Raw{docs[2], docs[3]}
	source.options, target.options = nil, nil
	source.docs = append(source.docs, docs[5:]...)
	summary, _ = check(t, Config{Source: source, Target: target, Memory: LeastMemory, Scope: everything(t)})
	if c := &summary.Collections[0]; !strings.Contains(c.Fault, errCrowded.Error()) || summary.Unchecked() != 1 {
		t.Errorf("%+v", c)
	}
	if oplog.Namespace("d.c") != c.NS {
		t.Error(fmt.Sprint(c.NS))
	}
}

// TestTwiceTheSame: two documents with the same _id, as in a collection without an index on it, are not taken for one.
func TestTwiceTheSame(t *testing.T) {
	t.Parallel()
	var docs []bson.Raw
	for i := range 5 {
		docs = append(docs, doc(element(t, "_id", int32(i/2)), element(t, "n", int32(i))))
	}
	source, target := &shelf{docs: docs, batch: 2}, &shelf{docs: docs, batch: 3}
	summary, found := check(t, Config{Source: source, Target: target})
	if c := &summary.Collections[0]; len(found) > 0 || c.EqualDocs != 5 || c.How != string(joined) {
		t.Errorf("%+v, %+v", found, c)
	}
	target.docs = docs[1:]
	summary, found = check(t, Config{Source: source, Target: target})
	if c := &summary.Collections[0]; len(found) != 2 || c.SourceDocs != 5 || c.TargetDocs != 4 {
		t.Errorf("%+v, %+v", found, c)
	}
}

// TestCrowdedUnreadable: where the servers have to sort, and refuse that as of a cut, differences are read again.
func TestCrowdedUnreadable(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	big := strings.Repeat("x", 1<<20)
	for i, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}})
		for n := range 15 {
			insertRaw(t, c, "d.c", doc(element(t, "_id", int32(15*i+n)), element(t, "x", big)))
		}
	}
	var read atomic.Int64
	refuse := func(cmd mongo.Command) error {
		if _, at := rawbson.Lookup(cmd.Body, "readConcern"); !at || cmd.Body.Lookup("readConcern", "atClusterTime").IsZero() {
			return nil
		}
		if read.Add(1) > 1 {
			return servererr.New(servererr.SnapshotUnavailable, "planted")
		}
		return nil
	}
	summary, found := check(t, Config{
		Source: &hook{Caller: source, ns: "d.c", before: refuse}, Target: target, Cuts: &rest{source: source, target: target}, Memory: LeastMemory, Workers: 1,
	})
	if c := &summary.Collections[0]; len(found) != 30 || c.Fault != "" || c.How != string(sorted)+", differences read again" || read.Load() < 2 {
		t.Errorf("%d differences, %+v, %d reads at cuts", len(found), c, read.Load())
	}
}
