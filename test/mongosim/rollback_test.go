package mongosim_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestRollbackSessions: a retry of a write that was rolled back is executed, that
// of a committed one is not, and all members agree afterwards.
func TestRollbackSessions(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 31, ElectionTimeout: 5 * time.Second}) // until then it accepts the writes that will be rolled back
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
	if r, err := c.Call(t.Context(), must.Marshal(t, append(more(local, 1), arg("$db", "local")))); err == nil {
		t.Errorf("the connection outlived the rollback: %s", r)
	}
	dial(t, p).refused(175, "local", more(committed, 1))
	membersAgree(t, set)
	b.ok("app", insert("c", nil, with("y", 2)))
	if r := b.try("app", insert("c", nil, with("z", 5))); writeError(r) != 11000 {
		t.Errorf("the unique index after the rollback: %s", r)
	}
}

func membersAgree(t *testing.T, set *mongosim.Set) {
	t.Helper()
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
	must.Succeed(t, set.StepDown(t.Context()))
	second, n := primaryOf(t, set)
	c = dial(t, second)
	if got := docs(t, c.ok("app", find("c"))); len(got) != 1 {
		t.Errorf("a read shows %v", got)
	}
	c.refused(50, "app", insert("c", d{arg("maxTimeMS", 30)}, idDoc(2)))
	must.Succeed(t, second.Kill())
	third := otherPrimary(t, set, n)
	must.Succeed(t, second.Start())
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
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 33, ElectionTimeout: 5 * time.Second}) // until then the writes have arrived
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
