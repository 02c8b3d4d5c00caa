package fetcher

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// patience is how long a test waits for a required event.
const patience = 2 * time.Minute

// reading is a Tail that runs concurrently with the test.
type reading struct {
	t    testing.TB
	stop context.CancelCauseFunc
	done chan struct{}
	res  Result
	err  error

	mu      sync.Mutex
	ids     []string
	last    oplog.OpTime
	changed chan struct{}
}

func read(t testing.TB, cfg ReaderConfig, src *member, from oplog.OpTime) *reading {
	t.Helper()
	f, err := NewReader(cfg)
	must.Succeed(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &reading{t: t, stop: cancel, done: make(chan struct{}), changed: make(chan struct{}), last: from}
	var g errgroup.Group
	g.Go(func() error {
		defer close(r.done)
		r.res, r.err = f.Tail(ctx, src.host, src, from, false, r.take)
		return nil
	})
	t.Cleanup(func() { _, _ = r.end() })
	return r
}

func (r *reading) take(_ context.Context, reply oplog.Reply) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range reply.Entries {
		e := &reply.Entries[i]
		if !e.OpTime.After(r.last) {
			r.t.Errorf("%s comes after %s", e.OpTime, r.last)
		}
		r.last = e.OpTime
		if e.NS == "app.c" {
			if id, ok := e.Raw.Lookup("o", "_id").StringValueOK(); ok {
				r.ids = append(r.ids, id)
			}
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// await waits until so many documents of app.c have come.
func (r *reading) await(n int) []string {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		ids, changed := slices.Clone(r.ids), r.changed
		r.mu.Unlock()
		if len(ids) >= n {
			return ids
		}
		select {
		case <-changed:
		case <-timeout:
			r.t.Fatalf("%d documents came, want %d", len(ids), n)
		case <-r.done:
			r.t.Fatalf("the tail has ended after %d documents, want %d: %v", len(ids), n, r.err)
		}
	}
}

// end cancels and returns how it ended.
func (r *reading) end() (Result, error) {
	r.stop(errOver)
	<-r.done
	return r.res, r.err
}

// wait returns how it ended by itself.
func (r *reading) wait() (Result, error) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatal("the tail does not end")
	}
	return r.res, r.err
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
