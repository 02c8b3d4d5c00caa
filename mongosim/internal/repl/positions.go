package repl

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// position is one member's entry of replSetUpdatePosition.
type position struct {
	id               int
	applied, durable moment
}

// reportLoop reports optimes to the source, this member's and those of members
// that pull from it, as soon as they change, and as a keep-alive when they do
// not.
func (n *Node) reportLoop(ctx context.Context) {
	var to string
	var sent []position
	for ctx.Err() == nil {
		n.mu.Lock()
		source := n.source
		keepAlive := min(n.electionTimeout()/2, maxAwaitData)
		var now []position
		if source != "" && n.role != leader && !n.syncing {
			now = n.known()
		}
		cmd := n.positionCommand(now)
		progress := n.progress.wait()
		limit := n.scaled(probeTimeout)
		n.mu.Unlock()
		if len(now) == 0 || source == to && slices.Equal(now, sent) {
			started := time.Now()
			sleep(ctx, keepAlive, progress)
			if time.Since(started) >= keepAlive {
				sent = nil
			}
			continue
		}
		to, sent = source, now
		call, done := context.WithTimeout(ctx, limit)
		reply, err := n.cfg.Transport.Call(call, source, cmd)
		done()
		if err == nil {
			var ok bool
			if ok, _, _ = okReply(reply); ok {
				continue
			}
		}
		// The next change or keep-alive retries.
		sleep(ctx, keepAlive, progress)
		sent = nil
	}
}

// known returns the known optimes of all members. Callers hold mu.
func (n *Node) known() []position {
	if n.conf == nil || n.self < 0 {
		return nil
	}
	var all []position
	now := time.Now()
	for i, m := range n.members {
		p := position{n.conf.members[i].ID, m.applied, m.durable}
		if i == n.self {
			p.applied, p.durable = n.applied, n.durable
		} else if now.Sub(m.heard) >= n.electionTimeout() {
			continue
		}
		if !p.applied.at.IsNull() {
			all = append(all, p)
		}
	}
	return all
}

// positionCommand builds replSetUpdatePosition. The term goes with it: a member that takes
// the optimes must know of it first. Callers hold mu.
func (n *Node) positionCommand(all []position) bson.Raw {
	v := n.view()
	return command("replSetUpdatePosition", func(dst []byte) []byte {
		i, dst := bsoncore.AppendArrayElementStart(dst, "optimes")
		for j, p := range all {
			k, sub := bsoncore.AppendDocumentElementStart(dst, index(j))
			sub = appendOpTime(sub, "durableOpTime", p.durable.at)
			sub = appendWall(sub, "durableWallTime", p.durable.wall)
			sub = appendOpTime(sub, "appliedOpTime", p.applied.at)
			sub = appendWall(sub, "appliedWallTime", p.applied.wall)
			sub = bsoncore.AppendInt64Element(sub, "memberId", int64(p.id))
			sub = bsoncore.AppendInt64Element(sub, "cfgver", v.ConfigVersion)
			dst = endDocument(sub, k)
		}
		return v.AppendReplData(endDocument(dst, i))
	})
}

// UpdatePosition answers replSetUpdatePosition. Optimes only move forward; a
// member id that the configuration does not have is NodeNotFound, and the entries
// after it are ignored. The configuration version of an entry is not checked.
func (n *Node) UpdatePosition(cmd bson.Raw) error {
	f := fields{doc: cmd}
	if f.has("handshake") {
		return nil
	}
	array := f.array("optimes")
	if f.err != nil {
		return badCommand("replSetUpdatePosition", f.err)
	}
	term := oplog.UninitializedTerm
	if e, ok := rawbson.Lookup(cmd, "$replData"); ok {
		if doc, ok := e.Document(); ok {
			meta := fields{doc: doc}
			term = meta.maybeInt64("term", oplog.UninitializedTerm)
		}
	}
	defer n.settle()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errShutdown()
	}
	if n.conf == nil || n.self < 0 {
		return servererr.New(servererr.NotPrimaryOrSecondary, "Received replSetUpdatePosition command but we are in state %s", n.memberState())
	}
	n.setTerm(term)
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return badValue("replSetUpdatePosition: optimes.%s: want a document", it.Name())
		}
		if err := n.takePosition(doc); err != nil {
			return err
		}
	}
	if it.Err() != nil {
		return badCommand("replSetUpdatePosition", it.Err())
	}
	return nil
}

// takePosition processes one entry. Callers hold mu.
func (n *Node) takePosition(doc bson.Raw) error {
	f := fields{doc: doc}
	durable := moment{f.opTime("durableOpTime"), f.wall("durableWallTime")}
	applied := moment{f.opTime("appliedOpTime"), f.wall("appliedWallTime")}
	id := f.maybeInt64("memberId", -1)
	f.maybeInt64("cfgver", -1)
	if f.err != nil {
		return badCommand("replSetUpdatePosition", f.err)
	}
	i := n.conf.byID(int(id))
	switch {
	case i < 0:
		return servererr.New(servererr.NodeNotFound, "Received replSetUpdatePosition for node which doesn't exist in our config, memberId: MemberId(%d)", id)
	case i == n.self:
		return nil
	case n.conf.members[i].Arbiter:
		durable = nullMoment
	}
	m := n.members[i]
	m.advance(applied, durable)
	m.heard = time.Now()
	n.progress.fire()
	return nil
}
