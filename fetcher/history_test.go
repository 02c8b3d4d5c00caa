package fetcher

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// TestNextOfSameSet: each further member must be of the set of the first one, also if none is configured.
func TestNextOfSameSet(t *testing.T) {
	t.Parallel()
	r := must.Get(NewReader(ReaderConfig{}))(t)
	read := func(lines ...string) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		src := &fake{t: t, start: time.Now(), lines: lines, rbid: 1, cancel: func() { cancel(errOver) }}
		src.commit = src.opTime("1")
		_, err := r.Tail(ctx, host, src, src.opTime("1"), false, func(context.Context, oplog.Reply) error { return nil })
		return err
	}
	if err := read("find 1 set=1"); !errors.Is(err, errOver) {
		t.Errorf("the first one: %v", err)
	}
	if err := read("find 1 set=2"); !errors.Is(err, ErrForeignSet) {
		t.Errorf("one of another set: %v", err)
	}
	if err := read("find 1 set=1"); !errors.Is(err, errOver) {
		t.Errorf("one of the same set: %v", err)
	}
}

// TestMissingForOnePosition: a member that did not have a position in its history may have later ones.
func TestMissingForOnePosition(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 4})
	source := must.Get(driver.Open(ctx, must.Get(driver.Parse(driver.Config{URI: set.URI(), AppName: mongosim.Stage}))(t)))(t)
	t.Cleanup(source.Close)
	watcher := must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: source.Hosts(), HeartbeatInterval: 40 * time.Millisecond}, source))(t)
	running, stop := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	group.Go(func() { _ = watcher.Run(running) })
	t.Cleanup(func() { stop(errOver); group.Wait() })
	must.Succeed(t, watcher.Ready(ctx))
	resolver := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{AcceptEqual: true}}, watcher, source))(t)

	f := must.Get(New(Config{From: newest(t, set.Primary()), Resolver: resolver, Watcher: watcher, MirrorMember: -1}))(t)
	f.missing["db9:27017"] = true
	reading, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	out := make(chan oplog.Reply)
	var err error
	group.Go(func() { err = f.Run(reading, out) })
	must.Succeed(t, insert(ctx, set.Primary(), 1, "majority"))
	for r := range out {
		if last := &r.Entries[len(r.Entries)-1]; strings.HasSuffix(string(last.NS), ".c") {
			enough(errOver)
		}
	}
	stop(errOver)
	group.Wait()
	if len(f.missing) > 0 || !errors.Is(err, errOver) {
		t.Errorf("missing %v, %v", f.missing, err)
	}
}

// TestNothingShown: a member that shows nothing from the position on may only be slow to show it. One that shows another
// entry in its place does not have it.
func TestNothingShown(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 4})
	source, watcher, _ := watched(t, set, func(v syncsource.View) bool {
		return !v.ConfigUnread && v.Members[0].Up() && v.Members[0].State.Readable()
	})
	resolver := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{}, watcher, source))(t)
	f := must.Get(New(Config{From: newest(t, set.Primary()), Resolver: resolver, Watcher: watcher, MirrorMember: -1}))(t)
	host := watcher.View().Members[0].Host
	if err := f.judge(ctx, host, &StartMissingError{Want: f.last}); err != nil || len(f.missing) > 0 {
		t.Errorf("it shows nothing: %v, missing %v", err, f.missing)
	}
	other := oplog.NewOpTime(f.last.TS.T, f.last.TS.I, f.last.Term+1)
	if err := f.judge(ctx, host, &StartMissingError{Want: f.last, Got: other}); !errors.Is(err, ErrOtherHistory) {
		t.Errorf("it shows another entry: %v", err)
	}
}

// watched returns connections to a set, and a watcher of it that runs until stop, or the end of the test, and has seen it as seen
// wants it.
func watched(t *testing.T, set *mongosim.Set, seen func(syncsource.View) bool) (source *driver.Set, watcher *syncsource.Watcher, stop func()) {
	t.Helper()
	source = must.Get(driver.Open(t.Context(), must.Get(driver.Parse(driver.Config{URI: set.URI(), AppName: mongosim.Stage}))(t)))(t)
	t.Cleanup(source.Close)
	watcher = must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: source.Hosts()}, source))(t)
	return source, watcher, watch(t, watcher, seen)
}

// watch runs a watcher until stop, or the end of the test, and returns once it has seen the set as seen wants it.
func watch(t *testing.T, watcher *syncsource.Watcher, seen func(syncsource.View) bool) (stop func()) {
	t.Helper()
	running, end := context.WithCancelCause(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = watcher.Run(running) })
	stop = func() { end(errOver); group.Wait() }
	t.Cleanup(stop)
	for changed := watcher.Changed(); ; changed = watcher.Changed() {
		if seen(watcher.View()) {
			return stop
		}
		<-changed
	}
}
