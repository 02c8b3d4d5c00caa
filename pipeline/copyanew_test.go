package pipeline

import (
	"context"
	"errors"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/scope"
)

// ready returns a pipeline that copies, before its first attempt.
func ready(t *testing.T) *Pipeline {
	t.Helper()
	open := func(seed int64) *driver.Set {
		set := mongosim.StartTest(t, mongosim.Options{Seed: seed, TTLInterval: -1})
		return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	}
	cfg := Config{Link: "void", Scope: must.Get(scope.New(scope.Config{}))(t)}
	cfg.Copy.Wanted, cfg.Copy.SpoolDir = true, t.TempDir()
	p := must.Get(New(cfg, open(1), open(2)))(t)
	ctx, end := context.WithCancelCause(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- p.watcher.Run(ctx) }()
	t.Cleanup(func() {
		end(nil)
		<-watched //nolint:errcheck // It was told to end.
		must.Succeed(t, p.oplog.Log().Close())
	})
	must.Succeed(t, p.watcher.Ready(ctx))
	must.Succeed(t, p.store.Prepare(ctx))
	return p
}

// TestLinkGoneBeforeAcquired: a process that has found the link of another one, and failed to acquire it, does not create one in its place.
func TestLinkGoneBeforeAcquired(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := ready(t)
	src := checkpoint.Source(must.Get(p.watcher.Identify(ctx, p.source))(t))
	must.Succeed(t, p.ensureLink(ctx, src))
	must.Get(p.store.Acquire(ctx, 0))(t)
	p.vacancy = nil // that was another process
	must.Succeed(t, p.ensureLink(ctx, src))
	must.Succeed(t, p.store.Remove(ctx))
	if err := p.ensureLink(ctx, src); !errors.Is(err, checkpoint.ErrRemoved) {
		t.Error(err)
	}
	if _, found, err := p.store.Load(ctx); found || err != nil {
		t.Errorf("it was created, or %v", err)
	}
}

// TestVoidTriedOnceMore: a copy that is void because no member answered goes on if members
// answer when the next one would begin. One that is void for another reason does not.
func TestVoidTriedOnceMore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := ready(t)
	must.Succeed(t, p.ensureLink(ctx, checkpoint.Source(must.Get(p.watcher.Identify(ctx, p.source))(t))))
	link := must.Get(p.acquire(ctx))(t)
	number := func() int64 {
		st, _, err := p.store.Load(ctx)
		must.Succeed(t, err)
		return st.Copy.Number
	}
	gone := &initialsync.NoMemberError{Err: errors.New("all are away")}
	if err := p.copyAnew(ctx, link, link.Copy(), gone); !errors.Is(err, gone) || number() != 1 {
		t.Errorf("%v, copy %d", err, number())
	}
	if err := p.copyAnew(ctx, link, link.Copy(), initialsync.ErrFCVChanged); err != nil || number() != 2 {
		t.Errorf("%v, copy %d", err, number())
	}
}
