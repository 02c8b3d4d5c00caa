package mongosim_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/wire"
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
	if err := set.StepDown(t.Context()); err != nil {
		t.Fatal(err)
	}
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

	// The link breaks at the commit: whether it was carried out is asked for anew.
	c.ok("app", lane(2, 5, inTxn(3, 1, true)))
	if err := set.Fault(n, mongosim.Client, fault.Fault{Kind: fault.Reset}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), marshal(t, append(commit(3, 1), arg("$db", "admin")))); err == nil {
		t.Error("the link was not reset")
	}
	set.Heal(n, mongosim.Client)
	c = dial(t, p)
	c.ok("admin", commit(3, 1))

	c.ok("app", lane(2, 6, inTxn(4, 1, true)))
	c.ok("admin", commit(4, 1))
	c.ok("app", lane(2, 7, inTxn(5, 1, true)))
	if err := set.StepDown(t.Context()); err != nil {
		t.Fatal(err)
	}
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

// TestConcerns asks members that are cut off, and restarted ones.
func TestConcerns(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 24, ElectionTimeout: 1500 * time.Millisecond})
	p, n := primaryOf(t, set)
	c, sec := dial(t, p), dial(t, set.Member((n+1)%3))
	c.ok("app", insert("c", nil, idDoc(1)))
	sec.refused(13435, "app", find("c"))
	sec.ok("app", find("c", nearest))
	sec.ok("local", find("oplog.rs", arg("limit", 1)))

	set.Isolate(n)
	for w, code := range map[any]int32{2: 64, 3: 64, "majority": 64, 4: 100, "nope": 79} {
		r := c.try("app", insert("c", d{arg("writeConcern", d{arg("w", w), arg("wtimeout", 20)})}, d{}))
		e, _ := r.Lookup("writeConcernError").DocumentOK()
		if got, _ := e.Lookup("code").Int32OK(); got != code || r.Lookup("n").Int32() != 1 {
			t.Errorf("w: %v: %s", w, r)
		}
		if timedOut, _ := e.Lookup("errInfo", "wtimeout").BooleanOK(); timedOut != (code == 64) || code == 64 && e.Lookup("codeName").StringValue() != "WriteConcernFailed" {
			t.Errorf("w: %v: %s", w, e)
		}
	}
	c.ok("app", insert("c", d{arg("writeConcern", d{arg("w", 1), arg("j", true)})}, d{}))
	late := stamp(c.ok("app", insert("c", w1, idDoc("late"))), "opTime", "ts")
	short := arg("maxTimeMS", 30)
	if got := docs(t, c.ok("app", find("c", readConcern("majority", "", bson.Timestamp{})))); len(got) != 1 {
		t.Errorf("majority shows what is not committed: %v", got)
	}
	c.refused(50, "app", find("c", readConcern("majority", "afterClusterTime", late), short))
	c.refused(50, "app", find("c", readConcern("snapshot", "atClusterTime", late), short))
	never := bson.Timestamp{T: late.T + 100, I: 1}
	c.refused(72, "app", find("c", readConcern("snapshot", "atClusterTime", never)))
	c.refused(72, "app", find("c", readConcern("local", "afterClusterTime", never)))
	c.refused(205, "app", find("c", arg("$clusterTime", d{arg("clusterTime", bson.Timestamp{T: late.T + 2*365*86400, I: 1})})))
	sec.refused(50, "app", find("c", nearest, short, readConcern("local", "afterClusterTime", late), arg("$clusterTime", d{arg("clusterTime", late)})))
	set.Rejoin(n)
	if got := docs(t, sec.ok("app", find("c", nearest, readConcern("majority", "afterClusterTime", late)))); len(got) != 8 {
		t.Errorf("a causal read on the secondary: %v", got)
	}
	gone := insert("c", d{arg("writeConcern", d{arg("w", 0)}), arg("$db", "app")}, idDoc("w0"))
	if _, err := c.Send(t.Context(), wire.Request{NoReply: true, Body: marshal(t, gone)}); err != nil {
		t.Fatal(err)
	}
	if got := docs(t, c.ok("app", find("c", arg("filter", idDoc("w0"))))); len(got) != 1 {
		t.Errorf("w: 0: %v", got)
	}

	// A restarted member does not know the commit point until a majority is back.
	for _, m := range set.Members() {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	c = dial(t, p)
	eventually(t, "readable", func() bool { v, _ := p.Status(); return v.State.Readable() })
	c.ok("app", find("c", nearest))
	c.refused(50, "app", find("c", nearest, short, readConcern("majority", "", bson.Timestamp{})))
	c.refused(246, "app", find("c", nearest, short, readConcern("snapshot", "", bson.Timestamp{})))
	if err := set.Member((n + 1) % 3).Start(); err != nil {
		t.Fatal(err)
	}
	c.ok("app", find("c", nearest, readConcern("majority", "", bson.Timestamp{})))
}

// TestSnapshots reads the past, in cursors and in transactions, while others write.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 25})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	many := make([]any, 300)
	for i := range many {
		many[i] = idDoc(i)
	}
	c.ok("app", insert("c", nil, many...))
	snapshot := readConcern("snapshot", "", bson.Timestamp{})
	r := c.ok("app", find("c", snapshot, arg("batchSize", 10)))
	at := stamp(r, "cursor", "atClusterTime")
	all := d{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{d{arg("q", d{}), arg("limit", 0)}}}}
	c.ok("app", all)
	if got := docs(t, c.ok("app", d{arg("getMore", cursorID(r)), arg("collection", "c")})); len(got) != 290 {
		t.Errorf("the cursor has %d more, want 290", len(got))
	}
	count := d{arg("aggregate", "c"), arg("pipeline", bson.A{d{arg("$count", "n")}}), arg("cursor", d{}), readConcern("snapshot", "atClusterTime", at)}
	if got := docs(t, c.ok("app", count)); len(got) != 1 || got[0].Lookup("n").Int32() != 300 {
		t.Errorf("aggregate at %v: %v", at, got)
	}
	c.refused(239, "app", find("c", readConcern("snapshot", "atClusterTime", bson.Timestamp{T: at.T - 1000, I: 1})))

	c.ok("app", insert("c", nil, idDoc(1)))
	c.ok("app", find("other", append(inTxn(1, 1, true), snapshot)...))
	c.ok("app", insert("c", nil, idDoc(2)))
	if got := docs(t, c.ok("app", find("c", inTxn(1, 1, false)...))); len(got) != 1 {
		t.Errorf("the transaction sees %v", got)
	}
	c.ok("app", all)
	c.refused(112, "app", update("c", idDoc(1), d{{Key: "$set", Value: d{{Key: "x", Value: 1}}}}, inTxn(1, 1, false)...))
}

// TestUniqueInTransactions: open transactions conflict over a key, committed ones
// have it.
func TestUniqueInTransactions(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 26})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	with := func(id, u int) d { return d{{Key: "_id", Value: id}, {Key: "u", Value: u}} }
	c.ok("app", uniqueIndex("q"))
	c.ok("app", insert("q", inTxn(1, 1, true), with(1, 1)))
	c.refused(112, "app", insert("q", inTxn(2, 1, true), with(2, 1)))
	c.refused(50, "app", insert("q", d{arg("maxTimeMS", 20)}, with(2, 1)))
	c.ok("admin", commit(1, 1))
	if r := c.try("app", insert("q", nil, with(2, 1))); writeError(r) != 11000 {
		t.Errorf("after the commit: %s", r)
	}
	c.ok("app", find("q", inTxn(3, 1, true)...))
	c.ok("app", insert("q", nil, with(7, 7)))
	c.refused(112, "app", insert("q", inTxn(3, 1, false), with(8, 7)))
	c.ok("app", append(d{{Key: "delete", Value: "q"}, {Key: "deletes", Value: bson.A{d{arg("q", idDoc(7)), arg("limit", 1)}}}}, inTxn(4, 1, true)...))
	c.ok("app", insert("q", inTxn(4, 1, false), with(9, 7)))
	c.ok("admin", commit(4, 1))
}

func uniqueIndex(coll string) d {
	return d{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
		d{{Key: "key", Value: d{{Key: "u", Value: 1}}}, {Key: "name", Value: "u_1"}, {Key: "unique", Value: true}},
	}}}
}

// TestRollbackSessions: what a rollback undoes is carried out when it is tried
// again, what was committed is not, and all members agree afterwards.
func TestRollbackSessions(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 31})
	p, n := primaryOf(t, set)
	c, idle := dial(t, p), dial(t, p)
	with := func(id string, u int) d { return d{{Key: "_id", Value: id}, {Key: "u", Value: u}} }
	bump := func(session byte, more ...bson.E) d {
		return update("lanes", idDoc("w"), d{{Key: "$inc", Value: d{{Key: "n", Value: 1}}}}, append(retryable(session, 1), more...)...)
	}
	c.ok("app", uniqueIndex("c"))
	c.ok("app", insert("c", retryable(1, 1), idDoc("kept")))
	c.ok("app", d{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{d{arg("q", d{}), arg("limit", 0)}}}})
	c.ok("app", insert("lanes", nil, idDoc("w")))
	at := stamp(docs(t, c.ok("local", find("oplog.rs", arg("sort", d{arg("$natural", -1)}), arg("limit", 1))))[0], "ts")
	settled(t, set)
	set.Isolate(n)
	local := cursorID(c.ok("local", tail(at, "local")))
	committed := cursorID(c.ok("local", tail(at, "majority")))
	c.ok("app", insert("c", w1, idDoc("x1"), with("x2", 2)))
	c.ok("app", insert("c", append(retryable(2, 1), w1...), with("lost", 5)))
	c.ok("app", bump(3, w1...))
	if got := docs(t, c.ok("local", more(local, 50))); len(got) != 4 {
		t.Errorf("local shows %d new entries, want 4", len(got))
	}
	if got := docs(t, c.ok("local", more(committed, 20))); len(got) != 0 {
		t.Errorf("majority shows %v", got)
	}
	next := otherPrimary(t, set, n)
	eventually(t, "the old primary stepped down", func() bool { v, _ := p.Status(); return !v.Writable })
	c.ok("local", more(local, 1)) // cursors and connections outlive a step-down
	running := cursorID(idle.ok("local", tail(at, "local")))
	idle.send("local", more(running, 30000))

	b := dial(t, next)
	b.ok("app", insert("c", retryable(1, 1), idDoc("kept")))
	if got := docs(t, b.ok("app", find("c"))); len(got) != 0 {
		t.Errorf("on the new primary, with the retry of a committed write: %v", got)
	}
	b.ok("app", insert("c", retryable(2, 1), with("lost", 5)))
	b.ok("app", bump(3))
	before, _ := p.Status()
	set.Rejoin(n)
	if m, err := idle.Receive(t.Context()); err == nil {
		if code, _ := m.Body.Lookup("code").Int32OK(); code != 11602 && len(docs(t, m.Body)) != 4 {
			t.Errorf("the getMore that met the rollback: %s", m.Body)
		}
	}
	settled(t, set)
	if after, _ := p.Status(); after.RollbackID != before.RollbackID+1 {
		t.Errorf("rbid %d, before %d", after.RollbackID, before.RollbackID)
	}
	if r, err := c.Call(t.Context(), marshal(t, append(more(local, 1), arg("$db", "local")))); err == nil {
		t.Errorf("the connection outlived the rollback: %s", r)
	}
	dial(t, p).refused(175, "local", more(committed, 1))
	states := map[string]bool{}
	for _, m := range set.Members() {
		var text strings.Builder
		for _, ns := range [][2]string{{"app", "c"}, {"app", "lanes"}, {"config", "transactions"}} {
			for _, doc := range docs(t, dial(t, m).ok(ns[0], find(ns[1], nearest, arg("sort", idDoc(1))))) {
				text.Write(doc)
			}
		}
		states[text.String()] = true
	}
	if len(states) != 1 {
		t.Errorf("the members hold %d different things", len(states))
	}
	b.ok("app", insert("c", nil, with("y", 2)))
	if r := b.try("app", insert("c", nil, with("z", 5))); writeError(r) != 11000 {
		t.Errorf("the unique index after the rollback: %s", r)
	}
}

// otherPrimary waits for a primary that is not member n.
func otherPrimary(t *testing.T, set *mongosim.Set, n int) (m *mongosim.Member) {
	t.Helper()
	eventually(t, "another primary", func() bool {
		for i, other := range set.Members() {
			if v, ok := other.Status(); ok && i != n && v.Writable {
				m = other
				return true
			}
		}
		return false
	})
	return m
}

// TestPrepared: a prepared transaction outlives changes of the primary and the
// restart of a member that holds it.
func TestPrepared(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 32})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	c.ok("app", insert("c", nil, idDoc(1)))
	c.ok("app", insert("c", inTxn(1, 1, true), idDoc(2)))
	r := c.ok("admin", append(d{arg("prepareTransaction", 1), arg("writeConcern", d{arg("w", "majority")})}, inTxn(1, 1, false)...))
	if err := set.StepDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, n := primaryOf(t, set)
	c = dial(t, second)
	if got := docs(t, c.ok("app", find("c"))); len(got) != 1 {
		t.Errorf("a read shows %v", got)
	}
	c.refused(50, "app", insert("c", d{arg("maxTimeMS", 30)}, idDoc(2)))
	if err := second.Kill(); err != nil {
		t.Fatal(err)
	}
	third := otherPrimary(t, set, n)
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	dial(t, third).ok("admin", commit(1, 1, arg("commitTimestamp", stamp(r, "prepareTimestamp"))))
	settled(t, set)
	for _, m := range set.Members() {
		if got := docs(t, dial(t, m).ok("app", find("c", nearest))); len(got) != 2 {
			t.Errorf("%s has %v", m.Host(), got)
		}
	}
}

// TestStepDownReplies: what waits when a primary steps down is told so, and can be
// tried again.
func TestStepDownReplies(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 33})
	p, n := primaryOf(t, set)
	c, conflict, replication := dial(t, p), dial(t, p), dial(t, p)
	c.ok("app", insert("c", nil, idDoc(1)))
	c.ok("app", insert("c", inTxn(1, 1, true), idDoc(2)))
	settled(t, set)
	set.Isolate(n)
	conflict.send("app", insert("c", retryable(2, 1), idDoc(2)))
	replication.send("app", insert("c", retryable(3, 1), idDoc(3)))
	r := conflict.receive()
	if code, _ := r.Lookup("code").Int32OK(); code != 11602 || labels(r) != "RetryableWriteError" {
		t.Errorf("a write that waited for a conflict: %s", r)
	}
	if _, err := r.LookupErr("writeConcernError"); err == nil {
		t.Errorf("a write that has written nothing waited for its write concern: %s", r)
	}
	r = replication.receive()
	if code, _ := r.Lookup("writeConcernError", "code").Int32OK(); code != 189 || labels(r) != "RetryableWriteError" {
		t.Errorf("a write that waited for a majority: %s", r)
	}
}

// TestCopy reads a collection as a copying client does, while it is renamed and
// dropped.
func TestCopy(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 34})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	mixed := []any{idDoc(nil), idDoc(bson.MinKey{}), idDoc(bson.MaxKey{}), idDoc(true), idDoc(1.5), idDoc(bson.Timestamp{T: 1, I: 1})}
	for i := range 200 {
		mixed = append(mixed, idDoc(i), idDoc(fmt.Sprint("s", i)), idDoc(d{{Key: "a", Value: i}}), idDoc(bson.NewObjectID()), idDoc(bson.DateTime(i)))
	}
	c.ok("app", insert("c", nil, mixed...))
	info := docs(t, c.ok("app", d{arg("listCollections", 1), arg("filter", d{arg("name", "c")})}))[0]
	subtype, data := info.Lookup("info", "uuid").Binary()
	uuid := bson.Binary{Subtype: subtype, Data: slices.Clone(data)}
	natural := []bson.E{arg("hint", d{arg("$natural", 1)}), arg("$_requestResumeToken", true), arg("batchSize", 300)}
	scan := func(token bson.Raw) bson.Raw {
		more := natural
		if token != nil {
			more = append(slices.Clip(natural), arg("$_resumeAfter", token))
		}
		return c.ok("app", find(uuid, more...))
	}
	token := func(r bson.Raw) bson.Raw { return r.Lookup("cursor", "postBatchResumeToken").Document() }
	r := scan(nil)
	n := len(docs(t, r))
	r = scan(token(r))
	n += len(docs(t, r))
	c.ok("admin", d{arg("renameCollection", "app.c"), arg("to", "app.e")})
	c.refused(175, "app", d{arg("getMore", cursorID(r)), arg("collection", "c")})
	for len(docs(t, r)) > 0 {
		r = scan(token(r))
		n += len(docs(t, r))
	}
	if ns := r.Lookup("cursor", "ns").StringValue(); n != len(mixed) || ns != "app.e" {
		t.Errorf("%d documents of %s, want %d of app.e", n, ns, len(mixed))
	}
	for filter, want := range map[string]d{"to MaxKey": {arg("$lte", bson.MaxKey{})}, "from MinKey": {arg("$gte", bson.MinKey{})}} {
		if got := docs(t, c.ok("app", find("e", arg("filter", idDoc(want)), arg("batchSize", 2000)))); len(got) != len(mixed) {
			t.Errorf("%s are %d", filter, len(got))
		}
	}
	if got := docs(t, c.ok("app", find("e", arg("filter", idDoc(d{arg("$gte", 10)})), arg("batchSize", 2000)))); len(got) != 190 {
		t.Errorf("a number bounds numbers only: %d", len(got))
	}
	r = c.ok("app", find("e", append(slices.Clip(natural[:2]), arg("batchSize", 3))...))
	c.ok("app", d{{Key: "delete", Value: "e"}, {Key: "deletes", Value: bson.A{d{arg("q", d{arg("_id", docs(t, r)[2].Lookup("_id"))}), arg("limit", 1)}}}})
	c.refused(211, "app", find("e", append(slices.Clip(natural), arg("$_resumeAfter", token(r)))...))
	c.ok("app", d{arg("drop", "e")})
	c.refused(175, "app", d{arg("getMore", cursorID(r)), arg("collection", "e")})
	c.refused(26, "app", find(uuid))
	c.refused(26, "app", d{arg("listIndexes", "e")})
}

// TestCapped: every member holds the same, in the order of insertion.
func TestCapped(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 35})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	c.ok("app", d{arg("create", "cap"), arg("capped", true), arg("size", 4096), arg("max", 5)})
	c.ok("app", insert("cap", nil, idDoc(0)))
	id := cursorID(c.ok("app", find("cap", arg("tailable", true), arg("awaitData", true))))
	c.ok("app", insert("cap", nil, idDoc(1), idDoc(2)))
	next := d{arg("getMore", id), arg("collection", "cap"), arg("maxTimeMS", 100)}
	if got := docs(t, c.ok("app", next)); len(got) != 2 {
		t.Errorf("the tailable cursor gives %v", got)
	}
	if r := c.try("app", insert("cap", inTxn(1, 1, true), idDoc(50))); writeError(r) != 263 {
		t.Errorf("in a transaction: %s", r)
	}
	for i := 3; i < 20; i++ {
		c.ok("app", insert("cap", nil, idDoc(i)))
	}
	c.refused(136, "app", next)
	settled(t, set)
	for _, m := range set.Members() {
		var ids []string
		for _, doc := range docs(t, dial(t, m).ok("app", find("cap", nearest))) {
			ids = append(ids, strconv.Itoa(int(doc.Lookup("_id").Int32())))
		}
		if got := strings.Join(ids, " "); got != "15 16 17 18 19" {
			t.Errorf("%s has %s", m.Host(), got)
		}
	}
}
