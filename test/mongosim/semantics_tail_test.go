package mongosim_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// tail opens a tailable cursor on the oplog.
func tail(from bson.Timestamp, level string, more ...bson.E) d {
	return append(d{
		arg("find", "oplog.rs"), arg("filter", d{arg("ts", d{arg("$gte", from)})}),
		arg("tailable", true), arg("awaitData", true), readConcern(level, "", bson.Timestamp{}),
	}, more...)
}

// more asks such a cursor for more, to wait for so many milliseconds.
func more(id int64, ms int, fields ...bson.E) d {
	return append(d{arg("getMore", id), arg("collection", "oplog.rs"), arg("maxTimeMS", ms)}, fields...)
}

// meta asks for the metadata that a fetcher reads.
func meta() []bson.E { return []bson.E{arg("$replData", 1), arg("$oplogQueryData", 1)} }

// checkMetadata compares fields and types with those that a real set gives.
func checkMetadata(t *testing.T, reply bson.Raw) {
	t.Helper()
	const optime, date, long, integer = bson.TypeEmbeddedDocument, bson.TypeDateTime, bson.TypeInt64, bson.TypeInt32
	type field struct {
		name string
		kind bson.Type
	}
	for name, want := range map[string][]field{
		"$replData": {
			{"term", long},
			{"lastOpCommitted", optime},
			{"lastCommittedWall", date},
			{"lastOpVisible", optime},
			{"configVersion", long},
			{"configTerm", long},
			{"replicaSetId", bson.TypeObjectID},
			{"syncSourceIndex", integer},
			{"isPrimary", bson.TypeBoolean},
		},
		"$oplogQueryData": {
			{"lastOpCommitted", optime},
			{"lastCommittedWall", date},
			{"lastOpApplied", optime},
			{"rbid", integer},
			{"primaryIndex", integer},
			{"syncSourceIndex", integer},
			{"syncSourceHost", bson.TypeString},
		},
	} {
		doc, _ := reply.Lookup(name).DocumentOK()
		elems, _ := doc.Elements()
		if len(elems) != len(want) {
			t.Errorf("%s: %s", name, doc)
			continue
		}
		for i, e := range elems {
			if got := (field{e.Key(), e.Value().Type}); got != want[i] {
				t.Errorf("%s has %v, want %v", name, got, want[i])
			}
		}
	}
}

// TestTail follows the oplog as a replicator does.
func TestTail(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 20, ElectionTimeout: time.Minute})
	p, n := primaryOf(t, set)
	c := dial(t, p)
	first := c.ok("app", insert("c", nil, idDoc(1)))
	at := stamp(first, "opTime", "ts")
	for _, level := range []string{"local", "majority"} {
		reply := c.ok("local", tail(at, level, meta()...))
		got := docs(t, reply)
		if len(got) != 1 || stamp(got[0], "ts") != at || got[0].Lookup("t").Int64() != first.Lookup("opTime", "t").Int64() {
			t.Errorf("%s: the first batch from %v on is %v", level, at, got)
		}
		checkMetadata(t, reply)
		reply = c.ok("local", more(cursorID(reply), 1, meta()...))
		if len(docs(t, reply)) != 0 {
			t.Errorf("%s: second batch %s", level, reply)
		}
		checkMetadata(t, reply)
	}

	// Without a majority, local shows what majority does not.
	set.Isolate(n)
	local := cursorID(c.ok("local", tail(at, "local")))
	committed := cursorID(c.ok("local", tail(at, "majority")))
	second := stamp(c.ok("app", insert("c", w1, idDoc(2))), "opTime", "ts")
	if got := docs(t, c.ok("local", more(local, 100))); len(got) != 1 || stamp(got[0], "ts") != second {
		t.Errorf("local shows %v", got)
	}
	if got := docs(t, c.ok("local", more(committed, 30))); len(got) != 0 {
		t.Errorf("majority shows what is not committed: %v", got)
	}
	// A move of the commit point ends the wait with an empty batch.
	known := arg("lastKnownCommittedOpTime", first.Lookup("opTime"))
	waiting := dial(t, p)
	waiting.send("local", more(local, 60000, known))
	set.Rejoin(n)
	if got := docs(t, waiting.receive()); len(got) != 0 {
		t.Errorf("local shows %v", got)
	}
	if got := docs(t, c.ok("local", more(committed, 60000))); len(got) != 1 || stamp(got[0], "ts") != second {
		t.Errorf("majority shows %v", got)
	}
}

// TestTailKilled ends cursors that wait, in every way that there is.
func TestTailKilled(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 27})
	p, _ := primaryOf(t, set)
	c, killer := dial(t, p), dial(t, p)
	at := stamp(c.ok("app", insert("c", nil, idDoc(1))), "opTime", "ts")
	session := arg("lsid", lsid(9))
	for _, kill := range []func(id int64) (db string, cmd d){
		func(id int64) (string, d) {
			return "local", d{arg("killCursors", "oplog.rs"), arg("cursors", bson.A{id})}
		},
		func(int64) (string, d) { return "admin", d{arg("killSessions", bson.A{lsid(9)})} },
		func(int64) (string, d) { return "admin", d{arg("killAllSessions", bson.A{})} },
	} {
		var id int64
		eventually(t, "a wait was killed", func() bool {
			id = cursorID(c.ok("local", tail(at, "local", session)))
			c.send("local", more(id, 60000, session))
			killer.ok(kill(id))
			code, _ := c.receive().Lookup("code").Int32OK()
			if code != 237 && code != 43 { // 43: it was killed before it waited
				t.Errorf("a killed cursor gives %d, want CursorKilled", code)
			}
			return code == 237
		})
		c.refused(43, "local", more(id, 1, session))
	}
}

// TestTailRollOver: a cursor whose place has left the oplog is lost, and a new one
// begins with the oldest entry left.
func TestTailRollOver(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 28, OplogBytes: 1 << 20})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	at := stamp(c.ok("app", insert("c", nil, idDoc(-1))), "opTime", "ts")
	c.ok("app", insert("c", nil, idDoc(-2)))
	id := cursorID(c.ok("local", tail(at, "local", arg("batchSize", 1))))
	for i := range 30 {
		c.ok("app", insert("c", nil, d{{Key: "_id", Value: i}, {Key: "p", Value: strings.Repeat("x", 100<<10)}}))
	}
	c.refused(136, "local", more(id, 10))
	oldest := docs(t, c.ok("local", find("oplog.rs", arg("sort", d{arg("$natural", 1)}), arg("limit", 1))))[0]
	got := docs(t, c.ok("local", tail(at, "local", arg("batchSize", 1))))
	if len(got) != 1 || stamp(got[0], "ts") != stamp(oldest, "ts") || stamp(oldest, "ts") == at {
		t.Errorf("from %v on there is %v, the oldest is %v", at, got, oldest)
	}
	if r := c.ok("local", tail(bson.Timestamp{T: at.T + 1000, I: 1}, "local")); len(docs(t, r)) != 0 || cursorID(r) == 0 {
		t.Errorf("beyond the end: %s", r)
	}
}

// TestTailExhaust takes a stream of replies, up to the size of a reply each.
func TestTailExhaust(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 29})
	p, _ := primaryOf(t, set)
	c, w := dial(t, p), dial(t, p)
	at := stamp(c.ok("app", insert("c", nil, idDoc(1))), "opTime", "ts")
	for i := range 3 {
		c.ok("app", insert("c", nil, d{{Key: "_id", Value: 100 + i}, {Key: "big", Value: strings.Repeat("x", 7<<20)}}))
	}
	c.ok("app", insert("c", nil, d{{Key: "_id", Value: "huge"}, {Key: "big", Value: strings.Repeat("x", 16<<20-100)}}))
	id := cursorID(c.ok("local", tail(at, "local", arg("batchSize", 1))))
	body := must.Marshal(t, append(more(id, 20, meta()...), arg("batchSize", 13981013), arg("$db", "local")))
	if _, err := c.Send(t.Context(), wire.Request{Exhaust: true, Body: body}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 1, 1, 0, 0} {
		m, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := len(docs(t, m.Body)); got != want || !m.Flags.Has(wire.MoreToCome) {
			t.Errorf("reply %d has %d documents, want %d; flags %x", i, got, want, m.Flags)
		}
		checkMetadata(t, m.Body)
	}
	w.ok("local", d{arg("killCursors", "oplog.rs"), arg("cursors", bson.A{id})})
	eventually(t, "the end of the stream", func() bool {
		m, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return !m.Flags.Has(wire.MoreToCome)
	})
	c.ok("admin", d{arg("ping", 1)})
}

// TestHangUp: the waits of clients that are gone end at once.
func TestHangUp(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 30})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	at := stamp(c.ok("app", insert("c", nil, idDoc(1))), "opTime", "ts")
	current := func() int32 {
		return c.ok("admin", d{arg("serverStatus", 1)}).Lookup("connections", "current").Int32()
	}
	before := current()
	var gone []raw
	for range 200 {
		g := dial(t, p)
		g.send("local", more(cursorID(g.ok("local", tail(at, "local"))), 600_000))
		gone = append(gone, g)
	}
	if n := current() - before; n != 200 {
		t.Errorf("%d connections, want 200", n)
	}
	for _, g := range gone {
		_ = g.Close()
	}
	eventually(t, "all of them have ended", func() bool { return current() == before })
}

// TestCausal reads while others write: no reply has data newer than the optimes that
// it names, and no later read on another member misses them.
func TestCausal(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 51, JournalDelay: time.Millisecond})
	p, n := primaryOf(t, set)
	w := dial(t, p)
	at := stamp(w.ok("app", insert("c", nil, idDoc(-1))), "opTime", "ts")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	until := func(fn func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					fn()
				}
			}
		})
	}
	for _, m := range set.Members() {
		for level, field := range map[string]string{"local": "lastOpApplied", "majority": "lastOpCommitted"} {
			c := dial(t, m)
			id := cursorID(c.ok("local", tail(at, level, arg("batchSize", 1))))
			until(func() {
				r := c.ok("local", more(id, 10, meta()...))
				got := docs(t, r)
				if len(got) > 0 && stamp(got[len(got)-1], "ts").After(stamp(r, "$oplogQueryData", field, "ts")) {
					t.Errorf("%s: a batch beyond %s", level, field)
				}
			})
		}
	}
	for k, level := range []string{"local", "majority"} {
		a, b := dial(t, set.Member((n+1)%3)), dial(t, set.Member((n+2-2*k)%3))
		last := []bson.E{arg("sort", idDoc(-1)), arg("limit", 1), nearest}
		// A majority has the first document, and this member perhaps not yet.
		a.ok("app", find("c", append(last, readConcern(level, "afterClusterTime", at), arg("$clusterTime", d{arg("clusterTime", at)}))...))
		until(func() {
			r := a.ok("app", find("c", append(last, readConcern(level, "", bson.Timestamp{}))...))
			seen, time := docs(t, r)[0].Lookup("_id").Int32(), stamp(r, "operationTime")
			r = b.ok("app", find("c", append(last, readConcern(level, "afterClusterTime", time), arg("$clusterTime", d{arg("clusterTime", time)}))...))
			if got := docs(t, r)[0].Lookup("_id").Int32(); got < seen {
				t.Errorf("%s: after %v a read saw %d, and one before it %d", level, time, got, seen)
			}
		})
	}
	end := time.Now().Add(1500 * time.Millisecond)
	for i := 0; time.Now().Before(end); i++ {
		w.ok("app", insert("c", w1, idDoc(i)))
	}
	close(stop)
	wg.Wait()
}

// TestMembers asks members of all kinds, and one that has not copied the data yet.
func TestMembers(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 45, MemberOptions: []mongosim.MemberOptions{
		{}, {NoPriority: true, Hidden: true}, {NoPriority: true, NonVoting: true}, {NoPriority: true, Hidden: true, NoIndexes: true, Delay: time.Second},
	}})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	late := stamp(c.ok("app", insert("c", nil, idDoc(1))), "opTime", "ts")
	gossip := func(ts bson.Timestamp) bson.E { return arg("$clusterTime", d{arg("clusterTime", ts)}) }
	for _, m := range set.Members()[1:] {
		s := dial(t, m)
		s.refused(13435, "app", find("c"))
		s.refused(10107, "app", insert("c", nil, idDoc(3)))
		if got := docs(t, s.ok("app", find("c", nearest, gossip(late), readConcern("local", "afterClusterTime", late)))); len(got) != 1 {
			t.Errorf("%s: a causal read gives %v", m.Host(), got)
		}
	}
	// A time that was only heard of: reads wait, and the next write is after it.
	heard := bson.Timestamp{T: late.T + 600, I: 1}
	hidden := dial(t, set.Member(1))
	hidden.refused(50, "app", find("c", nearest, gossip(heard), readConcern("local", "afterClusterTime", heard), arg("maxTimeMS", 30)))
	if ts := stamp(c.ok("app", insert("c", d{gossip(heard)}, idDoc(2))), "opTime", "ts"); !ts.After(heard) {
		t.Errorf("the write is at %v, not after %v", ts, heard)
	}
	hidden.ok("app", find("c", nearest, readConcern("local", "afterClusterTime", heard)))

	// Member 3, which builds no indexes, tells it the configuration, but is not a source of a
	// copy: none begins before the links to the others are healed.
	m := set.Member(2)
	must.Succeed(t, m.Kill())
	must.Succeed(t, m.Wipe())
	set.Cut(2, 0)
	set.Cut(2, 1)
	must.Succeed(t, m.Start())
	s := dial(t, m)
	eventually(t, "the member knows that it has to copy", func() bool {
		state, _ := s.try("admin", d{arg("replSetGetStatus", 1)}).Lookup("myState").Int32OK()
		return oplog.MemberState(state) == oplog.MemberStartup2
	})
	s.refused(13436, "local", find("oplog.rs", arg("limit", 1)))
	set.Heal(2, 0)
	set.Heal(2, 1)
	eventually(t, "the copy is readable", func() bool {
		r := s.try("app", find("c", nearest, readConcern("majority", "", bson.Timestamp{}), arg("maxTimeMS", 1000)))
		if code, _ := r.Lookup("code").Int32OK(); code != 0 {
			return false
		}
		// What it knows of the commit point may be older than what it copied.
		return len(docs(t, r)) == 2
	})
}
