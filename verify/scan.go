package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

const (
	// mostFound is how many differences of a range are kept until it is known that the
	// collection is still the same one.
	mostFound = 100
	// mostJoined is the same for a range that cannot be resumed: it begins again from its
	// start, so that differences which were reported would be reported again.
	mostJoined = 10_000
	// staleCuts is how many cuts in a row may become too old before a range has made progress.
	staleCuts = 5
	// brieflyStale is the same for a collection that cannot be read on after a document, each time from its start.
	brieflyStale = 3
	// mostLost is how often a range that cannot be resumed is read from its beginning after a part of it was compared, however long
	// that took, and a capped collection because its oldest documents were overwritten before they were read.
	mostLost = 5
)

var (
	// errChanged reports that a collection was dropped, made again or renamed meanwhile.
	errChanged = errors.New("the collection was dropped, made or renamed meanwhile")
	// errStale reports a range that takes longer than cuts can be read.
	errStale = errors.New("a cut can be read for too short a time (minSnapshotHistoryWindowInSeconds)")
	// errOverwritten reports a capped collection that cannot be read to its end.
	errOverwritten = errors.New("its oldest documents are overwritten before they are read")
	// errRefused reports a collection that a server does not read: it is damaged, for example.
	errRefused = errors.New("its documents cannot be read")
	// errUnrecorded reports a collection whose comparison needs something else that a server refuses: a write to the metadata.
	errUnrecorded = errors.New("its documents cannot be compared")
	// errOutsideTxn reports that a server does not read as of a time outside of transactions: it is to be asked again.
	errOutsideTxn = errors.New("reads as of a time have to be in a transaction")
)

// scan compares one range of a collection. It belongs to one goroutine.
type scan struct {
	v *Verifier
	p *pair
	// pieces are the range; nil is the whole collection in one. order is how it is read.
	pieces []idrange.Piece
	order  order
	// snapshots means to read at cuts.
	snapshots bool
	// most limits the documents of each side, for a sample; 0 for all.
	most int64
	// onlyOrder has it keep the first differences of order, and nothing else: it looks for those that were found before.
	onlyOrder bool

	// tally and found are the results up to the present place, which is the index of a piece and
	// the last _id compared in it.
	tally Tally
	found []Difference
	piece int
	last  bson.RawValue
	// lost is whether the last attempt has compared a part that is read again.
	lost bool
	// cut is the one at which it reads, nil for none; used includes all cuts so far. since is one that is not newer than what it
	// has read without a cut, until one that is not older than the differences that it has confirmed, if any.
	cut   *Cut
	used  span
	since *Cut
	until *Cut
	// confirmed is how many documents it has confirmed several times that they differ; differs, whether it has confirmed any difference.
	confirmed int
	differs   bool
}

// span is the time at which the range was compared, nil for both without cuts.
func (s *scan) span() (first, last *Cut) {
	if s.used.first != nil {
		return s.used.first, s.used.last
	}
	return s.since, cmp.Or(s.until, s.since)
}

// span is the time between two cuts.
type span struct{ first, last *Cut }

func (u *span) add(c *Cut) {
	if c == nil {
		return
	}
	if u.first == nil || c.before(u.first) {
		u.first = c
	}
	if u.last == nil || u.last.before(c) {
		u.last = c
	}
}

// run compares the range. When it returns nil all differences have been reported.
func (s *scan) run(ctx context.Context) error {
	if err := s.read(ctx); err != nil {
		return err
	}
	if err := s.flush(ctx); err != nil || !s.differs || !s.v.stores() {
		return err
	}
	// Documents that a repair has found the same at an earlier cut differ again.
	until, err := s.v.cuts.reachTarget(ctx, s.v.target.heard.Time())
	s.until = &until
	return err
}

// read reads the range to its end, again after errors that pass.
func (s *scan) read(ctx context.Context) error {
	tries := s.v.retrier.retry().Start()
	for stale, lost := 0, 0; ; {
		before, whole := s.place(), s.pieces == nil && s.order == byID
		err := s.attempt(ctx)
		progress := s.place() != before
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errLongTxn):
			stale = 0
		case errors.Is(err, errOutsideTxn):
			s.v.cuts.setBrief()
			continue
		case s.cut != nil && (servererr.IsSnapshotTooOld(err) || servererr.IsGoneTransaction(err)): // a transaction lives for a minute
			if stale++; progress {
				stale = 0
			}
			if !whole && (stale == staleCuts || stale == brieflyStale && s.order != byID) {
				return fmt.Errorf("%w: %w", errStale, err)
			}
			s.v.cuts.leave(s.cut)
		case !mongo.RepeatsRead(err) || servererr.IsSnapshotUnavailable(err):
			return err
		default:
			overwritten := servererr.IsPositionLost(err)
			if s.lost || overwritten {
				lost++
				progress = progress || lost < mostLost
			}
			if overwritten && lost >= mostLost {
				return fmt.Errorf("%w: %w", errOverwritten, err)
			}
			if progress {
				tries = s.v.retrier.retry().Start()
			}
			if err := tries.Wait(ctx, err); err != nil {
				return err
			}
		}
		if whole {
			s.pieces = idrange.All() // which can be resumed
		}
	}
}

// place identifies how far the range has come.
func (s *scan) place() string { return fmt.Sprint(s.piece, s.last.Type, string(s.last.Value)) }

// attempt continues at a cut, as long as that can be read.
func (s *scan) attempt(ctx context.Context) error {
	s.cut, s.lost = nil, false
	if s.snapshots {
		cut, err := s.v.cuts.get(ctx)
		if err != nil {
			return err
		}
		s.cut = &cut
		s.used.add(s.cut)
	} else if s.v.cuts != nil && s.since == nil {
		s.since = s.v.cuts.last()
	}
	if s.pieces == nil {
		return s.onePiece(ctx, nil)
	}
	for s.piece < len(s.pieces) {
		if err := s.onePiece(ctx, &s.pieces[s.piece]); err != nil {
			return err
		}
		s.piece, s.last = s.piece+1, bson.RawValue{}
	}
	return nil
}

// onePiece compares a piece, from the place on. After an error the place is that of the last
// document that was compared, if the piece can be resumed, and otherwise its start.
func (s *scan) onePiece(ctx context.Context, piece *idrange.Piece) (err error) {
	resumes := piece != nil && piece.Resumable() && s.order == byID
	if !resumes && len(s.found) > 0 { // An error in this piece does not take back those of earlier pieces.
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	tally := s.tally
	source, target := s.streams(ctx, reading{
		order: s.order, piece: piece, last: s.last, limit: s.most, resumes: s.order == byID && (piece == nil || piece.Resumable()),
	})
	defer source.close(ctx)
	defer target.close(ctx)
	if s.order == byID || s.order == sorted {
		err = s.merge(ctx, source, target)
	} else {
		err = s.join(ctx, source, target, s.order == inserted)
	}
	if err == nil {
		return nil
	}
	if !resumes {
		s.lost = s.tally != tally
		s.tally, s.found, s.last = tally, s.found[:0], bson.RawValue{}
	}
	s.last.Value = bytes.Clone(s.last.Value) // not a view of a reply any more
	return err
}

// streams opens both sides.
func (s *scan) streams(ctx context.Context, how reading) (source, target *stream) {
	onSource, onTarget := how, how
	if s.cut != nil {
		onSource.at, onTarget.at = &s.cut.Source, &s.cut.Target
	} else if s.since != nil {
		onSource.since, onTarget.since = s.since.Source, s.since.Target
	}
	return newStream(ctx, s.v.source, s.p.want, onSource, &s.v.pace), newStream(ctx, s.v.target, s.p.got, onTarget, &s.v.pace)
}

// of adds to an error whose documents were read. From then on a server that refuses it outside of transactions is read
// in those.
func (p *pair) of(st *stream, err error) error {
	if st.how.at != nil && st.txn == nil && servererr.IsOptionRefused(err) {
		st.side.inTxn.Store(true)
		err = fmt.Errorf("%w: %w", errOutsideTxn, err)
	}
	return st.side.wrap(err, "read the documents of %s", st.coll.ns)
}

// holds returns how many differences are kept.
func (s *scan) holds() int {
	if s.order == byID && s.pieces != nil && s.pieces[s.piece].Resumable() {
		return mostFound
	}
	return mostJoined
}

func (s *scan) missing(doc bson.Raw) {
	s.tally.SourceDocs++
	s.tally.Bytes += int64(len(doc))
	s.add(Missing, doc)
}

func (s *scan) extra(doc bson.Raw) {
	s.tally.TargetDocs++
	s.add(Extra, doc)
}

func (s *scan) displaced(doc bson.Raw) { s.keep(ofDocument(s.p, Order, idOf(doc))) }

// both compares two documents with equal _ids.
func (s *scan) both(a, b bson.Raw) {
	s.tally.SourceDocs++
	s.tally.TargetDocs++
	s.tally.Bytes += int64(len(a))
	s.last = idOf(a)
	if d, differs := s.v.compare(s.p, a, b); differs {
		d.size = max(len(a), len(b))
		s.keep(d)
		return
	}
	s.tally.EqualDocs++
}

func (s *scan) add(kind Kind, doc bson.Raw) {
	id := idOf(doc)
	d := ofDocument(s.p, kind, id)
	d.size = len(doc)
	s.keep(d)
	s.last = id
}

func (s *scan) keep(d Difference) {
	if s.onlyOrder && (d.Kind != Order || len(s.found) == mostJoined) {
		return
	}
	d.Cut = s.cut.Times()
	s.found = append(s.found, d)
}

// compare compares two documents with equal _ids.
func (v *Verifier) compare(p *pair, a, b bson.Raw) (Difference, bool) {
	if bytes.Equal(a, b) {
		return Difference{}, false
	}
	paths, more := compareDocuments(a, b, v.cfg.AnyFieldOrder, v.cfg.ShowValues)
	if len(paths) == 0 {
		return Difference{}, false
	}
	d := ofDocument(p, Differs, idOf(a))
	d.Paths, d.MorePaths = paths, more
	return d, true
}

// flush reports the differences found, after it has checked that both sides still have the
// collections that were read: one that was dropped meanwhile reads as empty. Without cuts, each difference
// is confirmed first.
func (s *scan) flush(ctx context.Context) error {
	if s.most > 0 && len(s.found) == 0 {
		return nil // sample looks at the end
	}
	if err := s.v.unchanged(ctx, s.p); err != nil {
		return err
	}
	found := s.found
	if s.confirms() && len(found) > 0 {
		var err error
		if found, err = s.confirm(ctx, found); err != nil {
			return err
		}
		if found, err = s.displacedStill(ctx, found); err != nil {
			return err
		}
		s.differs = s.differs || len(found) > 0
	}
	if err := s.v.report(ctx, s.p.sourceNS, found); err != nil {
		return err
	}
	for i := range found {
		count(&s.tally, found[i].Kind)
	}
	s.found = s.found[:0]
	return nil
}

// confirms reports whether documents that differ are read again: they were not read at a cut.
func (s *scan) confirms() bool { return s.v.cfg.Cuts != nil && s.cut == nil }

// unchanged returns errChanged if a side does not have the collection any more that was listed.
func (v *Verifier) unchanged(ctx context.Context, p *pair) error {
	for _, at := range []struct {
		side *side
		coll *listed
	}{{v.source, p.want}, {v.target, p.got}} {
		same, err := at.side.is(ctx, at.coll)
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("%s of the %s: %w", at.coll.ns, at.side.name, errChanged)
		}
	}
	return nil
}
