package mongosim_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/mongosim/fault"
)

// update is one statement on one document.
func update(coll string, q, u d, more ...bson.E) d {
	return append(d{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{d{{Key: "q", Value: q}, {Key: "u", Value: u}}}}}, more...)
}

// lane moves the lane document of a writer, if the term is right.
func lane(term, at int, more d) d {
	return update("lanes", d{{Key: "_id", Value: "w"}, {Key: "term", Value: term}}, d{{Key: "$set", Value: d{{Key: "at", Value: at}}}}, more...)
}

// TestFencing goes through what a real set answered to (lsid, txnNumber) used as
// a fencing token: older numbers are refused, and a repeated one is not carried out
// again, by the next primary either.
func TestFencing(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 21})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	const one, two = int64(1) << 40, int64(2) << 40
	c.ok("app", insert("f", retryable(1, one+1), idDoc(1)))
	first := c.ok("app", insert("f", retryable(1, two+1), idDoc(2), idDoc(3)))
	c.refused(225, "app", insert("f", retryable(1, one+2), idDoc(4)))
	c.refused(225, "app", insert("f", inTxn(1, one+3, true), idDoc(4)))
	again := c.ok("app", insert("f", retryable(1, two+1), idDoc(20), idDoc(30)))
	if again.Lookup("n").Int32() != 2 || stamp(again, "opTime", "ts") != stamp(first, "opTime", "ts") {
		t.Errorf("repeated: %s, first %s", again, first)
	}
	must.Succeed(t, set.StepDown(t.Context()))
	if e := c.refused(10107, "app", insert("f", retryable(1, two+2), idDoc(6))); labels(e) != "RetryableWriteError" {
		t.Errorf("labels of %s", e)
	}
	next, _ := primaryOf(t, set)
	c = dial(t, next)
	c.refused(225, "app", insert("f", retryable(1, one+9), idDoc(4)))
	if r := c.ok("app", insert("f", retryable(1, two+1), idDoc(20), idDoc(30))); r.Lookup("n").Int32() != 2 {
		t.Errorf("repeated on the new primary: %s", r)
	}
	if got := docs(t, c.ok("app", find("f"))); len(got) != 3 {
		t.Errorf("documents %v, want _id 1 to 3", got)
	}
}

// TestLane writes as a replicator's writer does: transactions that first move a
// lane document, and are fenced by its term, by a newer number and by killSessions.
func TestLane(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 22})
	p, n := primaryOf(t, set)
	c, other := dial(t, p), dial(t, p)
	c.ok("app", insert("lanes", nil, d{{Key: "_id", Value: "w"}, {Key: "term", Value: 1}}))
	c.ok("app", insert("x", nil, idDoc("there")))

	many := make([]any, 2000)
	for i := range many {
		many[i] = idDoc(i)
	}
	if r := c.ok("app", lane(1, 1, inTxn(1, 1, true))); r.Lookup("n").Int32() != 1 {
		t.Errorf("the lane was not found: %s", r)
	}
	c.ok("app", insert("x", inTxn(1, 1, false), many...))
	if r := other.refused(112, "app", lane(1, 9, inTxn(2, 1, true))); labels(r) != "TransientTransactionError" {
		t.Errorf("conflict: %s", r)
	}
	c.ok("admin", commit(1, 1))
	c.ok("admin", commit(1, 1)) // its reply may have been lost
	c.refused(256, "admin", abort(1, 1))

	if r := c.ok("app", lane(9, 2, inTxn(1, 2, true))); r.Lookup("n").Int32() != 0 {
		t.Errorf("a lane of another term was found: %s", r)
	}
	c.ok("admin", abort(1, 2))
	c.refused(251, "admin", commit(1, 2))
	c.refused(251, "admin", commit(1, 7))
	c.refused(225, "admin", commit(1, 1))

	if r := c.try("app", insert("x", inTxn(1, 10, true), idDoc("there"))); writeError(r) != 11000 {
		t.Errorf("duplicate in a transaction: %s", r)
	}
	if r := c.refused(251, "app", insert("x", inTxn(1, 10, false), idDoc("other"))); labels(r) != "TransientTransactionError" {
		t.Errorf("after the failed statement: %s", r)
	}

	c.ok("app", lane(1, 3, inTxn(1, 11, true)))
	other.ok("admin", d{{Key: "killSessions", Value: bson.A{lsid(1)}}})
	other.ok("app", update("lanes", idDoc("w"), d{{Key: "$set", Value: d{{Key: "term", Value: 2}}}}))
	c.refused(251, "admin", commit(1, 11))
	c.ok("app", lane(2, 3, inTxn(1, 12, true)))
	other.ok("app", lane(2, 4, inTxn(1, 1<<40, true)))
	other.ok("admin", commit(1, 1<<40))
	c.refused(225, "admin", commit(1, 12))
	laneOutlivesFailures(t, set, p, n)
}

// laneOutlivesFailures: a commit whose reply is lost, and transactions that a step-down
// ends.
func laneOutlivesFailures(t *testing.T, set *mongosim.Set, p *mongosim.Member, n int) {
	t.Helper()
	c := dial(t, p)
	// The link breaks at the commit: whether it was carried out is asked for anew.
	c.ok("app", lane(2, 5, inTxn(3, 1, true)))
	must.Succeed(t, set.Fault(n, mongosim.Client, fault.Fault{Kind: fault.Reset}))
	if _, err := c.Call(t.Context(), must.Marshal(t, append(commit(3, 1), arg("$db", "admin")))); err == nil {
		t.Error("the link was not reset")
	}
	set.Heal(n, mongosim.Client)
	c = dial(t, p)
	c.ok("admin", commit(3, 1))

	c.ok("app", lane(2, 6, inTxn(4, 1, true)))
	c.ok("admin", commit(4, 1))
	c.ok("app", lane(2, 7, inTxn(5, 1, true)))
	must.Succeed(t, set.StepDown(t.Context()))
	if r := c.refused(10107, "app", insert("x", inTxn(5, 1, false), idDoc("no"))); labels(r) != "TransientTransactionError" {
		t.Errorf("statement after the step-down: %s", r)
	}
	if r := c.refused(10107, "admin", commit(5, 1)); labels(r) != "RetryableWriteError" {
		t.Errorf("commit after the step-down: %s", r)
	}
	p, _ = primaryOf(t, set)
	c = dial(t, p)
	c.ok("admin", commit(4, 1))
	if r := c.refused(251, "admin", commit(5, 1)); labels(r) != "TransientTransactionError" {
		t.Errorf("commit on the new primary: %s", r)
	}
	if got := docs(t, c.ok("app", find("lanes"))); got[0].Lookup("at").Int32() != 6 {
		t.Errorf("lane %v, want at 6", got)
	}
}

// TestKilledWhileWaiting: a write that waits for a conflict to end is not carried
// out any more when its session has been killed.
func TestKilledWhileWaiting(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 23, TransactionLifetime: 500 * time.Millisecond})
	p, _ := primaryOf(t, set)
	a, b := dial(t, p), dial(t, p)
	a.ok("app", insert("c", nil, idDoc(0)))
	a.ok("app", insert("c", inTxn(1, 1, true), idDoc(1)))
	a.refused(50, "app", insert("c", d{arg("maxTimeMS", 20)}, idDoc(1))) // waits
	b.send("app", insert("c", retryable(2, 1), idDoc(1)))
	kill := d{{Key: "killSessions", Value: bson.A{lsid(2)}}}
	done := make(chan bson.Raw)
	go func() { done <- b.receive() }()
	var reply bson.Raw
	eventually(t, "the write was interrupted", func() bool {
		a.ok("admin", kill)
		select {
		case reply = <-done:
			return true
		default:
			return false
		}
	})
	if code, _ := reply.Lookup("code").Int32OK(); code != 11601 {
		t.Errorf("the killed write: %s", reply)
	}
	// Nobody ends the transaction: its lifetime does.
	a.ok("app", insert("c", nil, idDoc(1)))
	a.refused(251, "admin", commit(1, 1))
}
