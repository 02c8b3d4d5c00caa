package resync

import (
	"context"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// TestMergeSpooled: a link that does not keep up with its source reads its spool for ever. A
// part is merged nevertheless, at the entry where it is stopped, unless the link is so far from
// there that the part would stand for long.
func TestMergeSpooled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "spooled")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	p.at.Spooled = true
	link, err := p.begin()
	w.ok(err)
	r := p.awaitRunner()
	texts := map[oplog.Namespace]string{}
	look := func(when string, want bool) {
		t.Helper()
		if got, err := p.look(t.Context(), link, texts); got != want || err != nil {
			t.Errorf("%s: %t, %v", when, got, err)
		}
	}
	r.catchUp(at(701))
	look("a part that is too far ahead", false)
	if got, want := w.request("shop.a").Why, "copied, and ahead of the link, which applies what it has on disk: merged once the link is within 10m0s of it"; got != want {
		t.Errorf("the request says %q, want %q", got, want)
	}
	if until, err := p.Merge(t.Context(), t.Context()); err != nil || !until.IsNull() || p.merging != nil || len(p.running) != 1 {
		t.Errorf("too far: %s, %v", until, err)
	}
	w.ok(p.attempt(at(101)))
	if link, err = p.begin(); err != nil {
		t.Fatal(err)
	}
	look("a part that is ahead", true)
	until, err := p.Merge(t.Context(), t.Context())
	if err != nil || !until.Equal(at(701)) {
		t.Fatalf("it is to be merged at %s: %v", until, err)
	}
	w.ok(p.attempt(until))
	if until, err := p.Merge(t.Context(), t.Context()); err != nil || !until.IsNull() {
		t.Fatalf("%s, %v", until, err)
	}
	w.isDone(p)
	if w.begun["shop.a"] != 1 {
		t.Errorf("it was copied %d times", w.begun["shop.a"])
	}
}

// TestLead: a part stands while the link comes to it, for a quarter of what the source keeps at
// most, so that it can read on from there if it is not merged.
func TestLead(t *testing.T) {
	t.Parallel()
	for kept, want := range map[time.Duration]time.Duration{
		0: 10 * time.Minute, 30 * time.Minute: 10 * time.Minute, 40 * time.Minute: 10 * time.Minute, 4 * time.Hour: time.Hour,
	} {
		if got := (Position{Kept: kept}).mostLead(); got != want {
			t.Errorf("the source keeps its entries for %s: %s, want %s", kept, got, want)
		}
	}
}

// TestWatchWhileWriting: another write of the link's document, as that of a command which the
// target does not execute, keeps the progress of the parts from being written. A part that gets
// ready meanwhile ends the attempt nevertheless: it may be that very command that stands.
func TestWatchWhileWriting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "writing")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	link, err := p.begin()
	w.ok(err)
	r := p.awaitRunner()
	looked := make(chan struct{}, 100)
	r.looked = func() {
		select {
		case looked <- struct{}{}:
		default:
		}
	}
	writing, free := make(chan struct{}), make(chan struct{})
	written := make(chan error, 1)
	go func() {
		written <- link.Within(t.Context(), func(mongo.Caller) error {
			close(writing)
			<-free
			return nil
		})
	}()
	<-writing
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan bool, 1)
	go func() {
		changed, err := p.Watch(ctx, link)
		ended <- changed && err == nil
	}()
	for range 2 { // to find that it is not ready, and for its progress, which is not written
		<-looked
	}
	r.catchUp(at(110))
	if !<-ended {
		t.Error("the attempt is not ended for a part that is ready")
	}
	close(free)
	w.ok(<-written)
	if got := w.request("shop.a"); got.Why != "" {
		t.Errorf("the progress was written: %q", got.Why)
	}
}
