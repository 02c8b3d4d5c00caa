package progress

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an expected condition.
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

// first is a link that begins after 100.
func first(writers int) checkpoint.State {
	return checkpoint.State{
		Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: setID}, Writers: writers,
		Fingerprint: "f", Applied: ot(100), AppliedWall: 100_000, FetchFrom: ot(90), CopiedUntil: ot(120),
	}
}

var setID = bson.RawValue{Type: bson.TypeObjectID, Value: []byte("123456789012")}

// reached is a checkpoint.
func reached(seconds uint32) checkpoint.Progress {
	return checkpoint.Progress{Applied: ot(seconds), AppliedWall: int64(seconds) * 1000, FetchFrom: ot(seconds - 5)}
}

// begun creates a link and acquires it.
func begun(t *testing.T, opts mongosim.Options, writers int) (*target, *Store, *Link) {
	t.Helper()
	return start(t, opts, first(writers))
}

func start(t *testing.T, opts mongosim.Options, st checkpoint.State) (*target, *Store, *Link) {
	t.Helper()
	ctx := within(t)
	opts.HeartbeatInterval, opts.ElectionTimeout = 50*time.Millisecond, 500*time.Millisecond
	g := &target{Set: mongosim.StartTest(t, opts)}
	createData(t, g)
	s := link(t, g)
	must.Succeed(t, s.Create(ctx, st))
	return g, s, acquired(t)(s.Acquire(ctx, 0))
}

// acquired returns the link of a lease with the documents of its copy.
func acquired(t tester) func(l *checkpoint.Link, err error) *Link {
	t.Helper()
	return func(l *checkpoint.Link, err error) *Link {
		t.Helper()
		return Of(must.Get(l, err)(t))
	}
}

// mover is a lane of a writer, or the barrier's.
type mover interface {
	Session() *mongo.Session
	Move(ctx context.Context, txn *mongo.Txn, next Position) error
	Moved(next Position)
}

// flush makes a whole flush of the oplog.
func flush(ctx context.Context, t tester, l mover, next Position, id string) {
	t.Helper()
	txn := l.Session().Begin()
	must.Succeed(t, l.Move(ctx, txn, next))
	must.Get(txn.Call(ctx, insert(id)))(t)
	must.Get(txn.Commit(ctx, false))(t)
	l.Moved(next)
}

// positions are the acknowledged positions of the lanes.
func positions(h *Link) []Position {
	var all []Position
	for i := range h.State().Writers {
		all = append(all, h.Lane(i).Position())
	}
	return all
}

// What tests name of package checkpoint.
type (
	Copy     = checkpoint.Copy
	Position = checkpoint.Position
	Store    = checkpoint.Store
)

const (
	AllOps    = checkpoint.AllOps
	Copying   = checkpoint.Copying
	Replaying = checkpoint.Replaying
	Copied    = checkpoint.Copied
)

// link is a store of a link on a set.
func link(t tester, g *target) *Store {
	t.Helper()
	return must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: "a"}))(t)
}

// createData makes the collection that tests write data to.
func createData(t tester, g *target) {
	t.Helper()
	must.Get(g.Call(t.Context(), metadata.Majority(metadata.Write("data", "create", "c", ""))))(t)
}

// insert is an insert of a document into the data.
func insert(id string) mongo.Command {
	return metadata.Write("data", "insert", "c", "documents", metadata.Document(metadata.ByID(id)))
}

// has reports whether the data have a document.
func has(ctx context.Context, t tester, g *target, id string) bool {
	t.Helper()
	reply := must.Get(g.Call(ctx, metadata.Find("data", "c", 1, metadata.ByID(id))))(t)
	return len(must.Get(metadata.Found(reply))(t)) > 0
}

var errCut = &mongo.LostError{Err: errors.New("cut")}

// courseTime is how long one course may take: it takes a fraction of a second.
const courseTime = time.Minute

func nothing(dst []byte) []byte { return dst }
