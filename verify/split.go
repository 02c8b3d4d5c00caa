package verify

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

const (
	// mostRanges is the maximum number of ranges of a collection.
	mostRanges = 4000
	// samplesPerRange makes the sizes of ranges more even.
	samplesPerRange = 10
	// sampleFraction is the maximum sample, as 1/n of the documents, that a server takes
	// without reading all of them, with a margin for a wrong estimate.
	sampleFraction = 25
	// mostSampleBytes is the maximum size of a value to divide at.
	mostSampleBytes = 4 << 10
)

// split returns the ranges of a collection; one that is nil is the whole of it.
func (v *Verifier) split(ctx context.Context, p *pair, how order) ([][]idrange.Piece, error) {
	whole := [][]idrange.Piece{nil}
	if how == inserted || how == sorted || p.want.bytes <= 2*v.cfg.RangeBytes {
		return whole, nil
	}
	n := int(min(mostRanges, (p.want.bytes+v.cfg.RangeBytes-1)/v.cfg.RangeBytes))
	samples := int(min(int64(n*samplesPerRange), p.want.docs/sampleFraction))
	if n = min(n, samples); n < 2 {
		return [][]idrange.Piece{idrange.All()}, nil
	}
	ids, err := v.source.samples(ctx, p.want, samples)
	if err != nil {
		return nil, err
	}
	if ids == nil {
		return [][]idrange.Piece{idrange.All()}, nil
	}
	cuts := make([]bson.RawValue, 0, n)
	for i := 1; i < n; i++ {
		cuts = append(cuts, ids[i*len(ids)/n])
	}
	ranges := idrange.Cut(cuts)
	if len(ranges) == 1 {
		ranges[0] = idrange.All()
	}
	return ranges, nil
}

// samples returns some _ids, in the order of the index on _id: by the collection's own
// collation. It returns none if the server cannot take a sample.
func (s *side) samples(ctx context.Context, coll *listed, n int) ([]bson.RawValue, error) {
	stage := func(name, field string, value int32) bsoncore.Document {
		return document().AppendDocument(name, document().AppendInt32(field, value).Build()).Build()
	}
	docs, err := s.all(ctx, coll.ns.DB(), func() *builder {
		pipeline := bsoncore.NewArrayBuilder().
			AppendDocument(stage("$sample", "size", int32(n))). //nolint:gosec // The caller limits it.
			AppendDocument(stage("$project", "_id", 1)).
			AppendDocument(stage("$sort", "_id", 1)).
			Build()
		return document().AppendString("aggregate", coll.ns.Collection()).AppendArray("pipeline", pipeline).
			AppendBoolean("allowDiskUse", true).AppendDocument("cursor", document().Build())
	})
	if servererr.IsNoSample(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.wrap(err, "take samples of %s", coll.ns)
	}
	ids := make([]bson.RawValue, 0, len(docs))
	for _, doc := range docs {
		if id := idOf(doc); id.Type != 0 && len(id.Value) <= mostSampleBytes {
			ids = append(ids, bson.RawValue{Type: id.Type, Value: slices.Clone(id.Value)})
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return ids, nil
}
