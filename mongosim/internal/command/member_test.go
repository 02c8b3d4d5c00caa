package command

import (
	"context"
	"encoding/binary"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// scriptedNode is a set of one whose answers a test can replace.
type scriptedNode struct {
	*soleNode
	concern func(ctx context.Context, at oplog.OpTime, wc repl.WriteConcern) error
	applied func(ctx context.Context, ts bson.Timestamp) error
}

func (n *scriptedNode) AwaitWriteConcern(ctx context.Context, at oplog.OpTime, wc repl.WriteConcern) error {
	if n.concern == nil {
		return nil
	}
	return n.concern(ctx, at, wc)
}

func (n *scriptedNode) AwaitApplied(ctx context.Context, ts bson.Timestamp) error {
	if n.applied == nil {
		return nil
	}
	return n.applied(ctx, ts)
}

// become changes what the node says of itself.
func (n *scriptedNode) become(change func(v *repl.View)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.view)
}

// member is a server on a set of one.
type member struct {
	*dispatch.Server
	node  *scriptedNode
	store *storage.Store
	conn  *dispatch.Conn
}

func newMember(t testing.TB, version string, change ...func(c *dispatch.Config)) *member {
	t.Helper()
	store := storage.New(storage.Options{})
	node := &scriptedNode{soleNode: &soleNode{store: store, moved: make(chan struct{})}}
	node.view = repl.View{
		State: oplog.MemberPrimary, Term: 3, Writable: true, SetName: "rs", ConfigVersion: 1, ConfigTerm: 3,
		Members: []repl.Member{{Host: "h:1", Votes: 1, Priority: 1, BuildIndexes: true}}, ConfigDoc: dispatch.EmptyDocument,
		ElectionID: bson.ObjectID{0x7f, 0xff, 0xff, 0xff, 11: 3}, ProcessID: bson.ObjectID{1}, TopologyCounter: 6,
	}
	var ids atomic.Uint64
	cfg := dispatch.Config{
		Host: "h:1", Dialect: opwrite.Dialect{Version: version}, Store: store, Node: node,
		NewUUID: func() (u oplog.UUID) {
			binary.BigEndian.PutUint64(u[:], ids.Add(1))
			return u
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	m := &member{node: node, store: store}
	path, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: cfg.Dialect, Term: func() (int64, error) { return 3, nil }, Now: time.Now, NewUUID: cfg.NewUUID,
		OnWrite: node.wrote, Host: cfg.Host, ClusterTime: func() bson.Timestamp { return m.ClusterTime() },
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Path = path
	if m.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	m.conn = m.NewConn("test")
	t.Cleanup(m.Close)
	m.SteppedUp(3, nil)
	return m
}

// bareName finds strings, which are left alone, and names without quotes.
var bareName = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|([{,]\s*)([$A-Za-z_][\w$.]*)\s*:`)

// parse reads Extended JSON whose names need no quotes.
func parse(t testing.TB, json string) bson.Raw {
	t.Helper()
	var d bson.D
	quoted := bareName.ReplaceAllStringFunc(json, func(found string) string {
		if found[0] == '"' {
			return found
		}
		return bareName.ReplaceAllString(found, `$1"$2":`)
	})
	if err := bson.UnmarshalExtJSON([]byte(quoted), false, &d); err != nil {
		t.Fatalf("%s: %v", json, err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// run sends a command, given as Extended JSON, and returns the reply.
func (m *member) run(t testing.TB, json string) bson.Raw {
	t.Helper()
	return m.CallOn(t.Context(), m.conn, parse(t, json))
}

// want sends a command and compares the reply, without the fields that every one
// has, with Extended JSON.
func (m *member) want(t testing.TB, json, reply string) {
	t.Helper()
	if got, want := lasting(m.run(t, json)), lasting(parse(t, reply)); got != want {
		t.Errorf("%s\n got %s\nwant %s", json, got, want)
	}
}

// lasting prints a reply without what differs from run to run.
func lasting(reply bson.Raw) string {
	var d bson.D
	it := rawbson.NewIter(reply)
	for it.Next() {
		switch it.Name() {
		case "$clusterTime", "operationTime", "opTime", "electionId":
			continue
		}
		d = append(d, bson.E{Key: it.Name(), Value: it.Raw()})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		return err.Error()
	}
	return bson.Raw(raw).String()
}

// entries returns the oplog.
func (m *member) entries(t testing.TB) (list []bson.Raw) {
	t.Helper()
	err := m.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			list = append(list, e.Raw)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// names returns the names of the fields of a document, in order.
func names(doc bson.Raw) (list []string) {
	it := rawbson.NewIter(doc)
	for it.Next() {
		list = append(list, it.Name())
	}
	return list
}

const (
	sessionA = `lsid: {id: {$uuid: "00000000-0000-4000-8000-00000000000a"}}`
	sessionB = `lsid: {id: {$uuid: "00000000-0000-4000-8000-00000000000b"}}`
)
