package repl

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// How long the server keeps away from a source, and when it looks for another.
const (
	denyNetwork   = 10 * time.Second
	denyStale     = time.Minute
	denyBehind    = time.Second
	denyTerm      = 100 * time.Millisecond
	noSourceWait  = time.Second
	maxLagSeconds = 30
)

// chooseSource picks the member to pull from, -1 if there is none: the primary
// alone without chaining, else the nearest of those that are ahead of this member,
// the better ones first. Callers hold mu.
func (n *Node) chooseSource(after oplog.OpTime) int {
	now := time.Now()
	if !n.conf.chaining && n.role != leader {
		if n.primary >= 0 && n.ahead(n.primary, after) && !n.isDenied(n.primary, now) {
			return n.primary
		}
		return -1
	}
	for _, strict := range []bool{true, false} {
		best := -1
		for i := range n.members {
			if !n.eligible(i, after, strict, now) {
				continue
			}
			if best < 0 || n.members[i].pingMillis <= n.members[best].pingMillis {
				best = i
			}
		}
		if best >= 0 {
			return best
		}
	}
	return -1
}

func (n *Node) isDenied(i int, now time.Time) bool {
	return n.denied[n.conf.members[i].Host].After(now)
}

// ahead reports whether a member has entries that this one lacks; in an initial
// sync, any. Callers hold mu.
func (n *Node) ahead(i int, after oplog.OpTime) bool {
	m := n.members[i]
	if i == n.self || !m.up || !m.state.Readable() || m.beatApplied.at.IsNull() {
		return false
	}
	return after.IsNull() || m.beatApplied.at.After(after)
}

// eligible reports whether a member can be pulled from. strict also asks for what
// only makes a better source. Callers hold mu.
func (n *Node) eligible(i int, after oplog.OpTime, strict bool, now time.Time) bool {
	if !n.ahead(i, after) || n.isDenied(i, now) {
		return false
	}
	me, it := &n.conf.members[n.self], &n.conf.members[i]
	if it.Arbiter || me.BuildIndexes && !it.BuildIndexes {
		return false
	}
	if !strict {
		return true
	}
	if me.Votes > 0 && it.Votes == 0 || it.Hidden || it.DelaySecs > me.DelaySecs {
		return false
	}
	if n.primary >= 0 && n.primary != n.self {
		p := n.members[n.primary].beatApplied.at
		oldest := oplog.OpTime{Term: p.Term}
		if p.TS.T > maxLagSeconds {
			oldest.TS.T = p.TS.T - maxLagSeconds
		}
		return !n.members[i].beatApplied.at.Before(oldest)
	}
	return true
}

// deny keeps away from a source for a while.
func (n *Node) deny(host string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denied[host] = time.Now().Add(n.scaled(d))
}

// keepSource reports after a batch whether to stay with the source. fetched is
// the newest entry that came from there.
func (n *Node) keepSource(host string, meta metadata, fetched oplog.OpTime) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := n.conf.find(host)
	if i < 0 || n.self < 0 {
		return false
	}
	if !n.conf.chaining && !meta.isPrimary && n.role != leader && n.primary >= 0 && n.primary != i {
		return false
	}
	at := meta.applied
	if b := n.members[i].beatApplied.at; b.After(at) {
		at = b
	}
	if meta.sourceIndex < 0 && !meta.isPrimary && !at.After(fetched) {
		return false // it has no source, and nothing more to send
	}
	now := time.Now()
	for j := range n.members {
		if j != i && n.eligible(j, fetched, true, now) && n.members[j].beatApplied.at.TS.T > at.TS.T+maxLagSeconds {
			return false
		}
	}
	return true
}

// setSource records this member's sync source.
func (n *Node) setSource(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.source != host {
		n.source = host
		n.progress.fire()
		if host != "" {
			n.log.Info("source chosen", keySource, host)
		}
	}
}

// awaitSource waits until a source can be chosen; -1 if ctx ended first. It
// checks only once if wait is false.
func (n *Node) awaitSource(ctx context.Context, after oplog.OpTime, wait bool) (host string, ok bool) {
	for ctx.Err() == nil {
		n.mu.Lock()
		i, changed := -1, n.changed.wait()
		if n.conf != nil && n.self >= 0 {
			if i = n.chooseSource(after); i >= 0 {
				host = n.conf.members[i].Host
			}
		}
		n.mu.Unlock()
		if i >= 0 {
			return host, true
		}
		if !wait {
			return "", false
		}
		sleep(ctx, n.scaled(noSourceWait), changed)
	}
	return "", false
}
