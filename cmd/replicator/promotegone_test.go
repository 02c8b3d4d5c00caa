package main

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestWasPromoted: that a source answers stops a promotion, unless the link is promoted already: one that was cut over is not, and neither is one
// that goes on, or that there is none of.
func TestWasPromoted(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	at := oplog.NewOpTime(100, 1, 1)
	for link, over := range map[string]*checkpoint.Over{
		"on": nil, "over": {At: time.UnixMilli(100_000), By: "me", Source: at}, "promoted": {At: time.UnixMilli(100_000), By: "me", Source: at, Promoted: &checkpoint.Promoted{}},
	} {
		store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link}))(t)
		must.Succeed(t, store.Create(t.Context(), checkpoint.State{
			Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1"}, Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at,
		}))
		if over != nil {
			must.Succeed(t, must.Get(store.Acquire(t.Context(), 0))(t).End(t.Context(), *over))
		}
	}
	for link, want := range map[string]bool{"on": false, "over": false, "promoted": true, "none": false} {
		c := &promoteCommand{AskFor: time.Minute}
		c.Link = link
		if got := c.wasPromoted(t.Context(), target); got != want {
			t.Errorf("%s: %t", link, got)
		}
	}
}

// TestPromotedSourceGone: the process of a link that is promoted ends although it has lost its lease while no member of the
// source answers, so that no attempt of it gets as far as the lease any more.
func TestPromotedSourceGone(t *testing.T) {
	source, target := twoSets(t)
	on := []string{"--source=" + source.URI(), "--target=" + target.URI(), "--link=test", "--selection-timeout=1s", "--spool-dir=" + t.TempDir()}
	l := startLink(t, append(on, "--start-at=now", "--await=100ms", "--lease-ttl=2s", "--lease-renew=250ms")...)
	awaitLink(l)
	source.Close()
	for _, m := range target.Members() {
		m.Freeze()
	}
	l.await("the lease is lost, standing by")
	for _, m := range target.Members() {
		m.Thaw()
	}
	l.await("attempt ended, trying again")
	said(t, cli.ExitOK, `^Link test was promoted at `, nil, append([]string{"promote", "--source-is-gone", "--ask-for=1s"}, on...)...)
	select {
	case code := <-l.code:
		if code != failure.ExitResync {
			t.Errorf("code %d\n%s", code, &l.log)
		}
	case <-time.After(time.Minute):
		t.Errorf("it goes on\n%s", &l.log)
		l.kill(failure.ErrStopped)
		l.end()
	}
}
