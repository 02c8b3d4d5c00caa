package applier

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// cappedRig is a target with a capped collection and an ordinary one.
func cappedRig(t *testing.T) *rig {
	t.Helper()
	r := prepared(t, 4)
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	return r
}

// isInsert reports whether a command inserts into a collection.
func isInsert(cmd mongo.Command, coll string) bool {
	return simcaller.Name(cmd) == "insert" && cmd.Body.Lookup("insert").StringValue() == coll
}

// TestCappedBetweenTransactions: writes that transactions refuse do not share a barrier
// with the transactions around them: a span that the barrier announces is one entry, so
// that a crash leaves no doubt which part of it is in the target.
func TestCappedBetweenTransactions(t *testing.T) {
	t.Parallel()
	r := cappedRig(t)
	l := newLog(t)
	spanning := func(from int) bson.D {
		var ops []bson.D
		for i := range 8 {
			ops = append(ops, insertOp("db.a", doc(from+i, 0)))
		}
		return l.transactionOp(ops...)
	}
	l.add(spanning(0))
	for i := range 5 {
		l.add(insertOp("db.cap", doc(i, i)))
	}
	l.add(spanning(100))
	l.end()
	var dead atomic.Bool // read by several lanes
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if isInsert(cmd, "cap") {
			dead.Store(true)
		}
		if dead.Load() {
			return &mongo.LostError{Err: errCrash}, false
		}
		return nil, false
	})
	a := must.Get(r.begin(t.Context(), nil))(t)
	if err := a.run(t.Context(), l.batches(), 0); !isMishap(err) {
		t.Fatalf("it was not cut off: %v", err)
	}
	r.target.intercept(nil)
	r.apply(t, l.batches(), nil)
	var want []bson.D
	for i := range 5 {
		want = append(want, doc(i, i))
	}
	wantDocs(t, r.target, "db.cap", want...)
	if n := len(r.target.documents(t, "db.a")); n != 16 {
		t.Errorf("db.a has %d documents, want 16", n)
	}
}

// unconfirming is a target that executes writes of one kind to the database db, and
// replies that no majority has acknowledged them.
type unconfirming struct {
	target  *simTarget
	command string
}

func (u *unconfirming) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := u.target.send(ctx, cmd)
	if err != nil || cmd.DB != "db" || simcaller.Name(cmd) != u.command {
		return reply, err
	}
	return mongo.With(reply, bsoncore.AppendDocumentElement(nil, "writeConcernError", bsoncore.NewDocumentBuilder().
		AppendInt32("code", int32(servererr.WriteConcernTimeout)).AppendString("errmsg", "waiting for replication timed out").Build())), nil
}

// TestDirectUnconfirmed: a write outside of transactions without a majority's
// acknowledgement does not count: the lane stays where it is, and the next attempt finds
// out.
func TestDirectUnconfirmed(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]struct {
		command string
		entry   bson.D
	}{
		"insert": {"insert", insertOp("db.cap", doc(1, 1))},
		"update": {"update", setOp("db.cap", 0, 7)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := cappedRig(t)
			r.target.run(t, "db", bson.D{{Key: "insert", Value: "cap"}, {Key: "documents", Value: bson.A{doc(0, 0)}}})
			l := newLog(t)
			l.add(op.entry)
			a := must.Get(r.begin(t.Context(), nil))(t)
			r.target.mu.Lock()
			r.target.instead = &unconfirming{target: r.target, command: op.command}
			r.target.mu.Unlock()
			err := a.run(t.Context(), l.batches(), 0)
			if _, ok := errors.AsType[*mongo.UnconfirmedError](err); !ok {
				t.Fatalf("it ended with %v, want one that is not confirmed", err)
			}
			r.target.mu.Lock()
			r.target.instead = nil
			r.target.mu.Unlock()
			st := r.endTransactions(t).State()
			if !slices.ContainsFunc(st.LanesAnnounced, func(p checkpoint.Position) bool { return p == checkpoint.Position{OpTime: l.optime()} }) {
				t.Errorf("no lane has begun it: %v, at %v", st.LanesAnnounced, st.Lanes)
			}
			b := r.apply(t, l.batches(), nil)
			if n := b.Stats().Skipped; n != 0 {
				t.Errorf("%d operations were skipped", n)
			}
		})
	}
}

// TestNotCappedAnyMore: if a span was announced on a capped collection that is no longer
// capped, that is a divergence; the span is not repeated as if nothing could have been
// applied.
func TestNotCappedAnyMore(t *testing.T) {
	t.Parallel()
	r := cappedRig(t)
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "cap"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "n", Value: 0}}}}})
	l := newLog(t)
	// A modifier: applied twice it has another result.
	l.add(bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: "db.cap"},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 1}, {Key: "$set", Value: bson.D{{Key: "v", Value: 1}}}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: 0}}},
	})
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "update" && cmd.DB == "db" {
			return &mongo.LostError{Err: errCrash}, true
		}
		return nil, false
	})
	a := must.Get(r.begin(t.Context(), nil))(t)
	if err := a.run(t.Context(), l.batches(), 0); !isMishap(err) {
		t.Fatalf("it was not cut off: %v", err)
	}
	r.target.intercept(nil)
	r.target.run(t, "db", bson.D{{Key: "drop", Value: "cap"}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "cap"}, {Key: "documents", Value: bson.A{doc(0, 5)}}})
	b := must.Get(r.begin(t.Context(), nil))(t)
	if _, ok := errors.AsType[*DivergenceError](b.run(t.Context(), l.batches(), 0)); !ok {
		t.Error("nothing was said")
	}
	wantDocs(t, r.target, "db.cap", doc(0, 5))
	r.apply(t, l.batches(), func(c *Config) { c.ReportDivergence = true })
	wantDocs(t, r.target, "db.cap", doc(0, 1))
}
