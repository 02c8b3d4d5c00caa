package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TouchEvery is how often Touch is to be called: a server writes down the use of
// sessions every 5 minutes, and forgets those unused for 30.
const TouchEvery = 5 * time.Minute

// Link is a link under one term of its lease. Its methods are safe for concurrent use, its
// Lanes are each for one goroutine.
type Link struct {
	store   *Store
	state   State
	session []byte // the id of the link's session
	// instance is the link's.
	instance string
	lanes    []*Lane
	barrier  *Lane

	// mu guards barrierAt, the position of the barrier that the target
	// acknowledged last, and who reads copy or leftOut without the link's session.
	mu        sync.Mutex
	barrierAt Position

	// inUse is full while somebody uses the link's session and what follows.
	inUse   chan struct{}
	txns    *mongo.Session
	applied oplog.OpTime // as the link's document has it
	source  Source       // likewise
	copy    *Copy        // likewise, nil for none
	leftOut []LeftOut    // likewise
	spent   bool
}

// newLink makes the Link of a link whose term was raised, with lanes that have
// no position yet.
func newLink(s *Store, link linkDoc, session *mongo.Session) *Link {
	h := &Link{
		store: s, state: link.State, session: session.ID(), instance: link.instance,
		inUse: make(chan struct{}, 1), txns: session, applied: link.Applied, source: link.Source,
	}
	first := link.Term << mongo.NumberBits
	for i, id := range laneIDs(s.cfg.Link, link.Writers) {
		l := &Lane{link: h, id: id, session: mongo.NewSession(s.once, s.sessionID(link.instance, id), first)}
		if i == link.Writers {
			h.barrier = l
		} else {
			h.lanes = append(h.lanes, l)
		}
	}
	return h
}

// found gives the lanes the positions that were read.
func (h *Link) found(link linkDoc) {
	h.state, h.barrierAt, h.copy, h.leftOut = link.State, link.Barrier, link.Copy.clone(), link.LeftOut
	for i, l := range h.lanes {
		l.position, l.begun = link.Lanes[i], link.LanesBegun[i]
		// What was read after all lanes were fenced is committed by a majority.
		l.barrierSeen = link.Barrier
	}
	h.barrier.position, h.barrier.begun = link.Barrier, link.Begun
}

// State returns what was found when the term was raised.
func (h *Link) State() State {
	st := h.state
	st.Lanes, st.LanesBegun = slices.Clone(st.Lanes), slices.Clone(st.LanesBegun)
	st.Copy = st.Copy.clone()
	return st
}

// Instance tells the link from others of the same name: on another target, or from
// an earlier one on the same.
func (h *Link) Instance() string { return h.instance }

// Term returns the term.
func (h *Link) Term() int64 { return h.state.Term }

// Lane returns writer i's lane. It is the same one each time.
func (h *Link) Lane(i int) *Lane { return h.lanes[i] }

// all returns the writers' lanes and the barrier's.
func (h *Link) all() []*Lane { return append(slices.Clip(h.lanes), h.barrier) }

// Barrier returns the lane for what has to be alone.
func (h *Link) Barrier() *Lane { return h.barrier }

func (h *Link) barrierPosition() Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.barrierAt
}

// own waits for the link's session; release gives it back.
func (h *Link) own(ctx context.Context) (release func(), err error) {
	select {
	case h.inUse <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if h.spent {
		<-h.inUse
		return nil, ErrSpent
	}
	return func() { <-h.inUse }, nil
}

// Touch keeps the link's sessions from being forgotten by the server. It is to be
// called every TouchEvery.
func (h *Link) Touch(ctx context.Context) error {
	body := metadata.Document(func(dst []byte) []byte {
		i, dst := bsoncore.AppendArrayElementStart(dst, "refreshSessions")
		dst = bsoncore.AppendDocumentElement(dst, "0", h.session)
		for j, l := range h.all() {
			dst = bsoncore.AppendDocumentElement(dst, strconv.Itoa(j+1), l.session.ID())
		}
		return metadata.CloseDoc(dst, i)
	})
	if _, err := h.store.cfg.Target.Call(ctx, mongo.Command{DB: "admin", Body: body}); err != nil {
		return h.store.wrap(err, "refresh its %d sessions", len(h.lanes)+2)
	}
	return nil
}

// Check finds that nobody has taken over the link since. It is for what cannot be
// fenced: what is sent to the target right after it may be late, but is not sent by
// a process that had slept before. The error is ErrFenced, ErrRewound, or that of the target.
func (h *Link) Check(ctx context.Context) error {
	link, err := h.store.readLink(ctx)
	switch {
	case errors.Is(err, ErrNoLink):
		err = fmt.Errorf("its document is gone: %w", ErrRewound)
	case err != nil:
	case link.Term > h.state.Term:
		err = fmt.Errorf("it has term %d: %w", link.Term, ErrFenced)
	case link.Term < h.state.Term:
		err = fmt.Errorf("it has term %d: %w", link.Term, ErrRewound)
	}
	if err != nil {
		h.tell(err)
		return h.store.wrap(err, "find it in term %d", h.state.Term)
	}
	return nil
}

// Within runs work in a transaction of the link's session and commits it, with
// majority, if nobody has taken the link over: its first statement moves the link's
// document from the term of this Link, so that a fence and the transaction cannot
// both succeed. What work sends has to be allowed in transactions. It may run
// more than once. The error is ErrFenced, ErrRewound, that of work, or that of the
// target.
func (h *Link) Within(ctx context.Context, work func(txn mongo.Caller) error) error {
	release, err := h.own(ctx)
	if err != nil {
		return h.store.wrap(err, "write under term %d", h.state.Term)
	}
	defer release()
	err = h.inTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		if err := h.changeLink(ctx, txn, func(dst []byte) []byte { return dst }); err != nil {
			return err
		}
		return work(txn)
	})
	if err != nil {
		h.tell(err)
		return h.store.wrap(err, "write under term %d", h.state.Term)
	}
	return nil
}

// Advance moves the link's checkpoint to cp once no lane is found before the
// position given, in one transaction that is committed with majority. Lanes holds
// the positions that the writers' lanes had acknowledged when cp was the
// watermark, or later ones; the barrier's is known. The error is ErrFenced,
// ErrRewound, ErrOtherSource, or that of the target.
func (h *Link) Advance(ctx context.Context, cp Progress, lanes []Position, src Source) error {
	release, err := h.own(ctx)
	if err != nil {
		return h.store.wrap(err, "advance it to %s", cp.Applied)
	}
	defer release()
	started := time.Now()
	err = h.advance(ctx, cp, lanes, src)
	gaps := h.Gaps()
	h.store.metrics.advanced(time.Since(started), gaps.Reached(cp), err)
	if err != nil {
		h.tell(err)
		return h.store.wrap(err, "advance it from %s to %s in term %d", h.applied, cp.Applied, h.state.Term)
	}
	h.applied = cp.Applied
	h.store.cfg.Observer.Tell(Advanced{Link: h.store.cfg.Link, Applied: cp.Applied, FetchFrom: cp.FetchFrom})
	return nil
}

func (h *Link) advance(ctx context.Context, cp Progress, lanes []Position, src Source) error {
	if err := h.checkProgress(cp); err != nil {
		return err
	}
	if !sameSet(src.ReplicaSetID, h.source.ReplicaSetID) {
		return fmt.Errorf("%w: it has %s, the link has %s", ErrOtherSource, src.ReplicaSetID, h.source.ReplicaSetID)
	}
	if src.ReplicaSetID.IsZero() {
		src.ReplicaSetID = h.source.ReplicaSetID
	}
	// The barrier may go on meanwhile: only what it had acknowledged before the
	// transaction's first statement is sure to be in what that sees.
	barrier := h.barrierPosition()
	err := h.inTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		if err := h.moveLink(ctx, txn, cp, func(dst []byte) []byte { return appendSource(dst, src) }); err != nil {
			return err
		}
		return h.verify(ctx, txn, lanes, barrier)
	})
	if err == nil {
		h.source = src
	}
	return err
}

// checkProgress checks what the link's document is to be moved to.
func (h *Link) checkProgress(cp Progress) error {
	switch {
	case cp.Applied.IsNull() || cp.FetchFrom.IsNull():
		return errors.New("it has no optime to go to")
	case cp.Applied.Before(h.applied):
		return errors.New("a checkpoint does not go back")
	case cp.FetchFrom.After(cp.Applied):
		return fmt.Errorf("reading from %s would miss what follows it", cp.FetchFrom)
	case h.copy != nil && h.copy.Phase == Copying && (cp.Applied != h.copy.Begin || cp.FetchFrom.After(h.copy.FetchFrom)):
		return errors.New("a checkpoint stays where it is while documents are copied")
	}
	return nil
}

// inTxn runs work in a transaction of a session and commits it with majority. Where
// it was refused, and that passes, work runs again, in the next transaction.
func (h *Link) inTxn(ctx context.Context, session *mongo.Session, work func(txn *mongo.Txn) error) error {
	return fenced(h.store.patience().Do(ctx, func() error { return session.InTxn(ctx, true, work) }))
}

// fenced makes the refusal of a number ErrFenced: only a newer term has others.
func fenced(err error) error {
	if servererr.IsOldNumber(err) && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}

// tell announces what only an operator can make sense of.
func (h *Link) tell(err error) {
	attrs := func() []slog.Attr {
		return []slog.Attr{slog.String(keyLink, h.store.cfg.Link), slog.Int64(keyTerm, h.state.Term), slog.String(keyError, err.Error())}
	}
	switch {
	case errors.Is(err, ErrFenced):
		h.store.cfg.Observer.Log(slog.LevelWarn, "another process has acquired the lease", attrs()...)
	case errors.Is(err, ErrRewound):
		h.store.metrics.rewound.Inc()
		h.store.cfg.Observer.Log(slog.LevelWarn, "the target lost acknowledged writes, which are written again", attrs()...)
	}
}

// moveLink moves the link's document in a transaction to a checkpoint.
func (h *Link) moveLink(ctx context.Context, txn *mongo.Txn, cp Progress, more func(dst []byte) []byte) error {
	return h.changeLink(ctx, txn, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			return more(appendCheckpoint(dst, cp.Applied, cp.AppliedWall, cp.FetchFrom))
		})
	})
}

// changeLink changes the link's document in a transaction, from where this Link
// left it.
func (h *Link) changeLink(ctx context.Context, txn *mongo.Txn, change func(dst []byte) []byte) error {
	cfg := &h.store.cfg
	reply, err := txn.Call(ctx, metadata.Update(cfg.DB, metadata.Links, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", cfg.Link)
			dst = bsoncore.AppendInt64Element(dst, "term", h.state.Term)
			dst = bsoncore.AppendTimestampElement(dst, "applied.ts", h.applied.TS.T, h.applied.TS.I)
			dst = bsoncore.AppendInt64Element(dst, "applied.t", h.applied.Term)
			return h.copy.appendWhere(dst)
		},
		Change: func(dst []byte) []byte {
			// A transaction that changes nothing is not logged, and its commit
			// would say nothing of what was there before.
			return metadata.AppendDoc(change(dst), "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "advances", 1) })
		},
	}))
	if err != nil {
		return err
	}
	n, err := metadata.Written(reply)
	if err != nil || n == 1 {
		return err
	}
	reply, err = txn.Call(ctx, metadata.Find(cfg.DB, metadata.Links, 1, metadata.ByID(cfg.Link)))
	if err != nil {
		return err
	}
	return h.whyNotMoved(reply)
}

// whyNotMoved says why the link's document, as a find gave it, did not move.
func (h *Link) whyNotMoved(reply bson.Raw) error {
	docs, err := metadata.Found(reply)
	if err != nil {
		return err
	}
	if len(docs) == 0 {
		return fmt.Errorf("its document is gone: %w", ErrRewound)
	}
	link, err := readLink(h.store.cfg.Link, docs[0])
	switch {
	case err != nil:
		return err
	case link.Term > h.state.Term:
		return fmt.Errorf("it has term %d: %w", link.Term, ErrFenced)
	case link.Term < h.state.Term:
		return fmt.Errorf("it has term %d: %w", link.Term, ErrRewound)
	case link.Copy.after(h.copy):
		return fmt.Errorf("its copy is further, or another one: %w", ErrAhead)
	case h.copy.after(link.Copy):
		return fmt.Errorf("its copy is not as far as it was: %w", ErrRewound)
	case link.Applied.Before(h.applied):
		return fmt.Errorf("it is at %s: %w", link.Applied, ErrRewound)
	}
	return fmt.Errorf("it is at %s: %w", link.Applied, ErrAhead)
}

// Verify finds, inside of a transaction, all writers' lanes not before the given
// positions, nor the barrier before what it had acknowledged, or returns
// ErrRewound (ErrFenced if their term is not ours). What is asked for has to be
// acknowledged before the transaction's first statement; so the barrier must not
// be moving but in this transaction.
func (h *Link) Verify(ctx context.Context, txn *mongo.Txn, lanes []Position) error {
	return h.verify(ctx, txn, lanes, h.barrierPosition())
}

func (h *Link) verify(ctx context.Context, txn *mongo.Txn, lanes []Position, barrier Position) error {
	if len(lanes) != len(h.lanes) {
		return fmt.Errorf("find the lanes at their positions: %d positions for %d lanes", len(lanes), len(h.lanes))
	}
	cfg := &h.store.cfg
	reply, err := txn.Call(ctx, lanesCommand(cfg.DB, cfg.Link, len(lanes)))
	if err != nil {
		return fmt.Errorf("read the lanes: %w", fenced(err))
	}
	docs, err := readLanes(cfg.Link, len(lanes), reply)
	if err != nil {
		return err
	}
	for i, want := range lanes {
		if err := h.notBefore(&docs[i], want); err != nil {
			return err
		}
	}
	return h.notBefore(&docs[len(lanes)], barrier)
}
