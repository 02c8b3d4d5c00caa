package clone

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

// someIDs are values of every type except arrays, including unusual ones.
var someIDs = []any{
	bson.MinKey{},
	bson.Undefined{},
	nil,
	bson.MaxKey{},
	math.NaN(), decimal("NaN"), math.Inf(-1), math.Inf(1), decimal("-Infinity"), decimal("Infinity"),
	0.0, math.Copysign(0, -1), int32(0), int64(0), decimal("0"), int32(1), int64(1), 1.0, decimal("1.00"), int32(-1), 1.5, decimal("1.5"),
	int64(math.MaxInt64), int64(math.MinInt64), math.MaxFloat64, float64(1 << 53), int64(1<<53 + 1), int32(7), int64(8), 9.0, decimal("10"),
	"", "a", "A", "aa", "b", "ä", "\x00", bson.Symbol("a"), bson.Symbol("aaa"), bson.Symbol(""),
	bson.D{},
	bson.D{{Key: "a", Value: 1}},
	bson.D{{Key: "a", Value: int64(2)}},
	bson.D{{Key: "b", Value: 1}},
	bson.D{{Key: "a", Value: math.NaN()}},
	bson.D{{Key: "$gt", Value: 1}},
	bson.D{{Key: "a", Value: bson.A{1, 2}}},
	bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: 1}},
	bson.Binary{},
	bson.Binary{Data: []byte("a")},
	bson.Binary{Data: []byte("bb")},
	bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte("u"), 16)},
	bson.Binary{Subtype: 2, Data: []byte("old")},
	bson.ObjectID{},
	bson.ObjectID{1},
	bson.ObjectID{2},
	bson.ObjectID{0xff, 11: 0xff},
	true, false,
	bson.DateTime(0), bson.DateTime(-1), bson.DateTime(math.MaxInt64), bson.DateTime(1_600_000_000_000),
	bson.Timestamp{},
	bson.Timestamp{T: 1},
	bson.Timestamp{T: 1, I: 1},
	bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32},
	bson.Regex{Pattern: "a"},
	bson.Regex{Pattern: "a", Options: "i"},
	bson.DBPointer{DB: "d", Pointer: bson.ObjectID{1}},
	bson.JavaScript("a"), bson.JavaScript("b"),
	bson.CodeWithScope{Code: "a", Scope: bson.D{}},
	bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}},
}

func rawID(v any) bson.RawValue {
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
	if err != nil {
		panic(err)
	}
	return bson.Raw(doc).Lookup("_id")
}

func anyID() *rapid.Generator[bson.RawValue] {
	return rapid.Custom(func(t *rapid.T) bson.RawValue {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return rawID(rapid.Int32Range(-20, 20).Draw(t, "number"))
		case 1:
			return rawID(rapid.StringN(0, 2, 4).Draw(t, "text"))
		default:
			return rawID(rapid.SampledFrom(someIDs).Draw(t, "id"))
		}
	})
}

func sortIDs(ids []bson.RawValue) {
	slices.SortFunc(ids, func(a, b bson.RawValue) int { return bsonorder.Compare(a, b, nil) })
}

// matcher compiles the filter of a piece.
func (p *piece) matcher(t fataler, last bson.RawValue) func(id bson.RawValue) bool {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = closeDocument(p.appendFilter(dst, last), start)
	filter := bson.Raw(dst).Lookup("filter").Document()
	if err := rawbson.Validate(filter); err != nil {
		t.Fatalf("filter of %+v: %v", p, err)
	}
	m, err := serverquery.Compile(filter, serverquery.Options{})
	if err != nil {
		t.Fatalf("filter %s: %v", filter, err)
	}
	return func(id bson.RawValue) bool {
		doc := bsoncore.NewDocumentBuilder().AppendValue("_id", coreValue(id)).Build()
		return must.Get(m.Match(bson.Raw(doc)))(t)
	}
}

// reencoded returns pieces after a round trip through the metadata.
func reencoded(t fataler, pieces []piece) []piece {
	s := spec{order: byID, pieces: pieces}
	return must.Get(parseSpec(s.encode()))(t).pieces
}

// TestPiecesPartition: whatever the samples, each _id is in exactly one range.
func TestPiecesPartition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfN(anyID(), 0, 8).Draw(t, "cuts")
		sortIDs(cuts)
		ids := rapid.SliceOfN(anyID(), 1, 20).Draw(t, "ids")
		ranges := cutPieces(cuts)
		if len(ranges) == 1 {
			ranges[0] = allPieces()
		}
		for _, id := range slices.Concat(ids, cuts) {
			in := 0
			for _, pieces := range ranges {
				for _, p := range reencoded(t, pieces) {
					if p.matcher(t, bson.RawValue{})(id) {
						in++
					}
				}
			}
			if in != 1 {
				t.Fatalf("%s %s is in %d pieces of %+v", id.Type, id, in, ranges)
			}
		}
	})
}

// TestPiecesResume: a scan that is interrupted after each document returns all of them,
// in order, and each once.
func TestPiecesResume(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfN(anyID(), 0, 5).Draw(t, "cuts")
		sortIDs(cuts)
		ids := rapid.SliceOfN(anyID(), 1, 20).Draw(t, "ids")
		sortIDs(ids)
		ids = slices.CompactFunc(ids, func(a, b bson.RawValue) bool { return bsonorder.Compare(a, b, nil) == 0 })
		ranges := cutPieces(cuts)
		if len(ranges) == 1 {
			ranges[0] = allPieces()
		}
		seen := 0
		for _, pieces := range ranges {
			for _, p := range pieces {
				of := slices.DeleteFunc(slices.Clone(ids), func(id bson.RawValue) bool { return !p.matcher(t, bson.RawValue{})(id) })
				seen += len(of)
				for i, last := range of {
					if !p.resumable() {
						continue
					}
					behind := p.matcher(t, last)
					for j, id := range ids {
						want := slices.ContainsFunc(of[i+1:], func(v bson.RawValue) bool { return bsonorder.Compare(v, id, nil) == 0 })
						if behind(id) != want {
							t.Fatalf("piece %+v after %s: %s (%d) is %t", p, last, id, j, !want)
						}
					}
				}
			}
		}
		if seen != len(ids) {
			t.Fatalf("%d of %d were seen", seen, len(ids))
		}
	})
}
