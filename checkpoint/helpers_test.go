package checkpoint

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an expected event.
const patience = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// target is a Caller for a set.
type target = simcaller.Caller

func ot(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 1) }

func at(seconds uint32, op int64) Position { return Position{OpTime: ot(seconds), Op: op} }

// first returns the state of a link that begins after 100.
func first(writers int) State {
	return State{
		Source: Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: setID}, Writers: writers,
		Fingerprint: "f", Applied: ot(100), AppliedWall: 100_000, FetchFrom: ot(90), CopiedUntil: ot(120),
	}
}

var setID = bson.RawValue{Type: bson.TypeObjectID, Value: []byte("123456789012")}

// progress returns a checkpoint.
func progress(seconds uint32) Progress {
	return Progress{Applied: ot(seconds), AppliedWall: int64(seconds) * 1000, FetchFrom: ot(seconds - 5)}
}

// link returns the store of a link on a set.
func link(t tester, g *target) *Store {
	t.Helper()
	return must.Get(New(Config{Target: g, Link: "a"}))(t)
}

// begun creates a link and acquires its lease.
func begun(t *testing.T, opts mongosim.Options, writers int) (*target, *Store, *Link) {
	t.Helper()
	ctx := within(t)
	if opts.ElectionTimeout == 0 {
		opts.HeartbeatInterval, opts.ElectionTimeout = 50*time.Millisecond, 500*time.Millisecond
	}
	g := &target{Set: mongosim.StartTest(t, opts)}
	createData(t, g)
	s := link(t, g)
	must.Succeed(t, s.Create(ctx, first(writers)))
	return g, s, must.Get(s.Acquire(ctx, 0))(t)
}

// createData creates the collection to which tests write data.
func createData(t tester, g *target) {
	t.Helper()
	must.Get(g.Call(t.Context(), metadata.Majority(metadata.Write("data", "create", "c", ""))))(t)
}

// insert returns an insert of a document into the data.
func insert(id string) mongo.Command {
	return metadata.Write("data", "insert", "c", "documents", metadata.Document(metadata.ByID(id)))
}

// has reports whether the data have a document.
func has(ctx context.Context, t tester, g *target, id string) bool {
	t.Helper()
	reply := must.Get(g.Call(ctx, metadata.Find("data", "c", 1, metadata.ByID(id))))(t)
	return len(must.Get(metadata.Found(reply))(t)) > 0
}

// open starts a flush and leaves it open.
func open(ctx context.Context, t tester, l *Lane, next Position, id string) *mongo.Txn {
	t.Helper()
	txn := l.Session().Begin()
	must.Succeed(t, l.Move(ctx, txn, next))
	must.Get(txn.Call(ctx, insert(id)))(t)
	return txn
}

// flush runs a whole flush.
func flush(ctx context.Context, t tester, l *Lane, next Position, id string) {
	t.Helper()
	txn := open(ctx, t, l, next, id)
	must.Get(txn.Commit(ctx, false))(t)
	l.Moved(next)
}

// positions returns the lanes' acknowledged positions.
func positions(h *Link) []Position {
	var all []Position
	for _, l := range h.lanes {
		all = append(all, l.Position())
	}
	return all
}

// firstCopy returns copy 1 of a link that begins after 100.
func firstCopy() *Copy {
	return &Copy{
		Number: 1, Phase: Copying, Host: "a:1", RBID: 7, SyncID: setID, FetchFrom: ot(90), Begin: ot(100),
		Started: time.UnixMilli(1_700_000_000_123).UTC(), Why: "",
	}
}

// copyState returns the state of a link that begins with a copy.
func copyState(writers int) State {
	st := first(writers)
	st.CopiedUntil, st.Copy = oplog.OpTime{}, firstCopy()
	return st
}

// copying creates a link that begins with a copy, and acquires its lease.
func copying(t *testing.T, opts mongosim.Options, writers int) (*target, *Store, *Link) {
	t.Helper()
	ctx := within(t)
	opts.HeartbeatInterval, opts.ElectionTimeout = 50*time.Millisecond, 500*time.Millisecond
	g := &target{Set: mongosim.StartTest(t, opts)}
	createData(t, g)
	s := link(t, g)
	must.Succeed(t, s.Create(ctx, copyState(writers)))
	return g, s, must.Get(s.Acquire(ctx, 0))(t)
}
