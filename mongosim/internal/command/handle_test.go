package command

import (
	"context"
	"net"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// dial serves the member on a connection over TCP and returns the client's side.
func (m *member) dial(t testing.TB) *wire.Client {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = wire.Serve(context.Background(), conn, m.Handler(m.NewConn("test")))
	}()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = listener.Close()
		<-done
	})
	return wire.NewClient(conn)
}

func TestHandlerOverTCP(t *testing.T) {
	m := newMember(t, "5.0.7")
	c := m.dial(t)
	body := parse(t, `{insert: "c", ordered: true, $db: "d"}`)
	docs := wire.Sequence{Name: "documents", Docs: []bson.Raw{parse(t, `{_id: 1}`), parse(t, `{_id: 2}`)}}
	if _, err := c.Send(t.Context(), wire.Request{Body: body, Sequences: []wire.Sequence{docs}, Checksum: true}); err != nil {
		t.Fatal(err)
	}
	reply, err := c.Receive(t.Context())
	if err != nil || reply.Body.Lookup("n").Int32() != 2 {
		t.Fatalf("%v, %v", reply, err)
	}
	// Exhaust: the cursor comes in several replies.
	find, err := c.Call(t.Context(), parse(t, `{find: "c", batchSize: 0, $db: "d"}`))
	if err != nil {
		t.Fatal(err)
	}
	id := find.Lookup("cursor", "id").Int64()
	more := marshal(t, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "batchSize", Value: 1}, {Key: "$db", Value: "d"}})
	if _, err := c.Send(t.Context(), wire.Request{Body: more, Exhaust: true}); err != nil {
		t.Fatal(err)
	}
	got := 0
	for range 4 {
		reply, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		batch, _ := reply.Body.Lookup("cursor", "nextBatch").Array().Values()
		got += len(batch)
		if !reply.Flags.Has(wire.MoreToCome) {
			break
		}
	}
	if got != 2 {
		t.Errorf("the stream had %d documents, want 2", got)
	}
	// A fail point that closes the connection.
	if _, err := c.Call(t.Context(), parse(t, `{configureFailPoint: "failCommand", mode: "alwaysOn", data: {failCommands: ["find"], closeConnection: true}, $db: "admin"}`)); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Call(t.Context(), parse(t, `{find: "c", $db: "d"}`)); err == nil {
		t.Errorf("the connection is open and answered %s", r)
	}
}

// TestReplyMemory: replies of one connection are made in the same memory, a large one too if
// a few small ones came in between. After a row of small ones a large piece of it goes.
func TestReplyMemory(t *testing.T) {
	m := newMember(t, "5.0.7")
	h := m.Handler(m.NewConn("test"))
	ask := func(body string, docs ...bson.Raw) bson.Raw {
		t.Helper()
		req := &wire.Message{Body: parse(t, body)}
		if docs != nil {
			req.Sequences = []wire.Sequence{{Name: "documents", Docs: docs}}
		}
		reply := h.Handle(t.Context(), req).Body
		if reply.Lookup("ok").Double() != 1 {
			t.Fatalf("%s: %s", body, reply)
		}
		return reply
	}
	ask(`{insert: "c", $db: "d"}`, someDocs(0, 1000)...)
	const find = `{find: "c", batchSize: 1000, singleBatch: true, $db: "d"}`
	first := ask(find)
	again := ask(find)
	if &first[0] != &again[0] {
		t.Error("the second large reply has memory of its own")
	}
	if docs, err := again.Lookup("cursor", "firstBatch").Array().Values(); err != nil || len(docs) != 1000 {
		t.Errorf("%d documents, %v", len(docs), err)
	}
	const ping = `{ping: 1, $db: "admin"}`
	ask(ping)
	ask(ping)
	if again = ask(find); &first[0] != &again[0] {
		t.Error("the large reply after two small ones has memory of its own")
	}
	small := ask(ping)
	for range dispatch.Patience - 1 {
		ask(ping)
	}
	if next := ask(ping); cap(next) > dispatch.SmallReply {
		t.Errorf("after %d replies of %d bytes a connection keeps %d", dispatch.Patience, len(small), cap(next))
	}
	if other := m.Call(t.Context(), parse(t, `{ping: 1, $db: "admin"}`)); &other[0] == &m.Call(t.Context(), parse(t, `{ping: 1, $db: "admin"}`))[0] {
		t.Error("what a caller in this process got is made use of again")
	}
}

// someDocs returns n documents of about 150 bytes, their _ids from first on.
func someDocs(first, n int) []bson.Raw {
	docs := make([]bson.Raw, n)
	for i := range docs {
		raw, err := bson.Marshal(bson.D{
			{Key: "_id", Value: first + i},
			{Key: "name", Value: "somebody with a name"},
			{Key: "n", Value: 0},
			{Key: "tags", Value: bson.A{"a", "b"}},
			{Key: "pad", Value: "ppppppppppppppppppppppppppppppppppppppppppppppppppppppp"},
		})
		if err != nil {
			panic(err)
		}
		docs[i] = raw
	}
	return docs
}
