package clone

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// closeTimeout limits closing a cursor, or aborting a transaction, during shutdown.
	closeTimeout = 2 * time.Second
	// crowdedPart is the fraction of RetryFor for which a flush is retried before it is
	// divided: smaller flushes conflict less.
	crowdedPart = 10
)

// reader reads a range in its order. It is for one goroutine.
type reader struct {
	*Cloner
	coll   *progress.Collection
	spec   spec
	capped bool

	order  order
	pieces []idrange.Piece
	// record is the last one that was read, or that the range begins after; anchors are
	// earlier ones that existed.
	record  int64
	anchors anchors
	// piece is the piece that is being read, last the _id of its last document.
	piece int
	last  bson.RawValue

	// cursor is open if it is not zero; name is the collection's name in its replies.
	cursor int64
	name   string
	// seen is the last record that the cursor returned.
	seen int64
	// fallbacks counts the records to resume after that no longer existed.
	fallbacks int
}

func newReader(c *Cloner, coll *progress.Collection, sp spec, at place) *reader {
	r := &reader{
		Cloner: c, coll: coll, spec: sp, capped: isCapped(coll), order: sp.order, pieces: sp.pieces,
		record: max(sp.from, at.record), anchors: at.anchors, piece: at.piece, last: at.last,
	}
	if at.order != "" {
		r.order = at.order
	}
	r.setPieces()
	return r
}

// setPieces sets the pieces to read by _id if the range is the whole collection.
func (r *reader) setPieces() {
	switch {
	case r.order == natural || len(r.pieces) > 0:
	case r.coll.NS.IsBuckets():
		r.pieces = idrange.Buckets()
	default:
		r.pieces = idrange.All()
	}
}

// run reads the rest of the range and sends it on out.
func (r *reader) run(ctx context.Context, out chan<- *page) error {
	defer r.closeCursor(ctx)
	for {
		p, err := r.next(ctx)
		if err != nil {
			return err
		}
		if len(p.docs) == 0 && !p.last {
			r.memory.Release(p.reserved)
			continue
		}
		last := p.last // the receiver owns the page once it is sent
		select {
		case out <- p:
		case <-ctx.Done():
			r.memory.Release(p.reserved)
			return context.Cause(ctx)
		}
		if last {
			return nil
		}
	}
}

// next reads one reply, with retries.
func (r *reader) next(ctx context.Context) (*page, error) {
	if err := r.memory.Acquire(ctx, replyBytes); err != nil {
		return nil, context.Cause(ctx)
	}
	p, err := r.try(ctx)
	if err != nil {
		r.memory.Release(replyBytes)
		return nil, err
	}
	r.memory.Release(replyBytes - p.reserved)
	return p, nil
}

func (r *reader) try(ctx context.Context) (p *page, err error) {
	err = r.persist(ctx, func() (err error) {
		p, err = r.ask(ctx)
		return err
	})
	return p, err
}

// persist calls ask until it succeeds, or fails permanently.
func (r *reader) persist(ctx context.Context, ask func() error) error {
	tries := mongo.Retry{For: r.cfg.RetryFor, Again: func(error) bool { return true }, Failed: func(err error) {
		r.cfg.Observer.Log(slog.LevelDebug, "reading a collection goes on after an interruption",
			slog.String(keyNS, string(r.coll.NS)), slog.String(keyCause, err.Error()))
	}}.Start()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		switch v := r.judge(err); v {
		case readEnd:
			return err
		case readGone:
			return ErrGone
		case readHole:
			return ErrHole
		default:
			if errors.Is(err, errNoRecord) {
				r.closeCursor(ctx)
			}
			// After an error, the cursor is closed, or lost.
			r.cursor = 0
			if v == readAtOnce {
				continue
			}
		}
		if err := tries.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// readVerdict is the reaction to an error of a read.
type readVerdict uint8

const (
	readEnd    readVerdict = iota // of the attempt
	readGone                      // of the collection
	readAgain                     // another cursor, later
	readAtOnce                    // another cursor, opened elsewhere
	readHole                      // of the collection, as far as it was read
)

func (r *reader) judge(err error) readVerdict {
	if errors.Is(err, errNoRecord) && r.spec.whole() && r.seen == 0 && r.record == 0 && !r.capped {
		// Record ids of this collection are not numbers: it is ordered by _id.
		r.byID()
		return readAtOnce
	}
	if servererr.IsNoRecord(err) {
		if r.order != natural || r.cursor != 0 || r.fallbacks >= len(r.resumePoints()) {
			return readEnd
		}
		if r.capped && r.cfg.NoHoles {
			return readHole
		}
		r.fallbacks++
		return readAtOnce
	}
	switch {
	case servererr.IsNoNamespace(err):
		return readGone
	case servererr.IsNotUnderstood(err):
		if r.order == natural && r.cursor == 0 && r.spec.whole() && r.record == 0 && !r.capped {
			// The server does not support the request.
			r.byID()
			return readAtOnce
		}
		return readEnd
	case servererr.IsReadFailed(err), mongo.PassesRead(err):
		return readAgain
	default:
		return readEnd
	}
}

// byID switches to the order of _ids.
func (r *reader) byID() {
	r.order, r.fallbacks = byID, 0
	r.setPieces()
}

// resumePoints returns the records to resume after, the best one first. The last resort
// is the beginning of the collection; documents that are then read twice are skipped.
func (r *reader) resumePoints() []int64 {
	if r.record == 0 {
		return nil
	}
	points := []int64{r.record}
	if r.capped {
		return points // all records before it were deleted before it was
	}
	for _, n := range slices.Concat(r.anchors, r.spec.before, []int64{r.spec.from}) {
		if n > 0 && n < r.record {
			points = append(points, n)
		}
	}
	slices.SortFunc(points, func(a, b int64) int { return cmp.Compare(b, a) })
	return slices.Compact(points)
}

// ask sends one command.
func (r *reader) ask(ctx context.Context) (*page, error) {
	opening := r.cursor == 0
	var cmd mongo.Command
	if opening {
		r.seen = 0
		var resume int64
		if points := r.resumePoints(); r.fallbacks < len(points) {
			resume = points[r.fallbacks]
		}
		cmd = r.findCommand(resume)
	} else {
		cmd = r.getMoreCommand()
	}
	start := time.Now()
	reply, err := r.cfg.Source.Call(ctx, cmd)
	if err != nil {
		if _, lost := errors.AsType[*mongo.LostError](err); lost {
			r.cursor = 0 // it cannot be closed; it ends with its session
		}
		return nil, err
	}
	c, err := parseCursor(reply)
	if err != nil {
		return nil, err
	}
	r.cursor, r.name = c.id, c.ns.Collection()
	if opening {
		if err := r.checkPlaces(ctx); err != nil {
			r.closeCursor(ctx)
			return nil, err
		}
	}
	p, err := r.readPage(c, len(reply))
	if err != nil {
		return nil, err
	}
	r.fallbacks = 0
	r.took(Source, start, len(p.docs), len(reply))
	return p, nil
}

// checkPlaces is called after a cursor was opened. If that was at a record id, or ends at
// one, the member must still be the one that had those record ids: asked after the reply,
// it was so before, too. A cursor does not outlive a change of its member.
func (r *reader) checkPlaces(ctx context.Context) error {
	if r.order != natural || r.record == 0 && r.spec.to == 0 || r.cfg.Unchanged == nil {
		return nil
	}
	return r.cfg.Unchanged(ctx)
}

// most returns how many documents the next reply may have, of a cursor that is at a
// record. Record ids ascend, so they limit how many can be left of the range; later
// ones would be sent for nothing.
func (r *reader) most(at int64) int32 {
	if r.order != natural || r.spec.to == 0 {
		return r.batch
	}
	return int32(min(int64(r.batch), max(1, r.spec.to-at))) //nolint:gosec // no more than batch
}

// readPage reads the documents of a reply, and moves the reader after them.
func (r *reader) readPage(c cursorReply, size int) (*page, error) {
	p := &page{order: r.order, piece: r.piece}
	it := rawbson.NewIter(c.batch)
	for it.Next() {
		raw, ok := it.Document()
		if !ok {
			return nil, fmt.Errorf("read a reply: a document is %s", it.Type)
		}
		d, err := inspect(raw, r.order == natural)
		if err != nil {
			return nil, err
		}
		take, past, err := r.pass(&d)
		if err != nil {
			return nil, err
		}
		if past {
			p.last = true
			break
		}
		if take {
			if p.docs == nil {
				p.docs = make([]document, 0, min(replyDocs, len(c.batch)/len(raw)+1))
			}
			p.docs = append(p.docs, d)
		}
	}
	if it.Err() != nil {
		return nil, fmt.Errorf("read a reply: %w", it.Err())
	}
	p.reserved = min(int64(size+cap(p.docs)*documentBytes), replyBytes)
	r.finish(p, c.id == 0)
	return p, nil
}

// finish records in a page where the reader is after it, and moves the reader to the next piece if it has ended this one.
func (r *reader) finish(p *page, ended bool) {
	// The reply's memory must not outlive the page.
	r.last.Value = slices.Clone(r.last.Value)
	p.last = p.last || r.order == natural && r.spec.to != 0 && r.record >= r.spec.to
	if r.order == natural && len(p.docs) > 0 && !r.capped {
		r.anchors = r.anchors.add(r.record)
	}
	p.record = r.record
	switch {
	case p.last || !ended:
	case r.order == byID && r.piece+1 < len(r.pieces):
		r.piece++
		r.last = bson.RawValue{}
	default:
		p.last = true
	}
}

// pass moves the reader after a document. It reports whether the document was not read
// before, and whether it is after the end of the range.
func (r *reader) pass(d *document) (take, past bool, err error) {
	if r.order == natural {
		if d.record <= r.seen {
			return false, false, fmt.Errorf("read in natural order: record %d came after record %d", d.record, r.seen)
		}
		r.seen = d.record
		switch {
		case r.spec.to != 0 && d.record > r.spec.to:
			return false, true, nil
		case d.record <= r.record:
			return false, false, nil
		}
		r.record = d.record
		return true, false, nil
	}
	if !r.pieces[r.piece].Resumable() {
		return true, false, nil
	}
	id := d.id()
	if r.last.Type == bson.TypeObjectID && id.Type == bson.TypeObjectID && bytes.Compare(r.last.Value, id.Value) >= 0 {
		return false, false, fmt.Errorf("read in the order of _id: %s came after %s", id, r.last)
	}
	r.last = id
	return true, false, nil
}

// closeCursor closes the cursor of a range that ends before the end of the collection.
func (r *reader) closeCursor(ctx context.Context) {
	if r.cursor == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_, _ = r.cfg.Source.Call(ctx, r.killCommand())
	r.cursor = 0
}
