package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
)

// order is the way in which the documents of a collection are read and put together.
type order string

const (
	// byID: both sides in the order of _id, merged.
	byID order = "by _id"
	// joined: both sides in the order of their index on _id, by a collation; each document
	// waits for its counterpart.
	joined order = "by _id, under a collation"
	// inserted: both sides in the order of insertion; each document waits for its counterpart,
	// and the order is compared.
	inserted order = "in the order of insertion"
	// sorted: both sides sorted by the servers, merged.
	sorted order = "sorted by the servers"
)

// errDisplaced reports more documents at other places than can be looked for again.
var errDisplaced = fmt.Errorf("more than %d documents are at other places among the others", mostJoined/2)

// errCrowded reports too many documents without a counterpart.
var errCrowded = errors.New("too many documents have no counterpart at their place")

// merge compares two streams in the order of _id. Both are checked to be in the order that is
// known here: if a server has another one, the result is errDisorder, and never a wrong
// difference.
func (s *scan) merge(ctx context.Context, source, target *stream) error {
	for {
		a, err := source.peek(ctx)
		if err != nil {
			return s.p.of(source, err)
		}
		b, err := target.peek(ctx)
		if err != nil {
			return s.p.of(target, err)
		}
		if a == nil && b == nil || s.cutOff(source, target, a, b) {
			return nil
		}
		c, err := compareNext(source, target, a, b)
		if err != nil {
			return err
		}
		switch {
		case c < 0:
			s.missing(a)
			source.advance()
		case c > 0:
			s.extra(b)
			target.advance()
		default:
			s.both(a, b)
			source.advance()
			target.advance()
		}
		if len(s.found) >= s.holds() {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// compareNext compares the _ids of the next documents, nil for none.
func compareNext(source, target *stream, a, b bson.Raw) (int, error) {
	if a != nil {
		if err := source.load(a); err != nil {
			return 0, fmt.Errorf("the source: %w", err)
		}
	}
	switch {
	case b == nil:
		return -1, nil
	case a != nil && bytes.Equal(a, b):
		if err := target.loadLike(source); err != nil {
			return 0, fmt.Errorf("the target: %w", err)
		}
		return 0, nil
	}
	if err := target.load(b); err != nil {
		return 0, fmt.Errorf("the target: %w", err)
	}
	if a == nil {
		return 1, nil
	}
	return bytes.Compare(source.key, target.key), nil
}

// waiting are documents of one side by their _ids, those of one _id in the order in which they
// came.
type waiting struct {
	docs  map[string][]held
	bytes int
}

// held is a document that waits, and its number.
type held struct {
	doc bson.Raw
	n   int64
}

func (w *waiting) put(key []byte, doc bson.Raw, n int64) {
	if w.docs == nil {
		w.docs = map[string][]held{}
	}
	// A copy, so that one document does not keep a whole reply.
	w.docs[string(key)] = append(w.docs[string(key)], held{slices.Clone(doc), n})
	w.bytes += len(doc) + len(key)
}

func (w *waiting) take(key []byte) (held, bool) {
	list := w.docs[string(key)]
	if len(list) == 0 {
		return held{}, false
	}
	if len(list) == 1 {
		delete(w.docs, string(key))
	} else {
		w.docs[string(key)] = list[1:]
	}
	w.bytes -= len(list[0].doc) + len(key)
	return list[0], true
}

// rest returns the waiting documents, in the order in which they came.
func (w *waiting) rest() []held {
	var all []held
	for _, list := range w.docs {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b held) int { return int(min(1, max(-1, a.n-b.n))) })
	return all
}

// join compares two streams of any order: each document waits for the one of the other side
// with an equal _id. If ordered, it also finds documents at other places.
func (s *scan) join(ctx context.Context, source, target *stream, ordered bool) error {
	var fromSource, fromTarget waiting
	var key []byte
	// A pair is displaced if one that is not is before it on one side, and after it on the other.
	// The farthest places of those decide, as one of a pair has just come, so is after them all.
	farSource, farTarget := int64(-1), int64(-1)
	pairUp := func(a, b held) {
		if ordered && (a.n < farSource || b.n < farTarget) {
			s.displaced(a.doc)
		} else {
			farSource, farTarget = a.n, b.n
		}
		s.both(a.doc, b.doc)
	}
	for {
		a, err := source.peek(ctx)
		if err != nil {
			return s.p.of(source, err)
		}
		b, err := target.peek(ctx)
		if err != nil {
			return s.p.of(target, err)
		}
		if a == nil && b == nil {
			break
		}
		if a != nil {
			key = bsonorder.AppendKey(key[:0], idOf(a), nil)
			if other, ok := fromTarget.take(key); ok {
				pairUp(held{a, source.count}, other)
			} else {
				fromSource.put(key, a, source.count)
			}
		}
		if b != nil {
			key = bsonorder.AppendKey(key[:0], idOf(b), nil)
			if other, ok := fromSource.take(key); ok {
				pairUp(other, held{b, target.count})
			} else {
				fromTarget.put(key, b, target.count)
			}
		}
		if err := s.makeRoom(ctx, fromSource.bytes+fromTarget.bytes); err != nil {
			return err
		}
		if a != nil {
			source.advance()
		}
		if b != nil {
			target.advance()
		}
	}
	for _, h := range fromSource.rest() {
		s.missing(h.doc)
	}
	for _, h := range fromTarget.rest() {
		s.extra(h.doc)
	}
	return nil
}

// makeRoom reports differences of a range that is joined, so that not too many are kept. Those of order are kept until the end if
// they are few: to confirm them the whole collection is read again. Documents of so many bytes wait for their counterpart.
func (s *scan) makeRoom(ctx context.Context, waiting int) error {
	if waiting > s.v.cfg.joinBytes() {
		return errCrowded
	}
	if len(s.found) < s.holds() || s.onlyOrder {
		return nil
	}
	var moved, others []Difference
	for i := range s.found {
		if s.found[i].Kind == Order {
			moved = append(moved, s.found[i])
		} else {
			others = append(others, s.found[i])
		}
	}
	if len(moved) <= mostJoined/2 {
		s.found = others
		err := s.flush(ctx)
		s.found = append(moved, s.found...)
		return err
	}
	before := s.tally.Order
	if err := s.flush(ctx); err != nil {
		return err
	}
	if s.tally.Order > before && s.confirms() {
		return errDisplaced
	}
	return nil
}
