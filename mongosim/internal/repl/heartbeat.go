package repl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// maxHeartbeatRetries is how often a heartbeat that failed at once is repeated
// before the member counts as down.
const maxHeartbeatRetries = 2

var errConfigChanged = errors.New("repl: another configuration was installed")

// heartbeatLoop keeps one loop per other member of the configuration.
func (n *Node) heartbeatLoop(ctx context.Context) {
	var loops sync.WaitGroup
	stop := func(error) {}
	running := 0
	defer func() {
		stop(context.Cause(ctx))
		loops.Wait()
	}()
	for ctx.Err() == nil {
		n.mu.Lock()
		gen, changed, ask := n.confGen, n.changed.wait(), n.askHost
		n.askHost = ""
		members := n.members
		conf, self := n.conf, n.self
		n.mu.Unlock()
		if gen != running {
			stop(errConfigChanged)
			loops.Wait()
			running = gen
			all, cancel := context.WithCancelCause(ctx)
			stop = cancel
			for i, m := range members {
				if i != self {
					host := conf.members[i].Host
					loops.Go(func() { n.beatLoop(all, gen, m, host) })
				}
			}
		}
		if ask != "" {
			// Not in the loops' group: a member that does not answer must not delay
			// them.
			n.background.Go(func() { n.fetchConfig(ctx, ask) })
		}
		sleep(ctx, 0, changed)
	}
}

func (n *Node) beatLoop(ctx context.Context, gen int, m *member, host string) {
	for ctx.Err() == nil {
		n.beat(ctx, gen, m, host)
		n.mu.Lock()
		interval := n.heartbeatInterval()
		n.mu.Unlock()
		sleep(ctx, interval, m.kick)
	}
}

// heartbeatInterval is the time between two heartbeats: shorter while this member
// looks for a source. Callers hold mu.
func (n *Node) heartbeatInterval() time.Duration {
	d := n.conf.heartbeatInterval
	if n.cfg.HeartbeatInterval > 0 {
		d = n.cfg.HeartbeatInterval
	}
	if n.role != leader && n.source == "" {
		d = min(n.electionTimeout()/2, d/4)
	}
	return max(d, time.Millisecond)
}

// beat sends one heartbeat, and retries if it fails at once.
func (n *Node) beat(ctx context.Context, gen int, m *member, host string) {
	n.mu.Lock()
	timeout := n.heartbeatTimeout()
	n.mu.Unlock()
	start := time.Now()
	all, done := context.WithTimeout(ctx, timeout)
	defer done()
	for try := 0; ; try++ {
		n.mu.Lock()
		cmd := n.heartbeatCommand(n.conf)
		n.mu.Unlock()
		sent := time.Now()
		reply, err := n.cfg.Transport.Call(all, host, cmd)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			n.heartbeatReply(gen, m, host, reply, sent)
			return
		}
		if try == maxHeartbeatRetries || time.Since(start) >= timeout || all.Err() != nil {
			n.heartbeatFailed(gen, m, host, err.Error(), sent)
			return
		}
	}
}

// heartbeatCommand builds a heartbeat; c nil asks for the other side's
// configuration. Callers hold mu.
func (n *Node) heartbeatCommand(c *config) bson.Raw {
	version, term, from, id := int64(-2), oplog.UninitializedTerm, "", -1
	primary := int64(-1)
	if c != nil {
		version, term = c.version, c.term
		if i := c.find(n.cfg.Host); i >= 0 {
			from, id = n.cfg.Host, c.members[i].ID
		}
	}
	if n.conf != nil && n.primary >= 0 {
		primary = int64(n.conf.members[n.primary].ID)
	}
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "replSetHeartbeat", n.cfg.SetName)
		dst = bsoncore.AppendInt32Element(dst, "configVersion", int32(version))
		dst = bsoncore.AppendInt32Element(dst, "configTerm", int32(term))
		dst = bsoncore.AppendInt32Element(dst, "hbv", 1)
		dst = bsoncore.AppendStringElement(dst, "from", from)
		dst = bsoncore.AppendInt32Element(dst, "fromId", int32(id))
		dst = bsoncore.AppendInt64Element(dst, "term", n.term)
		dst = bsoncore.AppendInt64Element(dst, "primaryId", primary)
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMSOpOnly", n.heartbeatTimeout().Milliseconds())
		dst = bsoncore.AppendInt32Element(dst, "$replData", 1)
		return bsoncore.AppendStringElement(dst, "$db", "admin")
	})
}

// heartbeatFailed records that a member did not answer.
func (n *Node) heartbeatFailed(gen int, m *member, host, why string, sent time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if gen != n.confGen {
		return
	}
	if m.up || !m.contacted {
		n.log.Info("member is down", keySource, host, keyReason, why)
	}
	m.lastBeat = n.cfg.Now()
	m.settled = sent
	m.down(why)
	n.findPrimary()
	n.changed.fire()
	n.progress.fire()
	n.timers.fire()
}

// heartbeatReply processes the answer to a heartbeat.
func (n *Node) heartbeatReply(gen int, m *member, host string, reply bson.Raw, sent time.Time) {
	b, err := parseBeat(reply)
	if err == nil && b.set != n.cfg.SetName {
		err = fmt.Errorf("replica set names do not match, ours: %s; remote node's: %s", n.cfg.SetName, b.set)
	}
	if err != nil {
		n.heartbeatFailed(gen, m, host, err.Error(), sent)
		return
	}
	var newer *config
	n.mu.Lock()
	if gen != n.confGen {
		n.mu.Unlock()
		return
	}
	n.setTerm(b.term)
	if b.config != nil && newerThan(b.version, b.configTerm, n.conf.version, n.conf.term) {
		if newer, err = parseConfig(b.config); err != nil {
			n.log.Warn("configuration of another member", keySource, host, keyError, err.Error())
		}
	}
	n.takeBeat(m, b, sent)
	n.findPrimary()
	i := n.indexOf(m)
	if i >= 0 && i == n.primary && i != n.self {
		n.resetElection()
		n.planTakeover()
	}
	n.learnCommit(b.committed, false)
	n.changed.fire()
	n.progress.fire()
	n.mu.Unlock()
	if newer != nil {
		n.adopt(newer)
	}
	n.settle()
}

func (n *Node) takeBeat(m *member, b beat, sent time.Time) {
	now := time.Now()
	if !m.up {
		m.upSince = n.cfg.Now()
	}
	m.contacted, m.up, m.message = true, true, ""
	m.heard, m.settled = now, sent
	m.lastBeat = n.cfg.Now()
	m.ping(now.Sub(sent))
	m.state, m.term = b.state, b.term
	m.beatApplied, m.beatDurable = b.applied, b.durable
	m.advance(b.applied, b.durable)
	m.source, m.electable, m.electionTime = b.source, b.electable, b.electionTime
	m.configVersion, m.configTerm = b.version, b.configTerm
}

func (n *Node) indexOf(m *member) int {
	for i := range n.members {
		if n.members[i] == m {
			return i
		}
	}
	return -1
}
