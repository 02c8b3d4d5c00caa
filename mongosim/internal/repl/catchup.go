package repl

import (
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// catchUp pulls the entries that an elected member lacks from other members,
// before it writes in its own term. It returns their number. It ends early at the
// catch-up timeout, when histories have diverged, and with the term.
func (n *Node) catchUp(ctx context.Context, epoch int) (ops int64) {
	n.mu.Lock()
	limit, start := n.conf.catchupTimeout, time.Now()
	patience := n.electionTimeout()
	before := n.applied.at
	n.mu.Unlock()
	if limit == 0 {
		return 0
	}
	if limit > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(ctx, n.scaled(limit))
		defer done()
	}
	n.awaitBeats(ctx, start, patience)
	for ctx.Err() == nil && n.leads(epoch) {
		n.mu.Lock()
		target := n.newestSeen()
		caughtUp := !target.After(n.applied.at)
		n.mu.Unlock()
		if caughtUp {
			break
		}
		host, ok := n.awaitSource(ctx, n.View().Applied, false)
		if !ok {
			n.mu.Lock()
			changed := n.changed.wait()
			n.mu.Unlock()
			sleep(ctx, n.scaled(noSourceWait), changed)
			continue
		}
		n.setSource(host)
		err := n.tail(ctx, host, func() bool { return !target.After(n.View().Applied) })
		n.setSource("")
		if errors.Is(err, errDiverged) || errors.Is(err, errTooStale) {
			// A primary cannot roll back: the other member will.
			n.log.Warn("catch-up given up", keySource, host, keyError, err.Error())
			break
		}
		if err != nil && ctx.Err() == nil {
			n.deny(host, denyBehind)
		}
	}
	return n.countBetween(before)
}

// awaitBeats waits until every other member has answered a heartbeat sent since
// start, or failed to, but not longer than patience.
func (n *Node) awaitBeats(ctx context.Context, start time.Time, patience time.Duration) {
	ctx, done := context.WithTimeout(ctx, patience)
	defer done()
	for ctx.Err() == nil {
		n.mu.Lock()
		waiting := false
		for i, m := range n.members {
			waiting = waiting || i != n.self && m.settled.Before(start)
		}
		changed := n.changed.wait()
		n.mu.Unlock()
		if !waiting {
			return
		}
		sleep(ctx, 0, changed)
	}
}

// countBetween counts the entries after an optime.
func (n *Node) countBetween(after oplog.OpTime) (ops int64) {
	_ = n.readOplog(func(entries oplogView) error { // counting cannot fail
		for e := range entries.Backward(timestampZero) {
			if !e.At.After(after) {
				break
			}
			ops++
		}
		return nil
	})
	return ops
}
