package applier

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// emptyCursor is the reply to a find that finds nothing.
var emptyCursor = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("ok", 1).AppendDocument("cursor",
	bsoncore.NewDocumentBuilder().AppendInt64("id", 0).AppendString("ns", "db.a").AppendArray("firstBatch", bsoncore.NewArrayBuilder().Build()).Build()).Build())

// nullTarget accepts everything, after a delay.
type nullTarget struct {
	delay  time.Duration // of each command
	perDoc time.Duration
	mu     sync.Mutex
	// answer, if set, may return an error instead.
	answer func(cmd mongo.Command) error
	docs   []int // of each write command
}

func (g *nullTarget) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Sequence == "" {
		if _, err := cmd.Body.LookupErr("find"); err == nil { // nothing is recorded
			return emptyCursor, nil
		}
	}
	if delay := g.delay + time.Duration(len(cmd.Docs))*g.perDoc; delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd.Sequence != "" {
		g.docs = append(g.docs, len(cmd.Docs))
		if g.answer != nil {
			if err := g.answer(cmd); err != nil {
				return nil, err
			}
		}
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("n", documentsOf(cmd.Docs)).AppendInt32("ok", 1).Build()), nil
}

// documentsOf returns for how many documents statements are.
func documentsOf(docs []bson.Raw) (n int32) {
	for _, doc := range docs {
		// {q: {_id: {$in: …}}}, without an allocation.
		if len(doc) < 25 || string(doc[11:16]) != "\x03_id\x00" || string(doc[20:25]) != "\x04$in\x00" {
			n++
			continue
		}
		for it := rawbson.NewIter(doc.Lookup("q", "_id", "$in").Value); it.Next(); {
			n++
		}
	}
	return n
}

// fakeLane is a lane without a document.
type fakeLane struct {
	session  *mongo.Session
	position checkpoint.Position
}

func (l *fakeLane) Session() *mongo.Session        { return l.session }
func (l *fakeLane) Position() checkpoint.Position  { return l.position }
func (l *fakeLane) Announced() checkpoint.Position { return checkpoint.Position{} }
func (l *fakeLane) Move(context.Context, *mongo.Txn, checkpoint.Position) error {
	return nil
}

func (l *fakeLane) Stay(context.Context, *mongo.Txn) error { return nil }

func (l *fakeLane) MoveWith(ctx context.Context, txn *mongo.Txn, _ checkpoint.Position, cmds []mongo.Command, each func(int, bson.Raw) error) error {
	return txn.CallAll(ctx, cmds, each)
}
func (l *fakeLane) Moved(next checkpoint.Position) { l.position = next }

func (l *fakeLane) Announce(context.Context, checkpoint.Position, []checkpoint.Position) error {
	return nil
}

func (l *fakeLane) Complete(_ context.Context, next checkpoint.Position) error {
	l.position = next
	return nil
}

func (l *fakeLane) Reroute(_ context.Context, at checkpoint.Position, _ []checkpoint.Position, _ checkpoint.Rerouting) error {
	if at.Compare(l.position) > 0 {
		l.position = at
	}
	return nil
}

func (l *fakeLane) Cut(ctx context.Context, at oplog.OpTime, wall int64, _ []checkpoint.Position) (checkpoint.Cut, error) {
	txn := l.session.Begin() // two round trips
	return checkpoint.Cut{Source: at, SourceWall: wall}, txn.End(ctx, false, txn.CallAll(ctx, []mongo.Command{{DB: "replicator", Body: bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "update", 1))}}, func(int, bson.Raw) error { return nil }))
}

type fakeLink struct {
	lanes   []*fakeLane
	barrier *fakeLane
	gaps    checkpoint.Gaps
	state   checkpoint.State // but Writers
}

func newFakeLink(target mongo.Caller, writers int) *fakeLink {
	h := &fakeLink{}
	for i := range writers + 1 {
		l := &fakeLane{
			session:  mongo.NewSession(target, mongo.SessionID("test", laneName(i)), 1),
			position: checkpoint.Position{OpTime: start, Op: checkpoint.AllOps},
		}
		if i < writers {
			h.lanes = append(h.lanes, l)
		} else {
			h.barrier = l
		}
	}
	return h
}

func (h *fakeLink) State() checkpoint.State {
	st := h.state
	st.Writers = len(h.lanes)
	return st
}

func (h *fakeLink) Lane(i int) lane { return h.lanes[i] }
func (h *fakeLink) Barrier() lane   { return h.barrier }
func (h *fakeLink) Verify(context.Context, *mongo.Txn, []checkpoint.Position) error {
	return nil
}

func (h *fakeLink) Routes(context.Context) (checkpoint.Rerouting, error) {
	return checkpoint.Rerouting{}, nil
}

func (h *fakeLink) RaiseRouting(context.Context, int) error            { return nil }
func (h *fakeLink) Gaps() checkpoint.Gaps                              { return h.gaps }
func (h *fakeLink) OpenCuts(context.Context) ([]checkpoint.Cut, error) { return nil, nil }
func (h *fakeLink) Confirm(context.Context, checkpoint.Cut) (bool, error) {
	return true, nil
}

func (h *fakeLink) Within(_ context.Context, work func(mongo.Caller) error) error {
	return work(nil)
}

func (h *fakeLink) KeepBack(context.Context, []checkpoint.KeptBack) error { return nil }

// allThere is a catalog in which every collection exists.
type allThere struct{}

var anyCollection = &catalog.Collection{Type: catalog.TypeCollection}

func (allThere) Get(context.Context, oplog.Namespace) (*catalog.Collection, bool, error) {
	return anyCollection, true, nil
}

func (allThere) Known() ([]*catalog.Collection, []string) { return nil, nil }

// slowCommands delay every command.
type slowCommands struct{ takes time.Duration }

func (slowCommands) InScope(*oplog.Op) (bool, error) { return true, nil }

func (c slowCommands) Apply(ctx context.Context, _ *oplog.Op, _ ddl.Mode) error {
	return mongo.Pause(ctx, c.takes)
}

func (slowCommands) OpenBuilds(context.Context) ([]*ddl.HeadStart, error) { return nil, nil }

func (slowCommands) HeadStart(context.Context, *oplog.Op) (*ddl.HeadStart, error) { return nil, nil }

func (slowCommands) DeferBuild(context.Context, *oplog.Op, string) error { return nil }

func (slowCommands) DeferIndexes(context.Context, *oplog.Op, oplog.Namespace, func(bson.Raw) bool) ([]string, error) {
	return nil, nil
}

func (slowCommands) EndCopy(context.Context, oplog.OpTime) error { return nil }

func fakeApplier(t fataler, target mongo.Caller, writers int, set func(*Config)) *Applier {
	t.Helper()
	cfg := Config{
		Target: target, Catalog: allThere{}, Scope: everything{}, Commands: slowCommands{time.Second},
		Plan:  plan.Options{Coalesce: true},
		Start: checkpoint.Progress{Applied: start, FetchFrom: start},
	}
	if set != nil {
		set(&cfg)
	}
	return must.Get(newApplier(cfg, newFakeLink(target, writers)))(t)
}
