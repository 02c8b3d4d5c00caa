package idrange

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

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
			return rawID(rapid.SampledFrom(bsongen.IDs()).Draw(t, "id"))
		}
	})
}

func sortIDs(ids []bson.RawValue) {
	slices.SortFunc(ids, func(a, b bson.RawValue) int { return bsonorder.Compare(a, b, nil) })
}

// matcher compiles the filter of a piece.
func (p *Piece) matcher(t must.T, last bson.RawValue) func(id bson.RawValue) bool {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = closeDocument(p.AppendFilter(dst, last), start)
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

// reencoded returns pieces after a round trip through their encoding.
func reencoded(t must.T, pieces []Piece) []Piece {
	list := bsoncore.NewArrayBuilder()
	for i := range pieces {
		list.AppendDocument(bsoncore.Document(pieces[i].Encode()))
	}
	doc := bsoncore.NewDocumentBuilder().AppendArray("pieces", list.Build()).Build()
	e, _ := rawbson.Lookup(doc, "pieces")
	return must.Get(Parse(&e))(t)
}

// TestPiecesPartition: whatever the samples, each _id is in exactly one range.
func TestPiecesPartition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cuts := rapid.SliceOfN(anyID(), 0, 8).Draw(t, "cuts")
		sortIDs(cuts)
		ids := rapid.SliceOfN(anyID(), 1, 20).Draw(t, "ids")
		ranges := Cut(cuts)
		if len(ranges) == 1 {
			ranges[0] = All()
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
		ranges := Cut(cuts)
		if len(ranges) == 1 {
			ranges[0] = All()
		}
		seen := 0
		for _, pieces := range ranges {
			for _, p := range pieces {
				of := slices.DeleteFunc(slices.Clone(ids), func(id bson.RawValue) bool { return !p.matcher(t, bson.RawValue{})(id) })
				seen += len(of)
				for i, last := range of {
					if !p.Resumable() {
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

// TestEveryType: an _id of each type that a server accepts is in one piece. The piece of the _ids in no
// bracket asks for types, as a server has no bounds for "not of a type": it would fetch every document
// of a collection.
func TestEveryType(t *testing.T) {
	t.Parallel()
	types := []bson.Type{bson.TypeMinKey, bson.TypeMaxKey}
	for b := bson.TypeDouble; b <= bson.TypeDecimal128; b++ {
		if b != bson.TypeArray {
			types = append(types, b)
		}
	}
	for _, cuts := range [][]bson.RawValue{nil, {rawID("m")}, {rawID(int32(5)), rawID("m")}, {rawID(bson.ObjectID{1})}} {
		pieces := All()
		if len(cuts) > 0 {
			pieces = slices.Concat(Cut(cuts)...)
		}
		in := map[bson.Type]int{}
		for i := range pieces {
			p := &pieces[i]
			start, dst := bsoncore.AppendDocumentStart(nil)
			condition := bson.Raw(closeDocument(p.AppendFilter(dst, bson.RawValue{}), start)).Lookup("filter", "_id").Document()
			list, ok := condition.Lookup("$type").ArrayOK()
			if p.Resumable() {
				for _, b := range types {
					if of, _ := bracketOf(b); of.name == p.bracket && p.from.Type == 0 {
						in[b]++ // its first piece
					}
				}
				continue
			}
			if !ok {
				t.Fatalf("%s asks for no types", condition)
			}
			values, err := list.Values()
			must.Succeed(t, err)
			for _, v := range values {
				in[bson.Type(uint8(v.Int32()))]++
			}
		}
		for _, b := range types {
			if in[b] != 1 {
				t.Errorf("cut at %v: %s is in %d pieces", cuts, b, in[b])
			}
		}
		if len(in) != len(types) {
			t.Errorf("cut at %v: %v", cuts, in)
		}
	}
}
