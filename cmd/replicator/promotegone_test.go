package main

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/pipeline/failure"
)

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
