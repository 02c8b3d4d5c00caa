package repl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// pullOnce follows one source until an error.
func (n *Node) pullOnce(ctx context.Context) {
	last, err := n.newestEntry()
	if err != nil {
		n.mu.Lock()
		n.fail(err)
		n.mu.Unlock()
		return
	}
	host, ok := n.awaitSource(ctx, last.at, true)
	if !ok {
		return
	}
	n.setSource(host)
	err = n.tail(ctx, host, func() bool { return false })
	n.setSource("")
	if ctx.Err() != nil {
		return
	}
	n.sourceFailed(ctx, host, err)
}

// sourceFailed decides how to continue after a pull has ended.
func (n *Node) sourceFailed(ctx context.Context, host string, err error) {
	switch {
	case err == nil, errors.Is(err, errSourceChanged):
		return
	case errors.Is(err, errDiverged):
		err = n.rollback(ctx, host)
		if err == nil || ctx.Err() != nil {
			return
		}
		n.log.Warn("rollback given up", keySource, host, keyError, err.Error())
		n.deny(host, denyBehind)
	case errors.Is(err, errTooStale):
		n.log.Warn("too stale to follow a source", keySource, host)
		n.deny(host, denyStale)
		n.checkStale()
	case errors.Is(err, errBehind):
		n.deny(host, denyBehind)
	case refusedAs(err, servererr.StaleTerm):
		// It did not know this term yet, and does now.
		n.deny(host, denyTerm)
	default:
		n.log.Warn("pull ended", keySource, host, keyError, err.Error())
		n.deny(host, denyNetwork)
	}
}

// checkStale changes to RECOVERING when no member has the entries that this one
// needs.
func (n *Node) checkStale() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conf == nil || n.self < 0 || n.role == leader {
		return
	}
	if n.chooseSource(n.applied.at) < 0 && !n.tooOld {
		n.tooOld = true
		n.setFollow(oplog.MemberRecovering)
	}
}

// tail pulls from one source until an error, the end of ctx, or enough returns
// true after a batch. It first checks that the source's history continues from
// the newest entry here, of the same term.
func (n *Node) tail(ctx context.Context, host string, enough func() bool) error {
	if err := n.openApplier(); err != nil {
		return err
	}
	last, err := n.newestEntry()
	if err != nil {
		return err
	}
	n.mu.Lock()
	term := n.term
	await := min(n.electionTimeout()/2, maxAwaitData)
	buffer := n.scaled(networkBuffer)
	n.mu.Unlock()

	limit := n.scaled(findMaxTime)
	p, err := n.ask(ctx, host, tailCommand(last.at.TS, term, limit), limit+buffer)
	if err != nil {
		return err
	}
	cursor := p.cursor
	defer func() { n.killCursor(ctx, host, cursor) }()
	if err := n.checkStart(ctx, host, p, last.at); err != nil {
		return err
	}
	p.docs = p.docs[1:]
	n.sourceIsFine()
	for {
		fetched, err := n.take(ctx, p, last.at)
		if err != nil {
			return err
		}
		last.at = fetched
		if ctx.Err() != nil || enough() {
			return context.Cause(ctx)
		}
		if !n.keepSource(host, p.meta, fetched) {
			return errSourceChanged
		}
		if cursor == 0 {
			return nil // the source ended it
		}
		n.mu.Lock()
		more := moreCommand(cursor, await, n.term, n.committed.at)
		n.mu.Unlock()
		if p, err = n.ask(ctx, host, more, await+buffer); err != nil {
			return err
		}
		cursor = p.cursor
	}
}

// checkStart checks the first batch of a cursor, which has to begin with the
// newest entry here.
func (n *Node) checkStart(ctx context.Context, host string, p page, last oplog.OpTime) error {
	ahead := p.meta.applied
	for _, doc := range p.docs {
		at, err := readOpTime(doc)
		if err != nil {
			return err
		}
		if at.After(ahead) {
			ahead = at
		}
	}
	if len(p.docs) > 0 && ahead.After(last) {
		if at, err := readOpTime(p.docs[0]); err != nil || at == last {
			return err
		}
	}
	// A source that is behind does not prove which side has diverged.
	if !ahead.After(last) {
		return errBehind
	}
	oldest, err := n.ask(ctx, host, scanCommand(bson.Timestamp{}, 1, 1), n.scaled(probeTimeout))
	if err != nil {
		return err
	}
	if len(oldest.docs) == 0 {
		return errBehind
	}
	at, err := readOpTime(oldest.docs[0])
	if err != nil {
		return err
	}
	if oplog.CompareTimestamps(last.TS, at.TS) < 0 {
		return errTooStale
	}
	return errDiverged
}

// sourceIsFine ends the RECOVERING state of a member that had no source.
func (n *Node) sourceIsFine() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tooOld {
		n.tooOld = false
		n.setFollow(oplog.MemberSecondary)
		n.resetElection()
	}
}

// take checks a batch, processes its metadata, and applies it. It returns the
// optime of the newest entry that was fetched.
func (n *Node) take(ctx context.Context, p page, last oplog.OpTime) (oplog.OpTime, error) {
	moments := make([]moment, len(p.docs))
	for i, doc := range p.docs {
		m, err := entryMoment(doc)
		if err != nil {
			return last, err
		}
		if oplog.CompareTimestamps(m.at.TS, last.TS) <= 0 {
			return last, fmt.Errorf("oplog out of order: %s after %s", m.at, last)
		}
		last, moments[i] = m.at, m
	}
	n.mu.Lock()
	n.setTerm(p.meta.term)
	if p.meta.primaryIndex >= 0 && n.role != leader {
		n.resetElection()
	}
	n.mu.Unlock()
	docs := p.docs
	for len(docs) > 0 {
		ready, wait := n.oldEnough(moments)
		if ready == 0 {
			sleep(ctx, wait, nil)
			if ctx.Err() != nil {
				return last, context.Cause(ctx)
			}
			continue
		}
		if err := n.applyEntries(docs[:ready], moments[ready-1]); err != nil {
			return last, err
		}
		docs, moments = docs[ready:], moments[ready:]
		n.learn(p.meta.committed)
	}
	n.learn(p.meta.committed)
	return last, nil
}

func (n *Node) learn(committed moment) {
	n.mu.Lock()
	n.learnCommit(committed, true)
	n.mu.Unlock()
	n.settle()
}

// maxApply is the number of entries applied at a time, so that others get the
// lock in between.
const maxApply = 1000

// oldEnough says how many of the entries a delayed member may apply, and if none,
// how long to wait for the next.
func (n *Node) oldEnough(moments []moment) (int, time.Duration) {
	n.mu.Lock()
	delay := int64(0)
	if n.self >= 0 {
		delay = n.conf.members[n.self].DelaySecs
	}
	n.mu.Unlock()
	moments = moments[:min(len(moments), maxApply)]
	if delay == 0 {
		return len(moments), 0
	}
	now := n.cfg.Now()
	for i, m := range moments {
		if due := int64(m.at.TS.T) + delay; due > now.Unix() {
			return i, min(time.Unix(due, 0).Sub(now), time.Second)
		}
	}
	return len(moments), 0
}

// applyEntries applies entries that follow on the newest one.
func (n *Node) applyEntries(docs []bson.Raw, last moment) error {
	at, err := n.apply.Apply(docs)
	if err == nil && at != last.at {
		err = fmt.Errorf("applied up to %s, want %s", at, last.at)
	}
	if err != nil {
		// The server ends its process: an entry that cannot be applied means that
		// this member's data is inconsistent.
		err = fmt.Errorf("repl: apply on %s: %w", n.cfg.Host, err)
		n.mu.Lock()
		n.fail(err)
		n.mu.Unlock()
		return err
	}
	n.mu.Lock()
	n.setApplied(last)
	if n.participation.term == last.at.Term && n.participation.start.IsZero() {
		n.participation.start, n.participation.appliedStart = last.wall, n.cfg.Now()
	}
	n.mu.Unlock()
	return nil
}
