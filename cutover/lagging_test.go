package cutover_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// elected is a target whose new primary does not know yet what a majority has: a read of one collection with read concern majority gets what
// it got before, once.
type elected struct {
	mongo.Caller
	coll string

	lose  atomic.Bool // the next reply to a change
	mu    sync.Mutex  // guards the rest
	reply bson.Raw
	armed bool
}

// Call implements mongo.Caller.
func (e *elected) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := e.Caller.Call(ctx, cmd)
	level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK()
	if coll, _ := cmd.Body.Lookup("find").StringValueOK(); coll != e.coll || level != "majority" || err != nil {
		return reply, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.armed {
		e.armed = false
		return e.reply, nil
	}
	e.reply = reply
	return reply, nil
}

func (e *elected) arm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.armed = true
}

// TestElectedKnowsLater: a new primary of the target that does not know yet that a majority has the record, or the end of the link, does not
// end a cutover whose writes are stopped.
func TestElectedKnowsLater(t *testing.T) {
	t.Parallel()
	inner := open(t, "7.0")
	for _, coll := range []string{"cutovers", "links"} {
		m := newMoved(t, inner, coll)
		target := &elected{Caller: inner, coll: coll}
		cfg := m.config(target, m.source)
		said := []string{}
		cfg.Drain.OnWait = func(what string) { said = append(said, what) }
		switch coll {
		case "cutovers":
			cfg.Verify = func(ctx context.Context, _ checkpoint.Cut) (string, error) {
				must.Get((&record.Store{Target: target, DB: "replicator"}).Get(ctx, m.link))(t)
				target.arm()
				return "equal", nil
			}
		default:
			cfg.Armed = func(context.Context) { target.arm() }
		}
		if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil || target.armed {
			t.Errorf("%s, not read %t: %v\n%s", coll, target.armed, err, strings.Join(said, "\n"))
			continue
		}
		m.isDone(coll)
	}
}

// blocking is a source that is blocked, whose primary is elected directly after that.
type blocking struct{ *elected }

// Call implements mongo.Caller.
func (b blocking) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := b.elected.Call(ctx, cmd)
	if cmd.Body.Index(0).Key() == "setUserWriteBlockMode" {
		b.arm()
	}
	return reply, err
}

// TestElectedKnowsOfBlockLater: a new primary of the source that does not know yet that a majority has the block does not end the cutover.
func TestElectedKnowsOfBlockLater(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	source := blocking{&elected{Caller: m.source, coll: "user_writes_critical_sections"}}
	must.Get(cutover.Run(t.Context(), m.config(m.target, source), byBlock))(t)
	if source.armed {
		t.Error("the block was not asked for")
	}
	m.isDone("the primary was elected")
}

// lostReply is a target that has an election once the change of a record is executed: the reply is lost, and the next read of the record
// returns an older one.
type lostReply struct{ *elected }

// Call implements mongo.Caller.
func (u lostReply) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := u.elected.Call(ctx, cmd)
	first := cmd.Body.Index(0)
	if coll, _ := first.Value().StringValueOK(); err == nil && (first.Key() == "update" || first.Key() == "insert") && coll == u.coll && u.lose.CompareAndSwap(true, false) {
		u.arm()
		return nil, &mongo.LostError{Host: "the target", Err: errCrashed}
	}
	return reply, err
}

// TestStoredReplyLost: a change of the record whose reply is lost in an election is not taken for that of another process.
func TestStoredReplyLost(t *testing.T) {
	t.Parallel()
	target := lostReply{&elected{Caller: open(t, "7.0"), coll: "cutovers"}}
	records := &record.Store{Target: target, DB: "replicator"}
	var was *record.Record
	for i, name := range []string{"begun", "changed", "changed again"} {
		must.Get(records.Get(t.Context(), "dr"))(t)
		now := &record.Record{Link: "dr", ID: "1", State: record.Running, By: name, Options: *byBlock, Steps: []record.Taken{}}
		target.lose.Store(true)
		must.Succeed(t, records.Put(t.Context(), was, now))
		if target.armed || now.Rev != int64(i)+1 {
			t.Errorf("%s: the record was not read again: %+v", name, now)
		}
		was = now
	}
	other := was.Clone()
	other.By = "another"
	must.Succeed(t, records.Put(t.Context(), was, other))
	mine := was.Clone()
	must.Fail(t, records.Put(t.Context(), was, mine), record.ErrChanged)
}
