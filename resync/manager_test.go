package resync

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
)

// TestInterrupted: a part was drained and could not apply everything. Its copy is kept,
// and the next attempt starts it again.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := &run{
		part: Part{NS: "shop.a"}, drain: func(error) {}, done: make(chan struct{}),
		err: fmt.Errorf("%w: %w", ErrInterrupted, errors.New("no answer")),
	}
	close(r.done)
	m := New(Config{Position: func() Position { return Position{} }})
	m.running["shop.a"] = r
	if until, err := m.Merge(t.Context(), t.Context()); err != nil || !until.IsNull() {
		t.Error(until, err)
	}
	if len(m.running) != 0 {
		t.Error("the next attempt would not start it again")
	}
}

// asked records writes to the metadata, and finds one document.
type asked struct {
	docs []bson.Raw
	has  bson.D
}

// Call implements mongo.Caller.
func (a *asked) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	a.docs = append(a.docs, cmd.Docs...)
	return bson.Marshal(bson.D{
		{Key: "ok", Value: 1},
		{Key: "n", Value: 1},
		{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.links"}, {Key: "firstBatch", Value: bson.A{a.has}}}},
	})
}

// led is the lease of a link, with the error that it is lost with.
type led struct{ lost error }

func (l led) Check(context.Context) error { return l.lost }

// TestSweepIsFenced: a process that has lost the lease does not remove the metadata of a
// part that the next leader runs.
func TestSweepIsFenced(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{nil, lease.ErrFenced} {
		target := &asked{has: bson.D{{Key: "_id", Value: "resync-1234567812345678"}}}
		store, err := checkpoint.New(checkpoint.Config{Target: target, DB: "replicator", Link: "link"})
		if err != nil {
			t.Fatal(err)
		}
		m := New(Config{Link: "link", MetaDB: "replicator", Target: target, Store: store})
		err = m.sweep(t.Context(), led{lost})
		if !errors.Is(err, lost) || len(target.docs) > 0 != (lost == nil) {
			t.Errorf("it lost the link: %v: %v, %d writes", lost, err, len(target.docs))
		}
	}
}

// TestRequestsSeries: buckets that are renamed into place, as by $out to a time series, or
// imported, do not end the link: the time series is copied again.
func TestRequestsSeries(t *testing.T) {
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
	m := New(Config{Requests: request.New(store), Scope: names})
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
		asks, err := m.Request(t.Context(), tt.needs, at(7), errors.New("renamed"))
		got := ""
		if len(target.docs) > 0 {
			got, _ = target.docs[0].Lookup("q", "_id").StringValueOK()
		}
		if err != nil || asks != (tt.request != "") || got != tt.request {
			t.Errorf("%s: asked %t for %q, want %q: %v", tt.needs, asks, got, tt.request, err)
		}
		if at, known := m.since["shop.m"]; tt.needs == "shop.system.buckets.m" && (!known || at.TS.T != 7) {
			t.Errorf("its copy has to begin at %s or after", at)
		}
	}
}
