package command

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// soleNode is a primary without other members. Its commit point follows each
// write, unless held.
type soleNode struct {
	dispatch.Node
	store *storage.Store

	mu    sync.Mutex
	view  repl.View
	moved chan struct{}
	held  bool
	saw   []int64
}

func (n *soleNode) View() repl.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.view
}

func (n *soleNode) Changed() <-chan struct{} { return nil }

func (n *soleNode) CommittedChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.moved
}

func (n *soleNode) SawTerm(term int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.saw = append(n.saw, term)
	n.view.Term = max(n.view.Term, term)
}

func (n *soleNode) AwaitWriteConcern(context.Context, oplog.OpTime, repl.WriteConcern) error {
	return nil
}
func (n *soleNode) AwaitApplied(context.Context, bson.Timestamp) error   { return nil }
func (n *soleNode) AwaitCommitted(context.Context, bson.Timestamp) error { return nil }

func (n *soleNode) wrote(at oplog.OpTime, _ time.Time) {
	n.mu.Lock()
	n.view.Applied = at
	held := n.held
	n.mu.Unlock()
	if !held {
		n.commit(at)
	}
}

// commit moves the commit point.
func (n *soleNode) commit(at oplog.OpTime) {
	_ = n.store.Write(func(w *storage.Writer) error { w.SetStable(at.TS); return nil })
	n.know(at)
}

// know moves the commit point in the member's view alone.
func (n *soleNode) know(at oplog.OpTime) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.view.Committed, n.view.Durable = at, at
	close(n.moved)
	n.moved = make(chan struct{})
}

// hold keeps the commit point where it is.
func (n *soleNode) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = true
}

// member is a set of one, driven by commands.
type readMember struct {
	*dispatch.Server
	node  *soleNode
	store *storage.Store
	// conn is the connection of commands that are run.
	conn *dispatch.Conn
}

func newReadMember(t testing.TB, opts storage.Options) *readMember {
	t.Helper()
	store := storage.New(opts)
	node := &soleNode{store: store, moved: make(chan struct{})}
	node.view = repl.View{
		State: oplog.MemberPrimary, Term: 1, Writable: true, Self: 0, Primary: 0, SetName: "rs", ConfigVersion: 1, ConfigTerm: 1,
		Members: []repl.Member{{Host: "h:1", Votes: 1, Priority: 1, BuildIndexes: true}}, ConfigDoc: dispatch.EmptyDocument,
	}
	ids := uint64(0)
	var idMu sync.Mutex
	cfg := dispatch.Config{
		Host: "h:1", Dialect: opwrite.Dialect{Version: "5.0.7", FCV: "5.0"}, Store: store, Node: node, Now: time.Now,
		NewUUID: func() (u oplog.UUID) {
			idMu.Lock()
			defer idMu.Unlock()
			ids++
			binary.BigEndian.PutUint64(u[:], ids)
			return u
		},
	}
	path, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: cfg.Dialect, Term: func() (int64, error) { return 1, nil }, Now: time.Now, NewUUID: cfg.NewUUID,
		OnWrite: node.wrote, Host: cfg.Host,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Path = path
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &readMember{Server: srv, node: node, store: store, conn: srv.NewConn("test")}
	t.Cleanup(srv.Close)
	return m
}

// ask runs a command and returns its reply, whatever it says.
func (m *readMember) ask(ctx context.Context, db string, cmd bson.D) bson.Raw {
	raw, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db}))
	if err != nil {
		panic(err)
	}
	return m.CallOn(ctx, m.conn, raw)
}

// must runs a command that succeeds.
func (m *readMember) must(t testing.TB, db string, cmd bson.D) bson.Raw {
	t.Helper()
	reply := m.ask(t.Context(), db, cmd)
	if reply.Lookup("ok").Double() != 1 || reply.Lookup("writeErrors").Type != 0 {
		t.Fatalf("%s %v: %s", db, cmd, reply)
	}
	return reply
}

// refused runs a command that fails, and returns the message.
func (m *readMember) refused(t testing.TB, db string, cmd bson.D, code int32) string {
	t.Helper()
	reply := m.ask(t.Context(), db, cmd)
	if got, _ := reply.Lookup("code").Int32OK(); got != code {
		t.Fatalf("%s %v: %s; want code %d", db, cmd, reply, code)
	}
	return reply.Lookup("errmsg").StringValue()
}

func (m *readMember) insert(t testing.TB, db, coll string, docs ...any) {
	t.Helper()
	m.must(t, db, obj("insert", coll, "documents", bson.A(docs)))
}

// docs returns the batch of a cursor reply, each document as Extended JSON, and
// the cursor's id.
func docsOf(t testing.TB, reply bson.Raw) (docs []string, id int64) {
	t.Helper()
	cursor := reply.Lookup("cursor").Document()
	field := "firstBatch"
	if cursor.Lookup(field).Type == 0 {
		field = "nextBatch"
	}
	values, err := cursor.Lookup(field).Array().Values()
	if err != nil {
		t.Fatalf("%s: %v", reply, err)
	}
	docs = []string{}
	for _, v := range values {
		docs = append(docs, v.String())
	}
	return docs, cursor.Lookup("id").Int64()
}

// obj makes a document of names and values in turn.
func obj(pairs ...any) bson.D {
	d := bson.D{}
	for i := 0; i < len(pairs); i += 2 {
		d = append(d, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return d
}
