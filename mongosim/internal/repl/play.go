package repl

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
)

// errPlays is the error of a write on a member that plays a log.
var errPlays = servererr.New(servererr.IllegalOperation, "this set plays a recorded log and takes no writes of its own")

// Play applies entries that another set logged and appends them to the oplog
// unchanged, as the primary that wrote them: they are committed like any write.
// Only a primary with Config.Played can. An entry that cannot be applied is an
// error; the entries before it stay applied.
func (n *Node) Play(entries []bson.Raw) error {
	if n.cfg.Played == nil {
		return errors.New("repl: play entries: the member was not made for it")
	}
	n.playing.Lock()
	defer n.playing.Unlock()
	n.mu.Lock()
	ready := n.role == leader && n.writable
	n.mu.Unlock()
	if !ready {
		return fmt.Errorf("repl: play entries: %w", notPrimary("not primary"))
	}
	if n.player == nil {
		var err error
		if n.player, err = replay.New(n.cfg.Store, *n.cfg.Played); err != nil {
			return fmt.Errorf("repl: play entries: %w", err)
		}
	}
	_, err := n.player.Apply(entries)
	last, lastErr := n.newestEntry()
	if lastErr != nil {
		return errors.Join(err, lastErr)
	}
	n.mu.Lock()
	if n.role == leader {
		n.adoptTerm(last)
		n.setApplied(last)
	}
	n.mu.Unlock()
	n.settle()
	return err
}

// adoptTerm makes a primary that plays a log that of the entry's term. Callers
// hold mu.
func (n *Node) adoptTerm(m moment) {
	if n.term == m.at.Term {
		return
	}
	n.term, n.termStart = m.at.Term, m.at
	n.bump()
}

// beginPlaying makes an elected member a primary that plays a log: it writes
// nothing, and its term is that of the log.
func (n *Node) beginPlaying(epoch int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role != leader || n.epoch != epoch {
		return
	}
	n.adoptTerm(n.applied)
	n.termStart = n.applied.at
	n.conf = n.conf.with(n.conf.version, n.term, n.cfg.Dialect.Version)
	n.setApplied(n.applied)
	n.writable = true
	n.bump()
}
