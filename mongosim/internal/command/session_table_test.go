package command

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

// endAll is endSessions of the sessions numbered from first on.
func endAll(first, count int) bson.Raw {
	list := bsoncore.NewArrayBuilder()
	for i := range count {
		id := numbered(first + i)
		list.AppendDocument(bsoncore.BuildDocument(nil, bsoncore.AppendBinaryElement(nil, "id", bson.TypeBinaryUUID, id[:])))
	}
	doc := bsoncore.AppendArrayElement(nil, "endSessions", list.Build())
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(doc, "$db", "admin")))
}

func numbered(n int) (u oplog.UUID) {
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

func TestEndedSessionsAreForgotten(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "c", $db: "d"}`)
	const count, batch = 100_000, 1000
	for n := 0; n < count; n += batch {
		for i := range batch {
			// What each command with a txnNumber does, without the command.
			r := &dispatch.Request{Server: m.Server, Generic: dispatch.Generic{LSID: dispatch.NewLSID(numbered(n+i), dispatch.Nobody)}}
			release, err := r.CheckOut(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			release()
		}
		if reply := m.CallOn(t.Context(), m.conn, endAll(n, batch)); !succeeded(reply) {
			t.Fatalf("%s", reply)
		}
	}
	if n := len(m.Sessions.All()); n != 0 {
		t.Errorf("%d sessions are remembered", n)
	}
}

func succeeded(reply bson.Raw) bool {
	ok, _ := reply.Lookup("ok").AsInt64OK()
	return ok == 1
}

func TestSessionsWithAnOpenTransactionAreKept(t *testing.T) {
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.Now = func() time.Time { return now } })
	m.run(t, `{create: "c", $db: "d"}`)
	m.run(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`)
	m.run(t, `{insert: "c", documents: [{_id: 2}], `+sessionB+`, txnNumber: {$numberLong: "7"}, $db: "d"}`)
	now = now.Add(20 * time.Minute)
	m.run(t, `{refreshSessions: [{id: {$uuid: "00000000-0000-4000-8000-00000000000b"}}], $db: "admin"}`)
	other := func(n int) {
		r := &dispatch.Request{Server: m.Server, Generic: dispatch.Generic{LSID: dispatch.NewLSID(numbered(n), dispatch.Nobody)}}
		if release, err := r.CheckOut(t.Context(), nil); err == nil {
			release()
		}
	}
	now = now.Add(20 * time.Minute)
	other(1)
	if n := len(m.Sessions.All()); n != 3 {
		t.Errorf("%d sessions, want those of the transaction, the refresh and now", n)
	}
	now = now.Add(dispatch.SessionIdle)
	other(2)
	if n := len(m.Sessions.All()); n != 2 {
		t.Errorf("%d sessions, want those of the transaction and now", n)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	// A retry of what an idle session did is answered from its record.
	m.want(t, `{insert: "c", documents: [{_id: 2}], `+sessionB+`, txnNumber: {$numberLong: "7"}, $db: "d"}`,
		`{n: 1, ok: 1.0}`)
	m.want(t, `{insert: "c", documents: [{_id: 3}], `+sessionB+`, txnNumber: {$numberLong: "6"}, $db: "d"}`,
		`{ok: 0.0, errmsg: "Retryable write with txnNumber 6 is prohibited on session 00000000-0000-4000-8000-00000000000b - 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= because a newer retryable write with txnNumber 7 has already started on this session.", code: 225, codeName: "TransactionTooOld"}`)
}

// TestEndOfASessionInUse sends every write of one session twice at once, while it
// is ended again and again: each must happen once.
func TestEndOfASessionInUse(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "c", $db: "d"}`)
	m.run(t, `{insert: "c", documents: [{_id: 0, n: 0}], $db: "d"}`)
	stop := make(chan struct{})
	var enders, writers sync.WaitGroup
	enders.Go(func() {
		end := parse(t, `{endSessions: [{id: {$uuid: "00000000-0000-4000-8000-00000000000a"}}], $db: "admin"}`)
		for {
			select {
			case <-stop:
				return
			default:
				m.CallOn(t.Context(), m.NewConn("ender"), end)
			}
		}
	})
	const writes = 300
	for n := range writes {
		cmd := parse(t, fmt.Sprintf(`{update: "c", updates: [{q: {_id: 0}, u: {$inc: {n: 1}}}], %s, txnNumber: {$numberLong: "%d"}, $db: "d"}`, sessionA, n))
		for range 3 {
			writers.Go(func() {
				conn := m.NewConn("writer")
				for {
					// endSessions interrupts what runs in the session.
					reply := m.CallOn(t.Context(), conn, cmd)
					if succeeded(reply) {
						return
					}
					if code, _ := reply.Lookup("code").AsInt64OK(); code != 11601 {
						t.Errorf("%s", reply)
						return
					}
				}
			})
		}
		writers.Wait()
	}
	close(stop)
	enders.Wait()
	m.want(t, `{find: "c", $db: "d"}`, fmt.Sprintf(`{cursor: {firstBatch: [{_id: 0, n: %d}], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`, writes))
}
