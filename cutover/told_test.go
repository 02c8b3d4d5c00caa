package cutover_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/status"
)

// TestStatusTellsCutover: while a process works on a cutover the status has its step; once that process has
// ended before the cutover has, it says so, and that the source is blocked; the metadata alone say the same.
func TestStatusTellsCutover(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m, other := newMoved(t, target, "dr"), newMoved(t, target, "other")
	sees := func(when, step string, interrupted, blocks bool) {
		t.Helper()
		want := status.Cutover{State: "running", Step: step, By: "me", BlocksSource: blocks, Interrupted: interrupted}
		shown, stored := asked(t, target, m.link, true), must.Get(status.Cutovers(t.Context(), target, "replicator", ""))(t)
		is := stored[m.link]
		if shown == nil || shown.Since.IsZero() || len(stored) != 1 || !is.Since.Equal(shown.Since) {
			t.Fatalf("%s: shown %+v, stored %+v", when, shown, stored)
		}
		for _, got := range []*status.Cutover{shown, &is} {
			if got.State != want.State || got.Step != want.Step || got.By != want.By || got.BlocksSource != want.BlocksSource || got.Interrupted != want.Interrupted {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
	}
	none := func(when string) {
		t.Helper()
		if shown, stored := asked(t, target, m.link, false), must.Get(status.Cutovers(t.Context(), target, "replicator", ""))(t); shown != nil || len(stored) != 0 {
			t.Errorf("%s: shown %+v, stored %+v", when, shown, stored)
		}
	}
	none("before")
	cfg := m.whole()
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	cfg.Armed = func(context.Context) {
		sees("a process works on it", "arm", false, true)
		stop(errBroken)
	}
	locked := func(ctx context.Context, do func(context.Context) error) error {
		return cutover.Locked(ctx, lockOf(target, m.link, func(string) {}), do)
	}
	err := locked(t.Context(), func(context.Context) error { _, err := cutover.Run(ctx, cfg, byBlock); return err })
	if err == nil {
		t.Fatal("it continues although it was interrupted")
	}
	sees("it was interrupted", "arm", true, true)
	must.Succeed(t, locked(t.Context(), func(ctx context.Context) error { _, err := cutover.Cancel(ctx, m.whole()); return err }))
	none("cancelled")
	must.Get(cutover.Run(t.Context(), other.whole(), byBlock))(t)
	none("another one is done")
}

// asked returns what a process of the link shows, once it has asked the target: it waits for a cutover, or
// for the answer that there is none.
func asked(t *testing.T, target mongo.Caller, link string, some bool) *status.Cutover {
	t.Helper()
	look := &looking{Caller: target, answered: make(chan struct{}, 100)}
	tracker := must.Get(status.New(status.Config{Link: link, Target: look, MetaDB: "replicator"}))(t)
	tracker.Follow(func() monitor.Snapshot { return monitor.Snapshot{Link: link, State: monitor.Steady} })
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = tracker.Run(ctx) }()
	<-look.answered
	for limit := time.Now().Add(time.Minute); some && tracker.Snapshot().Cutover == nil && time.Now().Before(limit); {
		must.Succeed(t, mongo.Pause(ctx, time.Millisecond))
	}
	stop(nil)
	<-ended
	return tracker.Snapshot().Cutover
}

// looking is a target that tells each answer to a query of its cutovers.
type looking struct {
	mongo.Caller
	answered chan struct{}
}

// Call implements mongo.Caller.
func (l *looking) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := l.Caller.Call(ctx, cmd)
	if name, _ := cmd.Body.Index(0).Value().StringValueOK(); name == metadata.Cutovers {
		l.answered <- struct{}{}
	}
	return reply, err
}
