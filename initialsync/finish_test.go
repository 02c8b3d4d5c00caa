package initialsync

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestFinish: once the target is recorded as consistent, a fetcher that was started before and fails does not make the
// copy void: the next attempt decides.
func TestFinish(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 1, Moods: mongosim.NoMoods("it has one attempt")})
	store := must.Get(checkpoint.New(checkpoint.Config{Target: client.Open(t, driver.Config{URI: set.URI()}), Link: "l"}))(t)
	ctx := t.Context()
	c := checkpoint.Copy{Number: 1, Phase: checkpoint.Copying, Host: "a:1", FetchFrom: testTime(1), Begin: testTime(1), Started: time.UnixMilli(1)}
	must.Succeed(t, store.Create(ctx, checkpoint.State{
		Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1"}, Writers: 1, Fingerprint: "f", Applied: c.Begin, FetchFrom: c.FetchFrom, Copy: &c,
	}))
	link := must.Get(store.Acquire(ctx, 0))(t)
	c.Phase, c.Stop, c.Cleared, c.Listed = checkpoint.Replaying, testTime(2), true, true
	must.Succeed(t, link.UpdateCopy(ctx, c, nil))
	w := newLogWorld(t)
	w.must(w.Start(ctx, ctx, link.Copy(), w.fetch))
	w.store(ctx, 1, 2)
	at := checkpoint.Progress{Applied: c.Stop, FetchFrom: c.Stop}
	w.must(link.Advance(ctx, at, []checkpoint.Position{link.Lane(0).Position()}, link.State().Source))
	if done, err := w.Finish(ctx, link); err != nil || done.Phase != checkpoint.Copied {
		t.Fatalf("phase %q, %v", done.Phase, err)
	}
	w.ends <- fmt.Errorf("fetcher: %w", fetcher.ErrLogLost)
	<-w.storing.done
	w.must(w.Recover(ctx, ctx, nil))
	w.must(w.Close())
}
