package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/request"
)

// TestCutoverSaysWhetherFrozen: writes to the source are not said to be stopped by a command that the source has refused, or
// of which no answer is known.
func TestCutoverSaysWhetherFrozen(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Freeze, "me", time.Now())
	says := func(want string) {
		t.Helper()
		err := c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Freeze, Err: servererr.New(servererr.Unauthorized, "not authorized")})
		if _, hint := explain(err); !strings.HasPrefix(hint, want) {
			t.Errorf("got %s, want %s", hint, want)
		}
	}
	says("Writes to the source may be stopped. ")
	r.End(record.Freeze, "writes of users are blocked", time.Now())
	says("Writes to the source are stopped. ")
	r.State = record.Cancelling
	r.Begin(record.Undo, "me", time.Now())
	says("Writes to the source may be stopped. ")
}

// blocked is a cutover that has blocked writes to the source.
func blocked() *record.Record {
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Freeze, "me", time.Now())
	r.End(record.Freeze, "writes of users are blocked", time.Now())
	return r
}

// TestCutoverSaysWhoWrites: writes to the source are not said to be stopped by a command that has just found one.
func TestCutoverSaysWhoWrites(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Stopped}}
	r.Begin(record.Freeze, "me", time.Now())
	r.End(record.Freeze, "the operator states that no client writes", time.Now())
	code, hint := explain(c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Convert, Err: &cutover.SourceWrittenError{NS: "shop.orders"}}))
	if want := "Writes to the source are not stopped: find out what writes to shop.orders, and stop it first. "; code != cli.ExitFailed || !strings.HasPrefix(hint, want) {
		t.Errorf("code %d, hint %s, want %s", code, hint, want)
	}
}

// TestCutoverToldToEnd: a cutover that a signal has ended says so; the error is that of whatever it did just then.
func TestCutoverToldToEnd(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := blocked()
	ctx, stop := context.WithCancelCause(t.Context())
	stop(nil)
	_, hint := explain(c.unmoved(ctx, r, &cutover.StepError{Step: record.Drain, Err: context.Canceled}))
	if want := "The command was told to end before it was done. Writes to the source are stopped. replicator cutover --resume --link dr … goes on"; !strings.HasPrefix(hint, want) {
		t.Errorf("hint %s, want %s", hint, want)
	}
}

// TestDrainedWithoutCut: a link that is paused after its cutover has begun can be resumed by an operator: the exit code is that of
// a cutover that something is in the way of, as with --drain.
func TestDrainedWithoutCut(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := blocked()
	err := fmt.Errorf("%w: the link is paused", request.ErrNoCut)
	code, hint := explain(c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Drain, Err: err}))
	if drained, _ := explain(c.undrained(t.Context(), err)); code != cli.ExitFailed || drained != code || !strings.Contains(hint, "replicator cutover --resume --link dr … goes on") {
		t.Errorf("code %d, by --drain %d, hint %s", code, drained, hint)
	}
}

// TestDrainedWithoutProcess: a drain that no process has begun with says to start one before it is resumed: it would wait in vain again,
// and applications cannot write meanwhile.
func TestDrainedWithoutProcess(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := blocked()
	err := fmt.Errorf("%w: waited 1m0s, and the request is %w", request.ErrNoCut, request.ErrNotBegun)
	const start = "Start a process that runs the link first, replicator run --link dr …"
	code, hint := explain(c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Drain, Err: err}))
	if want := start + "; then replicator cutover --resume --link dr … goes on; "; code != cli.ExitFailed || !strings.Contains(hint, want) {
		t.Errorf("code %d, hint %s, want %s", code, hint, want)
	}
	if _, hint := explain(c.undrained(t.Context(), err)); !strings.HasPrefix(hint, start) || !strings.HasSuffix(hint, unblockHint) {
		t.Errorf("--drain: %s", hint)
	}
}

// TestCancelledTooLate: a cutover that cannot be cancelled any more is not said to be one that --cancel takes back, also if its
// process was killed before it recorded that the link has ended.
func TestCancelledTooLate(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Commit, "me", time.Now())
	_, hint := explain(c.unmoved(t.Context(), r, fmt.Errorf("cancel: %w", cutover.ErrCommitted)))
	want := "replicator cutover --resume --link dr … does the rest."
	if hint != want {
		t.Errorf("got %s, want %s", hint, want)
	}
	if next := nextUnless(&checkpoint.Over{}, r); next != want || nextUnless(nil, r) == want {
		t.Errorf("--status: got %s, want %s", next, want)
	}
	r.End(record.Commit, "", time.Now())
	r.Begin(record.Unblock, "me", time.Now())
	if next := nextOf(r); next != "Applications cannot write to the target yet. "+want {
		t.Errorf("--status: got %s", next)
	}
}

// TestStateOfLaterReleaseIsTold: the error of a cutover that only a later release knows says which release to use.
func TestStateOfLaterReleaseIsTold(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	code, hint := explain(c.unmoved(t.Context(), nil, &record.StateError{Link: "dr", State: "paused"}))
	if want := "Nothing was done. Use the release that has begun the cutover, or a newer one."; hint != want || code != cli.ExitCheck {
		t.Errorf("got %d %s, want %s", code, hint, want)
	}
}

// TestThawedIsNotStopped: once somebody has lifted the block of the source, the message does not say that writes are stopped.
func TestThawedIsNotStopped(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	for _, s := range []record.Step{record.Freeze, record.Drain, record.Convert} {
		r.Begin(s, "me", time.Now())
		r.End(s, "done", time.Now())
	}
	code, hint := explain(c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Commit, Err: cutover.ErrThawed}))
	if code != cli.ExitFailed || !strings.HasPrefix(hint, "Writes to the source are not blocked any more. replicator cutover --cancel ") {
		t.Errorf("code %d, hint %s", code, hint)
	}
}

// TestWorksText: the lock of a process says that it works on a cutover as of its last renewal: it may have been killed since.
func TestWorksText(t *testing.T) {
	t.Parallel()
	r := locks.Record{Who: "ann", Process: "a:1", State: locks.Locked, TTL: 10 * time.Second, Expires: time.Date(2026, 3, 1, 12, 0, 7, 0, time.UTC)}
	if got, want := worksText(&r), "ann (a:1) works on it, as it said last at 11:59:57 UTC; if it has died, its lock ends at 12:00:07, and the cutover can be resumed then"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if r.TTL = 0; worksText(&r) != "ann (a:1) works on it" {
		t.Error(worksText(&r))
	}
}

// TestHintMayStray: a cutover that does not begin as a block of the one before may come says how to go on.
func TestHintMayStray(t *testing.T) {
	t.Parallel()
	c := &cutoverCommand{}
	c.Link = "dr"
	code, hint := explain(c.unmoved(t.Context(), &record.Record{Link: "dr", State: record.Cancelled}, &cutover.StepError{Step: record.Check, Err: cutover.ErrMayStray}))
	if code != cli.ExitFailed || !strings.Contains(hint, "replicator cutover --cancel --link dr …") {
		t.Errorf("code %d, hint %s", code, hint)
	}
}

// TestViolatedHint: an operator whose target has documents that violate an index is not sent into a step that refuses what they have removed.
func TestViolatedHint(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	err := &cutover.StepError{Step: record.Convert, Err: ddl.RefusedErrors{{NS: "shop.a", Index: "email_1", Err: servererr.New(servererr.DuplicateKey, "E11000")}}}
	const cancel, resume = "replicator cutover --cancel --link dr … takes it back; then remove what is in the way, and begin again.", "replicator cutover --resume --link dr … goes on"
	for reverse, want := range map[string]string{"arm": "before the cutover is cancelled: a write to the target after the drain leaves no way back. " + cancel, record.NoReverse: "Remove from the target those that the source does not have; then " + resume} {
		r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block, Reverse: reverse}}
		r.Begin(record.Convert, "me", time.Now())
		code, hint := explain(c.unmoved(t.Context(), r, err))
		if code != cli.ExitFailed || !strings.Contains(hint, want) || reverse == "arm" && strings.Contains(hint, "--resume --link") {
			t.Errorf("%s: code %d, hint %s", reverse, code, hint)
		}
		r.Failed = &record.Failure{OnlyCancel: cutover.OnlyCancel(r, err)}
		if next := nextOf(r); strings.Contains(next, resume) != (reverse == record.NoReverse) {
			t.Errorf("%s: --status says %s", reverse, next)
		}
	}
}
