package fetcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// leaveTime is how long killing the cursor and ending the session may take.
	leaveTime = time.Second
	// probeTime is the limit of a find for a single entry.
	probeTime = 2 * time.Second
	// idlePause is the pause after a reply that has nothing new: a member need not wait
	// for a new entry before it replies.
	idlePause = 2 * time.Millisecond
)

// errSilent is the cause of a call that is given up.
var errSilent = errors.New("it did not answer in time")

// tail reads one member. It belongs to one goroutine.
type tail struct {
	cfg     *ReaderConfig
	metrics *metrics
	src     mongo.Caller
	host    string
	emit    func(ctx context.Context, r oplog.Reply) error
	lsid    bson.Raw
	// setID is the id that the set must have, zero while none is known.
	setID bson.ObjectID

	// last is the last entry that was passed on, or the one to start from; emitted is
	// false while that one is still to be passed on itself.
	last    oplog.OpTime
	emitted bool

	// cursor is the open cursor's id, 0 for none.
	cursor int64
	// meta is the metadata of the last reply that passed the checks, of this
	// cursor or an earlier one.
	meta Metadata
	// rbid is the member's rollback id since the cursor was opened.
	rbid    int64
	hasRBID bool
	// batch is how many entries the next reply may have.
	batch batchSize
	// idle is set when the last reply had nothing new, not even a commit point.
	idle bool
	// took is how long the member took for the last reply.
	took time.Duration
	// opened is set once a find has been sent; restarts counts the restarts in a row.
	opened   bool
	restarts int
	// lost is set when the last call had no reply.
	lost bool
	// refused is set when emit has returned an error.
	refused bool
	// left is set when the member is left because another one is better.
	left bool
}

// run opens cursors and reads them until one ends for good.
func (t *tail) run(ctx context.Context) error {
	defer t.leave(ctx)
	defer t.cfg.Meter.Enter(metric.Idle)
	for {
		err := t.follow(ctx)
		if err == nil || ctx.Err() != nil || t.refused || !restartable(err) || t.restarts >= t.cfg.restarts {
			return err
		}
		if t.cfg.onError != nil && t.cfg.onError(err) {
			return err
		}
		t.restarts++
		t.restart(ctx, err)
	}
}

// restart kills the cursor; the next one continues from the last entry passed on.
func (t *tail) restart(ctx context.Context, reason error) {
	t.metrics.restarts.Inc()
	t.cfg.Observer.Log(slog.LevelWarn, "opening the cursor on the oplog again", slog.String(keyHost, t.host),
		slog.String(keyLast, t.last.String()), slog.Int(keyAgain, t.restarts), slog.String(keyReason, reason.Error()))
	t.killCursor(ctx)
	t.hasRBID = false
}

// follow opens a cursor and reads it. It returns nil when the member ends the cursor,
// and when it is left.
func (t *tail) follow(ctx context.Context) error {
	limit := findTime
	if t.opened {
		limit = t.cfg.refindTime
	}
	t.opened = true
	p, err := t.page(ctx, t.findCommand(t.last.TS, limit.Milliseconds()), limit, firstBatch)
	if err != nil {
		return fmt.Errorf("open a cursor: %w", err)
	}
	t.cursor = p.cursor
	stop, err := t.take(ctx, &p, true)
	for err == nil && !stop && t.cursor != 0 {
		stop, err = t.next(ctx, &p)
	}
	return err
}

// next reads one more reply.
func (t *tail) next(ctx context.Context, p *page) (stop bool, err error) {
	if t.idle {
		if err := pause(ctx, idlePause, nil); err != nil {
			return false, err
		}
	}
	if *p, err = t.page(ctx, t.getMoreCommand(), t.cfg.AwaitTime, nextBatch); err != nil {
		if _, refused := errors.AsType[*servererr.Error](err); refused {
			t.cursor = 0 // a getMore that is refused ends its cursor
		}
		return false, fmt.Errorf("getMore: %w", err)
	}
	t.cursor = p.cursor
	if stop, err = t.take(ctx, p, false); err == nil {
		t.restarts = 0
	}
	return stop, err
}

// take checks a reply and passes it on.
func (t *tail) take(ctx context.Context, p *page, first bool) (stop bool, err error) {
	received := time.Now()
	t.cfg.Meter.Enter(metric.Busy)
	defer t.cfg.Meter.Enter(metric.Idle)
	meta, err := parseMetadata(p.raw)
	if err != nil {
		return false, err
	}
	if err := t.checkMember(&meta); err != nil {
		return false, err
	}
	skip := 0
	if first {
		if err := t.checkStart(ctx, p, &meta); err != nil {
			return false, err
		}
		if t.emitted {
			skip = 1
		}
	}
	after := t.last
	if first && skip == 0 {
		after = oplog.OpTime{Term: oplog.UninitializedTerm} // the start itself comes first
	}
	entries, err := p.entries(skip, after)
	if err != nil {
		return false, err
	}
	newest := t.last
	if len(entries) > 0 {
		newest = entries[len(entries)-1].OpTime
		if newest.After(meta.Committed) {
			return false, fmt.Errorf("%w: with read concern majority it shows %s, but its commit point is %s",
				ErrSourceBehind, newest, meta.Committed)
		}
		t.metrics.full.Inc()
		if newest.Before(meta.Committed) {
			t.cfg.Meter.Recount(metric.Idle, metric.Busy, t.took)
		}
	} else {
		t.metrics.empty.Inc()
	}
	if first {
		t.cfg.Observer.Log(slog.LevelInfo, "reading the oplog", slog.String(keyHost, t.host), slog.String(keyFrom, t.last.String()))
	}
	t.idle = len(entries) == 0 && meta.Committed == t.meta.Committed
	meta.LastFetched = newest
	next := t.accept(meta)
	if next == stopBefore {
		return true, nil
	}
	if len(entries) > 0 {
		if first {
			t.restarts = 0 // but not after a reply that only repeats the start
		}
		err = t.emitReply(ctx, oplog.Reply{Entries: entries, Bytes: p.bytes(len(entries)), Received: received})
	}
	return next == stopAfter, err
}

// checkMember checks that the member is of the same set, and has not rolled back since
// the cursor was opened.
func (t *tail) checkMember(meta *Metadata) error {
	switch {
	case t.hasRBID && meta.RBID != t.rbid:
		return fmt.Errorf("%w: its rollback id went from %d to %d", ErrRolledBack, t.rbid, meta.RBID)
	case meta.ReplicaSetID.IsZero():
	case t.setID.IsZero():
		t.setID = meta.ReplicaSetID
	case meta.ReplicaSetID != t.setID:
		return fmt.Errorf("%w: its replicaSetId is %s, expected %s", ErrForeignSet, meta.ReplicaSetID.Hex(), t.setID.Hex())
	}
	t.rbid, t.hasRBID = meta.RBID, true
	return nil
}

// accept records metadata that has passed the checks, and asks whether to continue.
func (t *tail) accept(meta Metadata) decision {
	meta.Host = t.host
	t.meta = meta
	t.metrics.committed.Set(seconds(meta.CommittedWall))
	if t.cfg.onReply == nil {
		return goOn
	}
	next := t.cfg.onReply(meta)
	t.left = next != goOn
	return next
}

// emitReply passes a reply on.
func (t *tail) emitReply(ctx context.Context, r oplog.Reply) error {
	// After emit, the entries belong to the receiver.
	newest := &r.Entries[len(r.Entries)-1]
	last, wall, n, bytes := newest.OpTime, newest.Wall, len(r.Entries), rawBytes(r.Entries)
	t.cfg.Meter.Enter(metric.Blocked)
	if err := t.emit(ctx, r); err != nil {
		t.refused = true
		return err
	}
	t.last, t.emitted = last, true
	t.metrics.entries.Add(float64(n))
	t.metrics.bytes.Add(float64(bytes))
	t.metrics.last.Set(seconds(wall))
	return nil
}

// rawBytes is the size of entries as they were sent, in bytes.
func rawBytes(entries []oplog.Entry) int64 {
	var n int64
	for i := range entries {
		n += int64(len(entries[i].Raw))
	}
	return n
}

func seconds(ms bson.DateTime) float64 { return float64(ms) / 1000 }

func (t *tail) page(ctx context.Context, cmd mongo.Command, limit time.Duration, batch string) (page, error) {
	began := time.Now()
	reply, err := t.call(ctx, cmd, limit)
	if err != nil {
		return page{}, err
	}
	p, err := parsePage(reply, batch)
	if err == nil {
		t.took = time.Since(began)
		t.batch.took(t.took, p.n, len(reply))
	}
	return p, err
}

// call runs a command that may take limit. It is lost if the reply does not begin to
// arrive some time after that, or stops arriving for as long; on a slow line the reply
// may take as long as it needs.
func (t *tail) call(ctx context.Context, cmd mongo.Command, limit time.Duration) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	bounded, cancel := mongo.WithSilence(ctx, limit+t.cfg.networkTime, t.cfg.networkTime, errSilent)
	defer cancel()
	reply, err := t.src.Call(bounded, cmd)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errSilent) && !isLost(err):
			err = &mongo.LostError{Host: t.host, Err: errSilent}
		}
		t.lost = isLost(err)
		return nil, err
	}
	t.lost = false
	return reply, nil
}

// killCursor kills the open cursor, if the member can be reached. Otherwise the member
// does so itself, after ten minutes.
func (t *tail) killCursor(ctx context.Context) {
	if t.cursor != 0 && !t.lost {
		ctx, cancel := context.WithTimeoutCause(ctx, leaveTime, errSilent)
		defer cancel()
		_, err := t.src.Call(ctx, t.killCommand()) // best effort
		t.lost = err != nil
	}
	t.cursor = 0
}

// leave kills the cursor and ends the session, even if ctx is done.
func (t *tail) leave(ctx context.Context) {
	if t.lost || !t.opened {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), leaveTime, errSilent)
	defer cancel()
	t.killCursor(ctx)
	if !t.lost {
		_, _ = t.src.Call(ctx, t.endCommand()) // best effort
	}
}

// pause waits for d, or until news is closed.
func pause(ctx context.Context, d time.Duration, news <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-news:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
