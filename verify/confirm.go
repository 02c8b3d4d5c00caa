package verify

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
)

const (
	// confirmDocs is how many documents are read again at once, and confirmBytes how many bytes of them if there is more than
	// one: both sides are read, one of them twice.
	confirmDocs, confirmBytes = 100, 4 << 20
	// confirmTries is how often a document is read again that the source changes meanwhile.
	confirmTries = 10
	// confirmTimes is how often each document must differ before it is reported, until confirmMost of a range have. Of those after
	// them, once is enough: what they are does not decide whether the collection is the same.
	confirmTimes, confirmMost = 4, 1000
)

// confirm returns the differences that remain when their documents are read again, for
// collections that cannot be read as of a cut. The source's documents are read before and
// after the target's, and a cut in between: what the source has not changed meanwhile, the
// target must have. It may have changed a document to and fro, or deleted it and inserted it again, so
// documents must differ several times in turn. Differences of order are confirmed by displacedStill.
func (s *scan) confirm(ctx context.Context, found []Difference) ([]Difference, error) {
	var sure, open []Difference
	for i := range found {
		if found[i].Kind == Order || len(found[i].IDBSON) == 0 {
			sure = append(sure, found[i])
		} else {
			open = append(open, found[i])
		}
	}
	open, unsettled, err := s.v.confirmOnce(ctx, s.p, open)
	if err != nil {
		return nil, err
	}
	if len(unsettled) > 0 {
		return nil, fmt.Errorf("%d documents differ, and the source changed them each time that they were read: %w", len(unsettled), errUnsettled)
	}
	confirmed := s.confirmed
	for len(open) > 0 && confirmed < confirmMost {
		n := atOnce(open)
		part := open[:n]
		open = open[n:]
		for times := 1; times < confirmTimes && len(part) > 0; times++ {
			if part, unsettled, err = s.v.confirmOnce(ctx, s.p, part); err != nil {
				return nil, err
			}
			// One that has differed before, and that the source then changes each time, counts as different.
			sure = append(sure, unsettled...)
			confirmed += len(unsettled)
		}
		sure = append(sure, part...)
		confirmed += len(part)
	}
	s.confirmed = confirmed // not of a try that failed
	return append(sure, open...), nil
}

// confirmOnce returns those differences that remain when documents are read again, until the source has not changed them meanwhile.
// Unsettled are those that the source has changed each time.
func (v *Verifier) confirmOnce(ctx context.Context, p *pair, open []Difference) (sure, unsettled []Difference, err error) {
	for try := 0; len(open) > 0; try++ {
		if try == confirmTries {
			return sure, open, nil
		}
		var moving []Difference
		for len(open) > 0 {
			n := atOnce(open)
			s, m, err := v.confirmPart(ctx, p, open[:n])
			if err != nil {
				return nil, nil, err
			}
			sure, moving, open = append(sure, s...), append(moving, m...), open[n:]
		}
		open = moving
	}
	return sure, nil, nil
}

// atOnce returns how many documents are read again at once, of those that come first.
func atOnce(open []Difference) (n int) {
	for bytes := 0; n < min(len(open), confirmDocs); n++ {
		if bytes += open[n].size; bytes > confirmBytes && n > 0 {
			break
		}
	}
	return n
}

// confirmPart reads documents again. Moving are those that the source has changed meanwhile. A primary that was just elected may not
// know yet that a majority has the last writes, so both sides are read as of the cut at least.
func (v *Verifier) confirmPart(ctx context.Context, p *pair, part []Difference) (sure, moving []Difference, err error) {
	before, err := v.source.byIDs(ctx, p.want, part, bson.Timestamp{})
	if err != nil {
		return nil, nil, err
	}
	cut, err := v.cuts.reach(ctx, v.source.heard.Time())
	if err != nil {
		return nil, nil, err
	}
	target, err := v.target.byIDs(ctx, p.got, part, cut.Target)
	if err != nil {
		return nil, nil, err
	}
	after, err := v.source.byIDs(ctx, p.want, part, cut.Source)
	if err != nil {
		return nil, nil, err
	}
	for i := range part {
		key := bsonorder.AppendKey(nil, part[i].id(), nil)
		a, b, again := before[string(key)], target[string(key)], after[string(key)]
		var d Difference
		differs := true
		switch {
		case !bytes.Equal(a, again):
			moving = append(moving, part[i])
			continue
		case a == nil && b == nil:
			continue
		case b == nil:
			d = ofDocument(p, Missing, idOf(a))
		case a == nil:
			d = ofDocument(p, Extra, idOf(b))
		default:
			d, differs = v.compare(p, a, b)
		}
		if differs {
			d.size = max(len(a), len(b))
			sure = append(sure, d)
		}
	}
	return sure, moving, nil
}

// byIDs reads the documents of differences, by the keys of their _ids, as of a time or later. They are
// copies of nothing: views into replies that nothing else keeps.
func (s *side) byIDs(ctx context.Context, coll *listed, part []Difference, since bson.Timestamp) (map[string]bson.Raw, error) {
	list := bsoncore.NewArrayBuilder()
	for i := range part {
		list.AppendValue(coreValue(part[i].id()))
	}
	in := list.Build()
	docs, err := s.all(ctx, coll.ns.DB(), func() *builder {
		return s.find(coll).
			AppendDocument("filter", document().AppendDocument("_id", document().AppendArray("$in", in).Build()).Build()).
			AppendDocument("readConcern", committed(since))
	})
	if err != nil {
		return nil, s.wrap(err, "read documents of %s again", coll.ns)
	}
	byKey := make(map[string]bson.Raw, len(docs))
	for _, doc := range docs {
		byKey[string(bsonorder.AppendKey(nil, idOf(doc), nil))] = doc
	}
	return byKey, nil
}

// orderTries is how often a collection is read again that has documents at other places.
const orderTries = 3

// displacedStill drops differences of order that are not found each time that the collection is
// read again: a document may have been deleted and inserted again between reading one side and
// the other.
func (s *scan) displacedStill(ctx context.Context, found []Difference) ([]Difference, error) {
	for range orderTries {
		if !slices.ContainsFunc(found, func(d Difference) bool { return d.Kind == Order }) {
			return found, nil
		}
		if _, err := s.v.cuts.reach(ctx, s.v.source.heard.Time()); err != nil {
			return nil, err
		}
		once := scan{v: s.v, p: s.p, order: s.order, onlyOrder: true}
		if err := once.read(ctx); err != nil {
			return nil, err
		}
		if len(once.found) == mostJoined { // There may be others, which are not kept.
			return found, nil
		}
		still := map[string]bool{}
		for i := range once.found {
			if once.found[i].Kind == Order {
				still[string(once.found[i].IDBSON)] = true
			}
		}
		found = slices.DeleteFunc(found, func(d Difference) bool { return d.Kind == Order && !still[string(d.IDBSON)] })
	}
	return found, nil
}
