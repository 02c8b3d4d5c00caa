package fetcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TestDenial: what a member answers does not end a run that another member can serve,
// whatever the code; what this release does not know does.
func TestDenial(t *testing.T) {
	refused := &driver.AuthError{Err: errors.New("wrong password")}
	for _, tt := range []struct {
		err    error
		lasts  time.Duration
		passes bool
	}{
		{&TooStaleError{}, time.Minute, true},
		{&StartMissingError{}, time.Minute, true},
		{ErrForeignSet, time.Minute, true},
		{&oplog.EntryError{Err: oplog.ErrCorrupt}, time.Minute, true},
		{ErrMetadata, 10 * time.Second, true},
		{replset.ErrEmptyOplog, 10 * time.Second, true},
		{replset.ErrOpTime, 10 * time.Second, true},
		{ErrSourceBehind, 0, true},
		{ErrRolledBack, 0, true},
		{ErrOutOfOrder, 0, true},
		{&mongo.LostError{Host: "db1:27017", Err: errors.New("connection reset")}, 10 * time.Second, true},
		{&mongo.LostError{Err: refused, Refused: true}, 10 * time.Second, true},
		{context.DeadlineExceeded, 10 * time.Second, true},
		{&oplog.EntryError{Err: oplog.ErrUnknownOp}, 0, false},
		{replyFault("cursor", "missing"), 0, false},
		{errors.New("unknown"), 0, false},
	} {
		lasts, passes := denial(fmt.Errorf("fetcher: tail it: %w", tt.err))
		if passes != tt.passes || passes && lasts != tt.lasts {
			t.Errorf("%v: %s, %t, want %s, %t", tt.err, lasts, passes, tt.lasts, tt.passes)
		}
	}
	for _, code := range servererr.Codes() {
		if _, passes := denial(servererr.New(code, "no")); !passes {
			t.Errorf("%s ends the run", code)
		}
	}
}

// TestStaleSaysSo: while no member has the position, the status says that, and not what else is wrong with the entries of one.
func TestStaleSaysSo(t *testing.T) {
	f := &Fetcher{news: make(chan struct{}), missing: map[string]bool{}}
	f.cfg.Reader.Observer = func(event.Event) {}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(context.Canceled) // it does not wait for the next attempt
	judge := func(stale bool) string {
		f.update(func(s *Status) { s.Stale, s.Why = stale, "none has the position" })
		if err := f.judge(ctx, "a:1", fmt.Errorf("tail it: %w", ErrOutOfOrder)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return f.Status().Why
	}
	if got := judge(true); got != "none has the position" {
		t.Errorf("stale: %q", got)
	}
	if got := judge(false); !strings.Contains(got, ErrOutOfOrder.Error()) {
		t.Errorf("not stale: %q", got)
	}
}
