package pipeline

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestTakeBackNotAtRest: a collection's own pipeline was told to end and could not
// apply everything. What it has copied is kept, and it goes on.
func TestTakeBackNotAtRest(t *testing.T) {
	t.Parallel()
	r := &resync{
		request: checkpoint.ResyncRequest{NS: "shop.a"}, drain: func(error) {}, done: make(chan struct{}),
		err: fmt.Errorf("%w: %w", ErrStopped, errors.New("no answer")),
	}
	close(r.done)
	p := &Pipeline{resyncs: resyncs{running: map[oplog.Namespace]*resync{"shop.a": r}}}
	if err := p.takeBack(t.Context(), context.Background()); err != nil {
		t.Error(err)
	}
	if len(p.resyncs.running) != 0 {
		t.Error("the next attempt would not make it again")
	}
}

// asked notes what is written to the metadata, and finds one document.
type asked struct {
	Cluster
	docs []bson.Raw
	has  bson.D
}

// Call implements mongo.Caller.
func (a *asked) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	a.docs = append(a.docs, cmd.Docs...)
	return bson.Marshal(bson.D{
		{Key: "ok", Value: 1},
		{Key: "n", Value: 1},
		{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "firstBatch", Value: bson.A{a.has}}}},
	})
}

// held is a link that is held, or is not any more.
type held struct {
	ddl.Fence
	lost error
}

// Check implements ddl.Fence.
func (h held) Check(context.Context) error { return h.lost }

// TestSweepIsFenced: a process that has lost the link removes nothing of a collection
// that the next one copies again.
func TestSweepIsFenced(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{nil, checkpoint.ErrFenced} {
		target := &asked{has: bson.D{{Key: "_id", Value: "resync-1234567812345678"}}}
		store, err := checkpoint.New(checkpoint.Config{Target: target, DB: "replicator", Link: "link"})
		if err != nil {
			t.Fatal(err)
		}
		p := &Pipeline{store: store, target: target, cfg: Config{Link: "link", MetaDB: "replicator"}}
		err = p.sweepParts(t.Context(), held{lost: lost}, nil)
		if !errors.Is(err, lost) || len(target.docs) > 0 != (lost == nil) {
			t.Errorf("it lost the link: %v: %v, %d writes", lost, err, len(target.docs))
		}
	}
}

// TestAsksForSeries: buckets that are renamed into place, as $out does to a time series,
// or imported, do not end the link: the time series is copied.
func TestAsksForSeries(t *testing.T) {
	t.Parallel()
	target := &asked{}
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: "replicator", Link: "link"})
	if err != nil {
		t.Fatal(err)
	}
	names, err := scope.New(scope.Config{Exclude: []string{"shop.hidden"}})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pipeline{requests: store, cfg: Config{Scope: names, Observer: func(event.Event) {}, Copy: CopyConfig{SpoolDir: "spool"}}}
	for _, tt := range []struct {
		needs   oplog.Namespace
		request string
	}{
		{"shop.system.buckets.m", "link/shop.m"},
		{"shop.a", "link/shop.a"},
		{"shop.system.buckets.hidden", ""},
		{"shop.system.views", ""},
	} {
		target.docs = nil
		asks, err := p.asksForCopy(t.Context(), fmt.Errorf("apply: %w", &ddl.ResyncError{NS: tt.needs}))
		request := ""
		if len(target.docs) > 0 {
			request, _ = target.docs[0].Lookup("q", "_id").StringValueOK()
		}
		if err != nil || asks != (tt.request != "") || request != tt.request {
			t.Errorf("%s: asked %t for %q, want %q: %v", tt.needs, asks, request, tt.request, err)
		}
	}
}
