package ends_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/wire"
)

func startNull(t *testing.T) *ends.Null {
	t.Helper()
	n, err := ends.StartNullAt(t.Context(), nil, 5, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func arm(t *testing.T, n *ends.Null, on bool) {
	t.Helper()
	if err := n.Arm(t.Context(), on); err != nil {
		t.Fatal(err)
	}
}

// acknowledged checks what it has acknowledged since it was armed.
func acknowledged(t *testing.T, n *ends.Null, commands, statements int64) {
	t.Helper()
	gotCommands, gotStatements, err := n.Commands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if commands >= 0 && gotCommands != commands || gotStatements != statements {
		t.Errorf("%d commands with %d statements, want %d with %d", gotCommands, gotStatements, commands, statements)
	}
}

func run(t *testing.T, n *ends.Null, db string, cmd bson.D, docs ...bson.Raw) bson.Raw {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	c := mongo.Command{DB: db, Body: body}
	if len(docs) > 0 {
		c.Sequence, c.Docs = map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[cmd[0].Key], docs
	}
	reply, err := n.Set.Call(t.Context(), c)
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return reply
}

func number(reply bson.Raw, name string) int64 {
	n, _ := reply.Lookup(name).AsInt64OK()
	return n
}

// TestNullDriver: a plain driver, which looks at every count, sees nothing wrong with
// it: bulk writes and transactions.
func TestNullDriver(t *testing.T) {
	n := startNull(t)
	w, err := workload.Preset("mixed")
	if err != nil {
		t.Fatal(err)
	}
	w.Ops, w.Documents = 500, 300
	gen, err := workload.New(w)
	if err != nil {
		t.Fatal(err)
	}
	collections, err := gen.Collections()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Fill(t.Context(), collections); err != nil {
		t.Fatal(err)
	}
	client, err := plain.Connect(t.Context(), n.URI)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	work, err := plain.Prepare(w, 4)
	if err != nil {
		t.Fatal(err)
	}
	arm(t, n, true)
	if err := client.Write(t.Context(), work, 50); err != nil {
		t.Fatal(err)
	}
	acknowledged(t, n, -1, 500)
	arm(t, n, true)
	var acked atomic.Int64
	if err := client.Pace(t.Context(), w, 1e6, func(_, _ time.Time) { acked.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if acked.Load() != 500 {
		t.Errorf("%d operations of 500 were told of", acked.Load())
	}
	acknowledged(t, n, -1, 500)
	arm(t, n, false)
	for _, c := range collections { // existing documents are unchanged
		reply := run(t, n, c.NS.DB(), bson.D{{Key: "count", Value: c.NS.Collection()}})
		if got := number(reply, "n"); got != int64(len(c.Documents)) {
			t.Errorf("%s has %d documents, want %d", c.NS, got, len(c.Documents))
		}
	}
}

func TestNullCommands(t *testing.T) {
	n := startNull(t)
	doc := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1)))
	if got := number(run(t, n, "d", bson.D{{Key: "insert", Value: "c"}}, doc), "n"); got != 1 {
		t.Errorf("not armed: %d inserts", got)
	}
	reply := run(t, n, "admin", bson.D{{Key: "hello", Value: 1}})
	if me, _ := reply.Lookup("me").StringValueOK(); !strings.Contains(n.URI, me) || me == "" {
		t.Errorf("it calls itself %q at %s", me, n.URI)
	}
	arm(t, n, true)
	for _, c := range []struct {
		cmd  bson.D
		docs int
		n    int64
	}{
		{bson.D{{Key: "insert", Value: "c"}}, 3, 3},
		{bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc, doc}}}, 0, 2},
		{bson.D{{Key: "update", Value: "c"}}, 5, 5},
		{bson.D{{Key: "delete", Value: "c"}}, 1000, 1000},
		{bson.D{{Key: "delete", Value: "c"}, {Key: "x", Value: strings.Repeat("x", 200<<10)}}, 2, 2}, // too large a body to be glanced at
	} {
		docs := make([]bson.Raw, c.docs)
		for i := range docs {
			docs[i] = doc
		}
		reply := run(t, n, "d", c.cmd, docs...)
		if got := number(reply, "n"); got != c.n {
			t.Errorf("%s of %d: n is %d, want %d", c.cmd[0].Key, c.docs, got, c.n)
		}
		if c.cmd[0].Key == "update" && number(reply, "nModified") != c.n {
			t.Errorf("nModified is %d, want %d", number(reply, "nModified"), c.n)
		}
	}
	acknowledged(t, n, 5, 3+2+5+1000+2)
	// A list of _ids counts as often.
	listOf := func(ids ...any) bson.Raw {
		q := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}
		return must.Get(bson.Marshal(bson.D{{Key: "q", Value: q}, {Key: "u", Value: bson.D{}}, {Key: "multi", Value: true}}))(t)
	}
	reply = run(t, n, "d", bson.D{{Key: "update", Value: "c"}}, doc, listOf(1, 2, 3), listOf("x", "y"), listOf(4, 5))
	if got := number(reply, "n"); got != 1+3+2+2 {
		t.Errorf("lists of 3, 2 and 2 _ids, and one without: n is %d, want 8", got)
	}
	found, err := mongo.ReadBatch(run(t, n, "d", bson.D{{Key: "find", Value: "c"}}))
	if err != nil || found.Cursor != 0 || len(found.Docs) != 0 {
		t.Errorf("found %d documents, cursor %d, %v", len(found.Docs), found.Cursor, err)
	}
	// Large documents, in more than one go of the buffer.
	large := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "x", strings.Repeat("x", 1<<20))))
	if got := number(run(t, n, "d", bson.D{{Key: "insert", Value: "c"}}, large, large, doc, large), "n"); got != 4 {
		t.Errorf("large documents: n is %d, want 4", got)
	}
	// Other commands are executed, and existing documents are still there.
	run(t, n, "d", bson.D{{Key: "create", Value: "made"}})
	arm(t, n, false)
	run(t, n, "d", bson.D{{Key: "insert", Value: "made"}}, doc)
	for name, want := range map[string]int64{"c": 1, "made": 1} {
		if got := number(run(t, n, "d", bson.D{{Key: "count", Value: name}}), "n"); got != want {
			t.Errorf("%s has %d documents, want %d", name, got, want)
		}
	}
}

// TestNullLanes: a link reads back its own lanes as written.
func TestNullLanes(t *testing.T) {
	n := startNull(t)
	lane := func(id string) bson.Raw {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "ts", Value: 1}, {Key: "begun", Value: 1}, {Key: "term", Value: 7}})
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	run(t, n, ends.MetaDB, bson.D{{Key: "insert", Value: "lanes"}}, lane("a/0"), lane("a/1"), lane("a/barrier"))
	arm(t, n, true)
	move, err := bson.Marshal(bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "a/1"}, {Key: "ts", Value: 1}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "ts", Value: 2}}}, {Key: "$unset", Value: bson.D{{Key: "begun", Value: ""}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := number(run(t, n, ends.MetaDB, bson.D{{Key: "update", Value: "lanes"}}, move), "n"); got != 1 {
		t.Errorf("%d lanes were moved", got)
	}
	acknowledged(t, n, 1, 0) // not a statement of the workload
	find := func(filter any) []bson.Raw {
		t.Helper()
		found, err := mongo.ReadBatch(run(t, n, ends.MetaDB, bson.D{{Key: "find", Value: "lanes"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: filter}}}}))
		if err != nil {
			t.Fatal(err)
		}
		return found.Docs
	}
	if docs := find("a/1"); len(docs) != 1 || number(docs[0], "ts") != 2 || number(docs[0], "term") != 7 || !docs[0].Lookup("begun").IsZero() {
		t.Errorf("the lane is %v", docs)
	}
	if docs := find(bson.D{{Key: "$in", Value: bson.A{"a/0", "a/1", "a/barrier", "b"}}}); len(docs) != 3 || number(docs[0], "ts") != 1 {
		t.Errorf("the lanes are %v", docs)
	}
}

// TestNullLists: a statement counts as many documents as it lists _ids, also if it is
// larger than the buffer of one read.
func TestNullLists(t *testing.T) {
	n := startNull(t)
	arm(t, n, true)
	var want int64
	for _, ids := range []int{3, 500, 40_000} {
		list := make(bson.A, ids)
		for i := range list {
			list[i] = i
		}
		q := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: list}}}}
		update := must.Marshal(t, bson.D{{Key: "q", Value: q}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 1}}}}}, {Key: "multi", Value: true}})
		if is := len(update) > 128<<10; is != (ids == 40_000) {
			t.Fatalf("a statement of %d bytes", len(update))
		}
		one := must.Marshal(t, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "v", Value: 1}}}})
		reply := run(t, n, "d", bson.D{{Key: "update", Value: "c"}}, one, update, one)
		if got := number(reply, "n"); got != int64(ids)+2 {
			t.Errorf("%d _ids: n is %d", ids, got)
		}
		want += int64(ids) + 2
	}
	acknowledged(t, n, 3, want)
}

// TestNullWire: messages that no driver of ours sends.
func TestNullWire(t *testing.T) {
	n := startNull(t)
	arm(t, n, true)
	address := n.Set.Hosts()[0]
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	doc := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1)))
	insert := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(bsoncore.AppendStringElement(nil, "insert", "c"), "$db", "d")))

	// A body that comes last, with a checksum, and several at once, one of which
	// wants no answer.
	client := wire.NewClient(dial())
	defer client.Close() //nolint:errcheck // It was used up.
	docs := []wire.Sequence{{Name: "documents", Docs: []bson.Raw{doc, doc}}}
	for range 2 {
		for _, req := range []wire.Request{
			{Body: insert, Sequences: docs, Checksum: true},
			{Body: insert, Sequences: docs, NoReply: true},
			{Body: insert, Sequences: docs},
		} {
			if _, err := client.Send(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			reply, err := client.Receive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if number(reply.Body, "n") != 2 {
				t.Errorf("reply %s", reply.Body)
			}
		}
	}
	acknowledged(t, n, 6, 12)

	// Malformed messages end the connection.
	message := func(change func(msg []byte) []byte) []byte {
		msg := binary.LittleEndian.AppendUint32(nil, 0)
		msg = binary.LittleEndian.AppendUint32(msg, 1)
		msg = binary.LittleEndian.AppendUint32(msg, 0)
		msg = binary.LittleEndian.AppendUint32(msg, 2013)
		msg = binary.LittleEndian.AppendUint32(msg, 0)
		msg = append(append(msg, 0), insert...)
		section := len(msg)
		msg = append(append(msg, 1, 0, 0, 0, 0), "documents\x00"...)
		msg = append(msg, doc...)
		binary.LittleEndian.PutUint32(msg[section+1:], uint32(len(msg)-section-1))
		msg = change(msg)
		binary.LittleEndian.PutUint32(msg, uint32(len(msg)))
		return msg
	}
	section := 21 + len(insert)
	for name, msg := range map[string][]byte{
		"an unknown section":  message(func(msg []byte) []byte { msg[section] = 3; return msg }),
		"a section too long":  message(func(msg []byte) []byte { msg[section+1]++; return msg }),
		"a section too short": message(func(msg []byte) []byte { msg[section+1] = 7; return msg }),
		"a document too long": message(func(msg []byte) []byte { msg[section+15]++; return msg }),
		"a document too short": message(func(msg []byte) []byte {
			msg[section+15] = 2
			return msg
		}),
		"an unknown opcode": message(func(msg []byte) []byte { msg[12] = 1; return msg }),
		"a required flag":   message(func(msg []byte) []byte { msg[16] = 8; return msg }),
	} {
		conn := dial()
		if _, err := conn.Write(msg); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // a net.Conn has deadlines
		if got, err := io.ReadAll(conn); err != nil || len(got) > 0 {
			t.Errorf("%s is answered by %d bytes, %v", name, len(got), err)
		}
		_ = conn.Close()
	}
	acknowledged(t, n, 6, 12)
	whole := dial()
	defer whole.Close() //nolint:errcheck // It was used up.
	if _, err := whole.Write(message(func(msg []byte) []byte { return msg })); err != nil {
		t.Fatal(err)
	}
	if reply, err := wire.NewReader(whole).ReadReply(); err != nil || number(reply.Body, "n") != 1 {
		t.Errorf("the same without a fault: %v, %v", reply, err)
	}
}

// TestNullCloses: it ends with clients that are connected.
func TestNullCloses(t *testing.T) {
	n, err := ends.StartNull(t.Context(), 6, false)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", n.Set.Hosts()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // The other side has closed it.
	n.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // a net.Conn has deadlines
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("it still answers")
	}
}
