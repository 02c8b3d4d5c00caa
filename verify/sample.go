package verify

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/idrange"
)

const (
	// leastSampled is the size, in documents, up to which a collection is compared as a whole.
	leastSampled = 10_000
	// runDocs is how many neighbouring documents one element of a sample has.
	runDocs = 100
	// mostRuns is how many elements are chosen at once.
	mostRuns = 10_000
)

// sample compares runs of neighbouring documents, each from a random _id on: so it also finds
// documents that one side has and the other one has not. It returns false if the source has no
// _ids to begin at: nothing is compared then.
func (v *Verifier) sample(ctx context.Context, p *pair, c *Collection, snapshots bool) (sampled bool, err error) {
	if err := v.ranges.Acquire(ctx, 1); err != nil {
		return false, context.Cause(ctx)
	}
	defer v.ranges.Release(1)
	var used span
	for left := int(math.Ceil(v.cfg.Sample * float64(p.want.docs) / runDocs)); left > 0; left -= mostRuns {
		ids, err := v.source.samples(ctx, p.want, min(left, mostRuns))
		if err != nil {
			return false, err
		}
		for _, id := range ids {
			from, ok := idrange.From(id)
			if !ok {
				continue
			}
			s := scan{v: v, p: p, pieces: []idrange.Piece{from}, order: byID, snapshots: snapshots, most: runDocs}
			if err := s.run(ctx); err != nil {
				return false, err
			}
			sampled = true
			c.Add(&s.tally)
			used.add(s.used.first)
			used.add(s.used.last)
		}
	}
	if !sampled {
		return false, nil
	}
	c.How = "a sample, " + c.How
	if snapshots && v.inTxn() {
		c.How += inTxn
	}
	v.settleCuts(c, &used, nil)
	return true, v.unchanged(ctx, p)
}

// cutOff reports whether one side of a run has ended because it was asked for no more: what the
// other one still has is after the run.
func (s *scan) cutOff(source, target *stream, a, b bson.Raw) bool {
	return s.most > 0 && (a == nil && source.count == s.most || b == nil && target.count == s.most)
}
