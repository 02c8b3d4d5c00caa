package command

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// tailOplog opens a tailable cursor at the end of the oplog.
func tailOplog(t *testing.T, m *readMember, concern string) int64 {
	t.Helper()
	reply := m.must(t, "local", obj("find", "oplog.rs", "filter", obj("ts", obj("$gt", m.node.View().Applied.TS)), "tailable", true, "awaitData", true, "readConcern", obj("level", concern)))
	docs, id := docsOf(t, reply)
	if len(docs) != 0 || id == 0 {
		t.Fatalf("%s; want an empty batch and a cursor", reply)
	}
	return id
}

func more(id int64, extra ...bson.E) bson.D {
	return append(obj("getMore", id, "collection", "oplog.rs"), extra...)
}

func TestAwaitData(t *testing.T) {
	type result struct {
		docs []string
		id   int64
		took time.Duration
		raw  bson.Raw
	}
	// ask runs a getMore in the background.
	ask := func(t *testing.T, ctx context.Context, m *readMember, cmd bson.D) <-chan result {
		out := make(chan result, 1)
		conn := m.NewConn("other")
		go func() {
			start := time.Now()
			raw, _ := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: "local"}))
			reply := m.CallOn(ctx, conn, raw)
			r := result{raw: reply, took: time.Since(start)}
			if reply.Lookup("ok").Double() == 1 {
				r.docs, r.id = docsOf(t, reply)
			}
			out <- r
		}()
		synctest.Wait()
		return out
	}
	pending := func(t *testing.T, out <-chan result) {
		t.Helper()
		synctest.Wait()
		select {
		case r := <-out:
			t.Fatalf("did not wait: %s", r.raw)
		default:
		}
	}
	inBubble := func(name string, fn func(t *testing.T, m *readMember)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newReadMember(t, storage.Options{})
				m.insert(t, "db", "c", obj("_id", 0))
				fn(t, m)
			})
		})
	}

	inBubble("an entry wakes it", func(t *testing.T, m *readMember) {
		id := tailOplog(t, m, "local")
		out := ask(t, t.Context(), m, more(id, bson.E{Key: "maxTimeMS", Value: int64(5000)}))
		time.Sleep(time.Second)
		pending(t, out)
		m.insert(t, "db", "c", obj("_id", 1))
		if r := <-out; len(r.docs) != 1 || r.id != id || r.took != time.Second {
			t.Errorf("%s after %v; want one entry after 1s", r.raw, r.took)
		}
	})
	inBubble("it waits a second", func(t *testing.T, m *readMember) {
		id := tailOplog(t, m, "local")
		r := <-ask(t, t.Context(), m, more(id))
		if len(r.docs) != 0 || r.id != id || r.took != time.Second {
			t.Errorf("%s after %v; want nothing after 1s", r.raw, r.took)
		}
	})
	inBubble("a majority reader sees what is committed", func(t *testing.T, m *readMember) {
		m.node.hold()
		id := tailOplog(t, m, "majority")
		m.insert(t, "db", "c", obj("_id", 1))
		out := ask(t, t.Context(), m, more(id, bson.E{Key: "maxTimeMS", Value: int64(60000)}))
		time.Sleep(30 * time.Second)
		pending(t, out)
		m.node.commit(m.node.View().Applied)
		if r := <-out; len(r.docs) != 1 || r.took != 30*time.Second {
			t.Errorf("%s after %v; want one entry after 30s", r.raw, r.took)
		}
	})
	inBubble("the commit point wakes it with nothing", func(t *testing.T, m *readMember) {
		m.node.hold()
		m.insert(t, "db", "c", obj("_id", 1))
		view := m.node.View()
		id := tailOplog(t, m, "local")
		known := bson.E{Key: "lastKnownCommittedOpTime", Value: view.Committed}
		out := ask(t, t.Context(), m, more(id, known, bson.E{Key: "maxTimeMS", Value: int64(5000)}))
		pending(t, out)
		m.node.know(view.Applied)
		if r := <-out; len(r.docs) != 0 || r.id != id || r.took != 0 {
			t.Errorf("%s after %v; want an empty batch at once", r.raw, r.took)
		}
		// A client that knows an older commit point does not wait.
		if r := <-ask(t, t.Context(), m, more(id, known)); r.took != 0 {
			t.Errorf("waited %v", r.took)
		}
	})
	inBubble("a hang-up ends it and the cursor", func(t *testing.T, m *readMember) {
		id := tailOplog(t, m, "local")
		ctx, hangUp := context.WithCancelCause(t.Context())
		out := ask(t, ctx, m, more(id, bson.E{Key: "maxTimeMS", Value: int64(60000)}))
		pending(t, out)
		hangUp(errors.New("gone"))
		if r := <-out; r.took != 0 || r.raw.Lookup("ok").Double() != 0 {
			t.Errorf("%s after %v; want a refusal at once", r.raw, r.took)
		}
		m.refused(t, "local", more(id), 43)
	})
	inBubble("killCursors ends it", func(t *testing.T, m *readMember) {
		id := tailOplog(t, m, "local")
		out := ask(t, t.Context(), m, more(id, bson.E{Key: "maxTimeMS", Value: int64(60000)}))
		m.refused(t, "local", more(id), 143) // in use
		m.must(t, "local", obj("killCursors", "oplog.rs", "cursors", bson.A{id}))
		if r := <-out; r.raw.Lookup("code").Int32() != 237 {
			t.Errorf("%s; want CursorKilled", r.raw)
		}
	})
	inBubble("a rollback ends it", func(t *testing.T, m *readMember) {
		id, idle := tailOplog(t, m, "local"), tailOplog(t, m, "local")
		out := ask(t, t.Context(), m, more(id, bson.E{Key: "maxTimeMS", Value: int64(60000)}))
		m.RolledBack()
		if r := <-out; r.raw.Lookup("code").Int32() != 11602 {
			t.Errorf("%s; want InterruptedDueToReplStateChange", r.raw)
		}
		m.refused(t, "local", more(idle), 175)
		m.refused(t, "local", more(idle), 43)
	})
	inBubble("cursors die of idleness", func(t *testing.T, m *readMember) {
		m.insert(t, "db", "c", obj("_id", 1), obj("_id", 2))
		_, id := docsOf(t, m.must(t, "db", obj("find", "c", "batchSize", 1)))
		_, forever := docsOf(t, m.must(t, "db", obj("find", "c", "batchSize", 1, "noCursorTimeout", true)))
		time.Sleep(dispatch.CursorIdle + dispatch.CursorSweep)
		m.refused(t, "db", obj("getMore", id, "collection", "c"), 43)
		m.must(t, "db", obj("getMore", forever, "collection", "c"))
	})
}

// TestExhaustRequest checks how a stream of replies continues: the commit point
// that the last one was made at.
func TestExhaustRequest(t *testing.T) {
	cmd, _ := bson.Marshal(obj("getMore", int64(1), "lastKnownCommittedOpTime", obj("ts", bson.Timestamp{}, "t", int64(1)), "$db", "local"))
	got := read.WithKnown(cmd, oplog.NewOpTime(7, 3, 2))
	want, _ := bson.Marshal(obj("getMore", int64(1), "lastKnownCommittedOpTime", oplog.NewOpTime(7, 3, 2), "$db", "local"))
	if diff := cmp.Diff(bson.Raw(want).String(), got.String()); diff != "" {
		t.Error(diff)
	}
}

func TestCursorBelongsToItsSession(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.insert(t, "db", "c", obj("_id", 1), obj("_id", 2), obj("_id", 3))
	session := func(n byte) bson.E {
		return bson.E{Key: "lsid", Value: obj("id", bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)})}
	}
	open := func(extra ...bson.E) int64 {
		_, id := docsOf(t, m.must(t, "db", append(obj("find", "c", "batchSize", 1), extra...)))
		return id
	}
	next := func(id int64, extra ...bson.E) bson.D {
		return append(obj("getMore", id, "collection", "c", "batchSize", 1), extra...)
	}
	bare, mine := open(), open(session(1))
	m.refused(t, "db", next(bare, session(1)), 50736)
	m.refused(t, "db", next(mine), 50737)
	m.refused(t, "db", next(mine, session(2)), 50738)
	m.refused(t, "other", next(bare), 13)
	m.refused(t, "db", next(bare, bson.E{Key: "maxTimeMS", Value: 5}), 2)
	m.must(t, "db", next(mine, session(1)))
	m.must(t, "db", next(bare))
	m.must(t, "admin", obj("endSessions", bson.A{session(1).Value}))
	m.refused(t, "db", next(mine, session(1)), 43)
	m.must(t, "db", next(bare))
}

func TestCursorLosesItsCollection(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	open := func(coll string, extra ...bson.E) bson.D {
		_, id := docsOf(t, m.must(t, "db", append(obj("find", coll, "batchSize", 1), extra...)))
		return obj("getMore", id, "collection", coll)
	}
	for _, coll := range []string{"dropped", "renamed"} {
		m.insert(t, "db", coll, obj("_id", 1), obj("_id", 2), obj("_id", 3))
	}
	dropped, renamed := open("dropped"), open("renamed")
	m.must(t, "db", obj("drop", "dropped"))
	m.must(t, "admin", obj("renameCollection", "db.renamed", "to", "db.x"))
	m.refused(t, "db", dropped, 175)
	m.refused(t, "db", renamed, 175)

	m.must(t, "db", obj("create", "capped", "capped", true, "size", 4096, "max", 2))
	m.insert(t, "db", "capped", obj("_id", 1), obj("_id", 2))
	tail := open("capped", bson.E{Key: "tailable", Value: true})
	m.insert(t, "db", "capped", obj("_id", 3), obj("_id", 4))
	const lost = "Executor error during getMore :: caused by :: CollectionScan died due to position in capped collection being deleted. Last seen record id: RecordId(1)"
	if got := m.refused(t, "db", tail, 136); got != lost {
		t.Errorf("%s; want %s", got, lost)
	}
}
