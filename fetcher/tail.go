package fetcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// smallReply is the size of a reply, in bytes, below which reading pauses.
	smallReply = 40_000
	// leaveTime bounds the good-bye to a member.
	leaveTime = time.Second
	// probeTime is the limit of a command that only asks for metadata, probeBeat
	// the time between two while reading is held up.
	probeTime = 2 * time.Second
	probeBeat = 50 * time.Millisecond
	// idlePause follows a reply that has nothing new, so that a member that does
	// not wait for something new is not asked without end.
	idlePause = 2 * time.Millisecond
)

// errSilent is why a call is given up on.
var errSilent = errors.New("it did not answer in time")

// tail is the reading of one member. It belongs to one goroutine.
type tail struct {
	cfg     *Config
	deps    *Deps
	metrics *metrics
	src     Source
	host    string
	emit    func(ctx context.Context, r oplog.Reply) error
	lsid    bson.Raw
	// setID is the id that the set has to have, zero while none is known.
	setID bson.ObjectID

	// last is the last entry handed on, or the one to start from; emitted is false
	// while that one is still to be handed on itself.
	last    oplog.OpTime
	emitted bool
	// seen is the last entry read; what is between last and seen is held.
	// Invariant: last <= seen.
	seen oplog.OpTime
	held held

	// cursor is the open cursor's id, 0 for none.
	cursor int64
	// meta is the metadata of the last reply that passed the checks, of this
	// cursor or an earlier one.
	meta    Metadata
	hasMeta bool
	// rbid is the member's rollback id since the cursor was opened.
	rbid    int64
	hasRBID bool
	// batch is how many entries the next reply may have.
	batch batchSize
	// idle is set when the last reply had nothing new, not even a commit point.
	idle bool
	// opened tells whether a find has been sent before; restarts counts those in a
	// row.
	opened   bool
	restarts int
	// lost is set when the last call had no answer.
	lost bool
	// refused is set when emit would not take a reply.
	refused bool
	why     End
}

// run opens cursors and reads them until one ends for good.
func (t *tail) run(ctx context.Context) error {
	defer t.leave(ctx)
	for {
		err := t.follow(ctx)
		if err == nil || ctx.Err() != nil || t.refused || !restartable(err) || t.restarts >= t.cfg.Restarts {
			return err
		}
		if t.deps.OnError != nil && t.deps.OnError(t.host, err) {
			return err
		}
		t.restarts++
		t.restart(ctx, err)
	}
}

// restart gives up the cursor and goes back to the last entry handed on.
func (t *tail) restart(ctx context.Context, reason error) {
	t.metrics.restarts.Inc()
	t.deps.Observer.Log(slog.LevelWarn, "opening the cursor on the oplog again", slog.String(keyHost, t.host),
		slog.String(keyLast, t.last.String()), slog.Int(keyAgain, t.restarts), slog.String(keyReason, reason.Error()))
	t.killCursor(ctx)
	t.seen = t.last
	t.held.drop()
	t.metrics.held.Set(0)
	t.hasRBID = false
}

// follow opens a cursor and reads it. It returns nil, with why set, when reading
// is to end.
func (t *tail) follow(ctx context.Context) error {
	if t.cfg.Mode == ReadHoldBack {
		// The rollback id has to be known before the first entry is read: later
		// it may be that of another history already.
		if err := t.probe(ctx); err != nil {
			return fmt.Errorf("ask for the rollback id: %w", err)
		}
	}
	limit := t.cfg.FindTime
	if t.opened {
		limit = t.cfg.RefindTime
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
	if err == nil && t.why == EndNone {
		t.why = EndCursor
	}
	return err
}

// next reads one more reply, or only looks whether what is held may go.
func (t *tail) next(ctx context.Context, p *page) (stop bool, err error) {
	if t.held.bytes > t.cfg.HeldBytes {
		return t.holdUp(ctx)
	}
	wait := time.Duration(0)
	switch {
	case t.idle:
		wait = max(idlePause, t.cfg.SmallPause)
	case len(p.raw) < smallReply:
		wait = t.cfg.SmallPause
	}
	if err := pause(ctx, wait); err != nil {
		return false, err
	}
	if *p, err = t.page(ctx, t.getMoreCommand(), t.cfg.AwaitTime, nextBatch); err != nil {
		if _, refused := errors.AsType[*servererr.Error](err); refused {
			t.cursor = 0 // a getMore that is refused ends its cursor
		}
		return false, fmt.Errorf("read on: %w", err)
	}
	t.cursor = p.cursor
	if stop, err = t.take(ctx, p, false); err == nil {
		t.restarts = 0
	}
	return stop, err
}

// take checks a reply and hands on what is committed of it, and of what was held.
func (t *tail) take(ctx context.Context, p *page, first bool) (stop bool, err error) {
	received := time.Now()
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
	after := t.seen
	if first && skip == 0 {
		after = oplog.OpTime{Term: oplog.UninitializedTerm} // the start itself is to come
	}
	entries, err := p.entries(skip, after)
	if err != nil {
		return false, err
	}
	if len(entries) > 0 {
		t.seen = entries[len(entries)-1].OpTime
		t.metrics.full.Inc()
	} else {
		t.metrics.empty.Inc()
	}
	if first {
		t.deps.Observer.Log(slog.LevelInfo, "reading the oplog", slog.String(keyHost, t.host),
			slog.String(keyFrom, t.last.String()), slog.String(keyMode, t.cfg.Mode.String()))
	}
	t.idle = len(entries) == 0 && meta.Committed == t.meta.Committed
	meta.First, meta.Entries = first, len(entries)
	decision := t.accept(meta)
	if decision == StopBefore {
		return true, nil
	}
	if len(entries) > 0 {
		if first {
			t.restarts = 0 // not for a reply that only repeats what is known
		}
		t.held.push(oplog.Reply{Entries: entries, Bytes: p.bytes(len(entries)), Received: received})
	}
	return decision == StopAfter, t.release(ctx)
}

// checkMember checks that the member is still in the same history, of the same
// set.
func (t *tail) checkMember(meta *Metadata) error {
	switch {
	case t.hasRBID && meta.RBID != t.rbid:
		return &RolledBackError{Was: t.rbid, Now: meta.RBID}
	case meta.ReplicaSetID.IsZero():
	case t.setID.IsZero():
		t.setID = meta.ReplicaSetID
	case meta.ReplicaSetID != t.setID:
		return &ForeignSetError{Want: t.setID, Got: meta.ReplicaSetID}
	}
	t.rbid, t.hasRBID = meta.RBID, true
	return nil
}

// accept takes note of metadata that has passed the checks, and asks the owner.
func (t *tail) accept(meta Metadata) Decision {
	meta.Host, meta.LastFetched = t.host, t.seen
	t.meta, t.hasMeta = meta, true
	t.metrics.committed.Set(seconds(meta.CommittedWall))
	if t.deps.OnReply == nil {
		return GoOn
	}
	decision := t.deps.OnReply(meta)
	if decision != GoOn {
		t.why = EndStop
	}
	return decision
}

// release hands on what is held and committed.
func (t *tail) release(ctx context.Context) error {
	for {
		r, ok := t.held.pop(t.meta.Committed)
		if !ok {
			break
		}
		if err := t.emit(ctx, r); err != nil {
			t.refused = true
			return err
		}
		newest := &r.Entries[len(r.Entries)-1]
		t.last, t.emitted = newest.OpTime, true
		t.metrics.entries.Add(float64(len(r.Entries)))
		t.metrics.bytes.Add(float64(rawBytes(r.Entries)))
		t.metrics.last.Set(seconds(newest.Wall))
	}
	t.metrics.held.Set(float64(t.held.bytes))
	return nil
}

func seconds(ms bson.DateTime) float64 { return float64(ms) / 1000 }

// holdUp waits for the commit point without reading on.
func (t *tail) holdUp(ctx context.Context) (stop bool, err error) {
	t.deps.Observer.Log(slog.LevelWarn, "waiting for a majority of the source to have what was read", slog.String(keyHost, t.host),
		slog.Int64(keyBytes, t.held.bytes), slog.String(keyCommit, t.meta.Committed.String()))
	for !stop && t.held.bytes > t.cfg.HeldBytes {
		if err := pause(ctx, probeBeat); err != nil {
			return false, err
		}
		if err := t.probe(ctx); err != nil {
			return false, fmt.Errorf("ask for the commit point: %w", err)
		}
		meta := t.meta
		meta.First, meta.Entries = false, 0
		switch t.accept(meta) {
		case StopBefore:
			return true, nil
		case StopAfter:
			stop = true
		case GoOn:
		}
		if err := t.release(ctx); err != nil {
			return false, err
		}
	}
	return stop, nil
}

// probe asks for metadata alone.
func (t *tail) probe(ctx context.Context) error {
	reply, err := t.call(ctx, t.probeCommand(), probeTime)
	if err != nil {
		return err
	}
	meta, err := parseMetadata(reply)
	if err != nil {
		return err
	}
	if err := t.checkMember(&meta); err != nil {
		return err
	}
	meta.Host, meta.LastFetched = t.host, t.seen
	t.meta, t.hasMeta = meta, true
	return nil
}

func (t *tail) page(ctx context.Context, cmd mongo.Command, limit time.Duration, batch string) (page, error) {
	began := time.Now()
	reply, err := t.call(ctx, cmd, limit)
	if err != nil {
		return page{}, err
	}
	p, err := parsePage(reply, batch)
	if err == nil {
		t.batch.took(time.Since(began), p.n, len(reply), t.cfg.BatchSize)
	}
	return p, err
}

// call runs a command that the member has limit for. A member that does not begin to
// answer is given up on some time later, and so is one that does not go on with its
// answer; however long that takes on a slow line.
func (t *tail) call(ctx context.Context, cmd mongo.Command, limit time.Duration) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	bounded, cancel := mongo.WithSilence(ctx, limit+t.cfg.NetworkTime, t.cfg.NetworkTime, errSilent)
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

// killCursor ends the open cursor, if the member can be asked to. What is left
// open the member ends by itself, after ten minutes.
func (t *tail) killCursor(ctx context.Context) {
	if t.cursor != 0 && !t.lost {
		ctx, cancel := context.WithTimeoutCause(ctx, leaveTime, errSilent)
		defer cancel()
		_, err := t.src.Call(ctx, t.killCommand()) // best effort
		t.lost = err != nil
	}
	t.cursor = 0
}

// leave ends the cursor and the session, although ctx may be done.
func (t *tail) leave(ctx context.Context) {
	t.held.drop()
	t.metrics.held.Set(0)
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

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
