package checkpoint

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// pipelined sends all commands before it reads a reply.
type pipelined struct{ *target }

func (p pipelined) CallAll(ctx context.Context, cmds []mongo.Command, each func(int, bson.Raw) error) error {
	var first error
	for i := range cmds {
		reply, err := p.Call(ctx, cmds[i])
		if err == nil && first == nil {
			err = each(i, reply)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// moving moves a lane with inserts.
type moving struct {
	*testing.T
	ctx  context.Context
	lane *Lane
	// caller is that of the lane's sessions.
	caller mongo.Caller
	// asked are the commands whose replies were passed on.
	asked []int
}

// use gives the lane a session that the server does not know.
func (m *moving) use(first int64) {
	m.lane.session = mongo.NewSession(m.caller, mongo.SessionID("test", m.Name()), first)
}

func (m *moving) try(next Position, ids ...string) (*mongo.Txn, error) {
	m.Helper()
	m.asked = nil
	var cmds []mongo.Command
	for _, id := range ids {
		cmds = append(cmds, insert(id))
	}
	txn := m.lane.Session().Begin()
	return txn, m.lane.MoveWith(m.ctx, txn, next, cmds, func(i int, reply bson.Raw) error {
		m.asked = append(m.asked, i)
		_, err := mongo.Written(reply)
		return err
	})
}

// commit moves the lane and commits that.
func (m *moving) commit(next Position, ids ...string) {
	m.Helper()
	txn := must.Get(m.try(next, ids...))(m)
	must.Get(txn.Commit(m.ctx, false))(m)
}

// TestMoveWith: whether commands wait for the move or not, they take effect with it or not
// at all, and the error is that of Move, even if a later command has aborted the
// transaction.
func TestMoveWith(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(g *target) mongo.Caller{
		"pipelined": func(g *target) mongo.Caller { return pipelined{g} },
		"serial":    func(g *target) mongo.Caller { return struct{ mongo.Caller }{g} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
			l := h.Lane(0)
			m := &moving{T: t, ctx: ctx, lane: l, caller: wrap(g)}
			m.use(1)

			// It moves with commands, with none, and after a new barrier.
			m.commit(at(101, 0), "a", "b")
			l.Moved(at(101, 0))
			if !has(ctx, t, g, "a") || !has(ctx, t, g, "b") || len(m.asked) != 2 {
				t.Errorf("not all commands were carried out; replies to %v", m.asked)
			}
			flush(ctx, t, h.Barrier(), at(102, 0), "barrier")
			m.commit(at(103, 0))
			l.Moved(at(103, 0))
			if l.barrierSeen != at(102, 0) {
				t.Errorf("the barrier was seen at %s", l.barrierSeen)
			}

			_, err := m.try(at(103, 0), "back")
			must.Fail(t, err, errNotForward)

			// A command that fails is an error of its own, and has no effect.
			txn, err := m.try(at(104, 0), "c", "a", "d")
			if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.DuplicateKey || len(e.Info) == 0 {
				t.Errorf("a duplicate: %v", err)
			}
			txn.Abort(ctx)
			if has(ctx, t, g, "c") || has(ctx, t, g, "d") || len(m.asked) != 2 {
				t.Errorf("a transaction with a refusal left something; replies to %v", m.asked)
			}

			// The reply of a commit was lost, and the next flush's commands fail, too.
			m.commit(at(105, 0), "e")
			_, err = m.try(at(105, 0), "e")
			must.Fail(t, err, ErrAhead)
			if len(m.asked) != 0 {
				t.Errorf("replies after a move that did not happen: %v", m.asked)
			}
			// The target has lost a flush.
			l.Moved(at(110, 0))
			_, err = m.try(at(111, 0), "e")
			must.Fail(t, err, lease.ErrRewound)
			// Another term has the lane, and the server has forgotten this one's session.
			l.Moved(at(105, 0))
			must.Get(link(t, g).Acquire(ctx, 0))(t)
			m.use(1000)
			_, err = m.try(at(106, 0), "e")
			must.Fail(t, err, lease.ErrFenced)
			if _, err := m.try(at(106, 0), "f"); has(ctx, t, g, "f") {
				t.Errorf("a fenced lane wrote: %v", err)
			}
		})
	}
}

// ending is a caller whose context ends after the commands that it sends together.
type ending struct {
	pipelined
	end func()
}

func (e ending) CallAll(ctx context.Context, cmds []mongo.Command, each func(int, bson.Raw) error) error {
	defer e.end()
	return e.pipelined.CallAll(ctx, cmds, each)
}

// Call sends nothing once the context has ended.
func (e ending) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return e.pipelined.Call(ctx, cmd)
}

// TestMoveWithEnds: if the context ends after a move that did not match, the transaction
// can still be aborted, so that it does not keep its locks.
func TestMoveWithEnds(t *testing.T) {
	t.Parallel()
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	l := h.Lane(0)
	flush(within(t), t, l, at(101, 0), "first")
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	l.session = mongo.NewSession(ending{pipelined{g}, func() { cancel(stop) }}, mongo.SessionID("test", t.Name()), 1)
	l.Moved(at(110, 0)) // so the move does not match
	txn := l.Session().Begin()
	err := l.MoveWith(ctx, txn, at(111, 0), []mongo.Command{insert("locked")}, func(int, bson.Raw) error { return nil })
	must.Fail(t, err, stop)
	var aborted []int64
	g.Intercept(func(cmd mongo.Command) (error, bool) {
		if cmd.Body.Index(0).Key() == "abortTransaction" {
			aborted = append(aborted, cmd.Body.Lookup("txnNumber").AsInt64())
		}
		return nil, true
	})
	txn.Abort(context.WithoutCancel(ctx))
	if !slices.Equal(aborted, []int64{1}) {
		t.Errorf("transactions %v were given up, want 1", aborted)
	}
}
