package repl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// task is the next task of the data loop.
type task uint8

const (
	taskWait task = iota
	taskStepDown
	taskStepUp
	taskSync
	taskPull
)

// dataLoop is the only goroutine that changes the member's data on its own
// initiative, and that calls the hooks.
func (n *Node) dataLoop(ctx context.Context) {
	defer func() { _ = n.closeApplier() }()
	for ctx.Err() == nil {
		n.mu.Lock()
		do, changed := n.nextTask(), n.changed.wait()
		work, stop := context.WithCancelCause(ctx)
		n.stopPull = stop
		n.mu.Unlock()
		switch do {
		case taskWait:
			sleep(ctx, 0, changed)
		case taskStepDown:
			n.finishStepDown(ctx)
		case taskStepUp:
			n.finishStepUp(work)
		case taskSync:
			n.initialSync(work)
		case taskPull:
			n.pullOnce(work)
		}
		n.mu.Lock()
		n.stopPull = nil
		n.mu.Unlock()
		stop(nil)
	}
}

// nextTask returns the next task. Callers hold mu.
func (n *Node) nextTask() task {
	switch {
	case n.downPending:
		return taskStepDown
	case n.conf == nil || n.self < 0 || n.fatal != "":
		return taskWait
	case n.role == leader && n.writable:
		return taskWait
	case n.role == leader:
		return taskStepUp
	case n.conf.members[n.self].Arbiter:
		return taskWait
	case n.syncing:
		return taskSync
	}
	return taskPull
}

// finishStepDown notifies the rest of the member that it is no longer primary.
func (n *Node) finishStepDown(ctx context.Context) {
	if n.cfg.Hooks.SteppedDown != nil {
		n.cfg.Hooks.SteppedDown()
	}
	// Writes admitted before the step-down are in the store by now, reported or
	// not.
	last, err := n.newestEntry()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.fail(err)
	} else if last.later(n.applied) {
		n.setApplied(last)
	}
	n.downPending = false
	if n.heirTo != "" {
		n.callHeir(ctx, n.heirTo, n.electionTimeout())
		n.heirTo = ""
	}
	n.changed.fire()
	n.progress.fire()
}

// newestEntry reads the newest entry of the oplog.
func (n *Node) newestEntry() (moment, error) {
	last := nullMoment
	err := n.cfg.Store.Read(func(r *storage.Reader) error {
		var err error
		last, err = newest(r)
		return err
	})
	return last, err
}

// fail stops this member permanently: it reports RECOVERING, and why. Callers
// hold mu.
func (n *Node) fail(err error) {
	n.log.Error("member cannot go on", keyError, err.Error())
	n.fatal = err.Error()
	n.source = ""
	n.follow = oplog.MemberRecovering
	n.bump()
}

// openApplier makes the applier if there is none.
func (n *Node) openApplier() error {
	if n.apply != nil {
		return nil
	}
	a, err := n.newApplier(n.cfg.Store)
	if err != nil {
		return fmt.Errorf("repl: go on with the oplog of %s: %w", n.cfg.Host, err)
	}
	if s, ok := a.(interface{ SkipIndexes(skip bool) }); ok {
		n.mu.Lock()
		build := n.self < 0 || n.conf.members[n.self].BuildIndexes
		n.mu.Unlock()
		s.SkipIndexes(!build)
	}
	n.apply = a
	return nil
}

func (n *Node) closeApplier() error {
	if n.apply == nil {
		return nil
	}
	err := n.apply.Close()
	n.apply = nil
	return err
}

// finishStepUp makes an elected member a primary that accepts writes: it catches
// up, writes the first entry of its term, and notifies the rest of the member.
func (n *Node) finishStepUp(ctx context.Context) {
	n.mu.Lock()
	term, epoch := n.term, n.epoch
	n.mu.Unlock()
	if n.cfg.Played != nil {
		n.beginPlaying(epoch)
		n.settle()
		return
	}
	caughtUp := n.catchUp(ctx, epoch)
	if ctx.Err() != nil && (!n.leads(epoch) || !errors.Is(context.Cause(ctx), errSourceChanged)) {
		return
	}
	if err := n.openApplier(); err != nil {
		n.giveUp(epoch, err)
		return
	}
	prepared := n.apply.Prepared()
	// Transactions that the hook does not take over are prepared again by the
	// next applier.
	defer func() {
		for _, p := range prepared {
			n.dropPrepared(p.Unit)
		}
	}()
	if err := n.closeApplier(); err != nil {
		n.giveUp(epoch, err)
		return
	}
	first, ok := n.beginTerm(epoch, term, caughtUp)
	if !ok {
		return
	}
	n.settle()
	if n.cfg.Hooks.SteppedUp != nil {
		taken := prepared
		prepared = nil
		n.cfg.Hooks.SteppedUp(term, taken)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role == leader && n.epoch == epoch {
		n.log.Info("accepting writes", keyTerm, term, keyOpTime, first.at.String())
		n.writable = true
		n.bump()
	} else {
		// A step-down intervened: its hook must be called after the other.
		n.downPending = true
	}
}

// beginTerm writes the first entry of a primary's term and moves the configuration to
// the term. It reports whether the member is still primary in that term.
func (n *Node) beginTerm(epoch int, term, caughtUp int64) (first moment, ok bool) {
	first, err := n.writeNoop(noopNewPrimary, func() (int64, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.role != leader || n.epoch != epoch {
			return 0, errRoleChanged
		}
		return n.term, nil
	})
	if err != nil {
		if !errors.Is(err, errRoleChanged) {
			n.giveUp(epoch, err)
		}
		return first, false
	}
	n.mu.Lock()
	if n.role == leader && n.epoch == epoch {
		n.termStart = first.at
		n.setApplied(first)
		n.candidacy.catchupOps, n.candidacy.start = caughtUp, n.cfg.Now()
		// The configuration moves to the primary's term.
		if n.conf.term != oplog.UninitializedTerm {
			n.conf = n.conf.with(n.conf.version, term, n.cfg.Dialect.Version)
		}
	}
	n.mu.Unlock()
	if err := n.saveConfig(); err != nil {
		n.giveUp(epoch, err)
		return first, false
	}
	return first, true
}

// dropPrepared releases a prepared transaction that was not taken over.
func (n *Node) dropPrepared(u *storage.Unit) {
	if u == nil {
		return
	}
	_ = n.cfg.Store.Write(func(*storage.Writer) error { // Abort cannot fail
		u.Abort()
		return nil
	})
}

// leads reports whether this member is still leader in the same term.
func (n *Node) leads(epoch int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.role == leader && n.epoch == epoch
}

// giveUp makes a primary step down, and stops the member, after an error of its
// own data.
func (n *Node) giveUp(epoch int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role == leader && n.epoch == epoch {
		n.stepDown(err.Error())
	}
	n.fail(err)
}

// The o fields of entries that a Node writes itself.
const (
	noopInitiate   = "initiating set"
	noopNewPrimary = "new primary"
	noopPeriodic   = "periodic noop"
	noopReconfig   = "Reconfig set"
)

// writeNoop appends a no-op entry {op: "n", ns: "", o: {msg}, ts, t, v: 2, wall}.
// term is asked while the store is locked; its error rejects the write.
func (n *Node) writeNoop(msg string, term func() (int64, error)) (moment, error) {
	return n.writeNoopObject(document(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "msg", msg)
	}), term)
}

func (n *Node) writeNoopObject(o bson.Raw, term func() (int64, error)) (moment, error) {
	var m moment
	err := n.cfg.Store.Write(func(w *storage.Writer) error {
		t, err := term()
		if err != nil {
			return err
		}
		var last bson.Timestamp
		if e, ok := w.Oplog().Last(); ok {
			last = e.At.TS
		}
		now := n.cfg.Now()
		n.mu.Lock()
		if n.role == leader && oplog.CompareTimestamps(n.electionTime, last) > 0 {
			last = n.electionTime // an election takes a timestamp too
		}
		n.mu.Unlock()
		m = moment{oplog.OpTime{TS: nextTimestamp(now, last), Term: t}, now.Truncate(time.Millisecond)}
		w.Append(document(func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "op", "n")
			dst = bsoncore.AppendStringElement(dst, "ns", "")
			dst = bsoncore.AppendDocumentElement(dst, "o", o)
			dst = bsoncore.AppendTimestampElement(dst, "ts", m.at.TS.T, m.at.TS.I)
			dst = bsoncore.AppendInt64Element(dst, "t", m.at.Term)
			dst = bsoncore.AppendInt64Element(dst, "v", 2)
			return appendWall(dst, "wall", m.wall)
		}), m.at)
		return nil
	})
	return m, err
}

// nextTimestamp is the timestamp that follows last at the time now.
func nextTimestamp(now time.Time, last bson.Timestamp) bson.Timestamp {
	secs := uint32(max(now.Unix(), 1))
	if secs > last.T {
		return bson.Timestamp{T: secs, I: 1}
	}
	return bson.Timestamp{T: last.T, I: last.I + 1}
}
