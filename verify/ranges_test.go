package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

var errPlanted = errors.New("planted")

// flaky fails every nth command that reads documents with an error that a read is repeated
// after, mostFailures of them.
type flaky struct {
	mongo.Caller
	every, n, failed atomic.Int64
}

// Call implements mongo.Caller.
func (f *flaky) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	if size, ok := rawbson.Lookup(cmd.Body, "batchSize"); ok {
		binary.LittleEndian.PutUint32(size.Value, flakyBatch) // in place, so that there are many replies
	}
	every := f.every.Load()
	if every > 0 && (it.Is("getMore") || it.Is("find")) && f.n.Add(1)%every == 0 && f.failed.Load() < mostFailures {
		if f.failed.Add(1)%2 == 0 {
			return nil, &mongo.LostError{Host: "h", Err: errPlanted}
		}
		return nil, servererr.New(servererr.CursorNotFound, "planted")
	}
	return f.Caller.Call(ctx, cmd)
}

// flakyBatch is the number of documents in a reply of a flaky server.
const flakyBatch = 100

// mostFailures limits the errors of a flaky server, so that ranges end that begin again after each.
const mostFailures = 4

// mixed returns documents with _ids of all types, none of which are equal to a server.
func mixed(t *testing.T, n int) []bson.Raw {
	values := bsongen.IDs()
	for i := range n {
		values = append(values, int32(100+i), fmt.Sprintf("text %d", i), bson.ObjectID{9, byte(i), byte(i >> 8)}, bson.D{{Key: "x", Value: i}})
	}
	var docs []bson.Raw
	for _, v := range values {
		id := must.Marshal(t, bson.D{{Key: "_id", Value: v}}).Lookup("_id")
		if id.Type == bson.TypeRegex || id.Type == bson.TypeUndefined || strings.Contains(string(id.Value), "$gt") {
			continue
		}
		docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: int32(1)}, {Key: "pad", Value: strings.Repeat("x", 200)}}))
	}
	slices.SortFunc(docs, func(a, b bson.Raw) int { return bsonorder.Compare(idOf(a), idOf(b), nil) })
	return slices.CompactFunc(docs, func(a, b bson.Raw) bool { return bsonorder.Compare(idOf(a), idOf(b), nil) == 0 })
}

// spoiled returns another version of documents: some missing, some extra, some other ones.
func spoiled(t *testing.T, docs []bson.Raw) (source, target []bson.Raw, want []string) {
	for i, d := range docs {
		id := idOf(d)
		switch {
		case i%97 == 3:
			source = append(source, d)
			want = append(want, "missing "+id.String())
		case i%89 == 5:
			target = append(target, d)
			want = append(want, "extra "+id.String())
		case i%83 == 7:
			source = append(source, d)
			target = append(target, doc(element(t, "_id", id), element(t, "n", int64(1)), element(t, "pad", "")))
			want = append(want, "differs "+id.String())
		default:
			source, target = append(source, d), append(target, d)
		}
	}
	slices.Sort(want)
	return source, target, want
}

// TestRanges: collections in many ranges, with _ids of all types, and reads that fail in the
// middle of each: the differences are the planted ones, each is named once.
func TestRanges(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := mixed(t, 700)
	german := bson.D{{Key: "locale", Value: "de"}}
	run(t, source, "d", bson.D{{Key: "create", Value: "collated"}, {Key: "collation", Value: german}})
	run(t, target, "d", bson.D{{Key: "create", Value: "collated"}, {Key: "collation", Value: german}})
	a, b, want := spoiled(t, docs)
	text := slices.DeleteFunc(slices.Clone(a), func(d bson.Raw) bool { return idOf(d).Type == bson.TypeSymbol })
	insertRaw(t, source, "d.c", a...)
	insertRaw(t, target, "d.c", b...)
	insertRaw(t, source, "d.collated", text...)
	insertRaw(t, target, "d.collated", text...)
	for _, every := range []int64{0, 7} {
		for _, rangeBytes := range []int64{0, 50_000} {
			onSource, onTarget := &flaky{Caller: source}, &flaky{Caller: target}
			onSource.every.Store(every)
			onTarget.every.Store(every)
			summary, found := check(t, Config{Source: onSource, Target: onTarget, RangeBytes: rangeBytes})
			var got []string
			for i := range found {
				got = append(got, string(found[i].Kind)+" "+found[i].id().String())
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("every %d, ranges of %d: %d differences, want %d\n%s", every, rangeBytes, len(got), len(want), strings.Join(got, "\n"))
			}
			if every > 0 && (onSource.failed.Load() == 0 || onTarget.failed.Load() == 0) {
				t.Error("no read has failed")
			}
			c, collated := &summary.Collections[0], &summary.Collections[1]
			if c.SourceDocs != int64(len(a)) || c.TargetDocs != int64(len(b)) || collated.EqualDocs != int64(len(text)) || collated.How != string(joined) || !collated.equal() {
				t.Errorf("every %d, ranges of %d: %+v\n%+v", every, rangeBytes, c, collated)
			}
		}
	}
}

// TestSample: a sample reads a part, and finds the missing and the extra documents in it.
func TestSample(t *testing.T) {
	t.Parallel()
	const sampled = leastSampled * 6 / 5 // documents
	source, target := cluster(t), cluster(t)
	docs := neighbours(t, 0, sampled)
	var rest []bson.Raw
	for i, d := range docs {
		if i%10 != 0 {
			rest = append(rest, d)
		}
	}
	insertRaw(t, source, "d.missing", docs...)
	insertRaw(t, target, "d.missing", rest...)
	insertRaw(t, source, "d.extra", rest...)
	insertRaw(t, target, "d.extra", docs...)
	summary, _ := check(t, Config{Source: source, Target: target, Sample: 0.05})
	for i := range summary.Collections {
		c := &summary.Collections[i]
		read := float64(max(c.SourceDocs, c.TargetDocs))
		if read < 0.03*sampled || read > 0.08*sampled || !strings.Contains(c.How, "sample") {
			t.Errorf("%+v", c)
		}
		switch c.NS {
		case "d.missing":
			if c.Missing == 0 || c.Extra+c.Differs > 0 {
				t.Errorf("%+v", c)
			}
		case "d.extra":
			if c.Extra == 0 || c.Missing+c.Differs > 0 {
				t.Errorf("%+v", c)
			}
		}
	}
}

// TestReportedAndCounted: differences of the pieces of a collection are reported and counted before a piece that cannot be resumed, and stay
// so though that one is read from its beginning again.
func TestReportedAndCounted(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for i, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", doc(element(t, "_id", "of a piece before"), element(t, "n", int32(i))))
	}
	insertRaw(t, source, "d.c", doc(element(t, "_id", bson.JavaScript("f()"))))
	fails := false
	fail := func(mongo.Command) error {
		if fails {
			return errPlanted
		}
		return nil
	}
	var found []Difference
	v := must.Get(New(Config{Source: &hook{Caller: source, ns: "d.c", before: fail}, Target: target, Scope: everything(t), Found: func(d *Difference) error {
		found = append(found, *d)
		return nil
	}}))(t)
	all := must.Get(v.settle(t.Context()))(t)
	s := &scan{v: v, p: &all[0].pair, pieces: idrange.All(), order: byID}
	last := len(s.pieces) - 1
	for i := range last {
		must.Succeed(t, s.onePiece(t.Context(), &s.pieces[i]))
	}
	s.piece, s.last = last, bson.RawValue{}
	for fails = true; len(found) < 2; fails = false {
		if err := s.onePiece(t.Context(), &s.pieces[last]); (err != nil) != fails {
			t.Fatal(err)
		}
		if s.tally.Differs != 1 || len(found) == 0 {
			t.Errorf("reported are %+v, counted %+v", found, s.tally)
		}
		if !fails {
			must.Succeed(t, s.flush(t.Context()))
		}
	}
	if s.tally.Missing != 1 || s.tally.Differs != 1 || len(found) != 2 {
		t.Errorf("reported are %+v, counted %+v", found, s.tally)
	}
}
