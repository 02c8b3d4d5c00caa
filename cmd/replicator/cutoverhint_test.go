package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
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
}

// TestDrainedWithoutCut: a link that is paused after its cutover has begun can be resumed by an operator: the exit code is that of
// a cutover that something is in the way of, as with --drain.
func TestDrainedWithoutCut(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.End(record.Freeze, "writes of users are blocked", time.Now())
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
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.End(record.Freeze, "writes of users are blocked", time.Now())
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
	if want := "replicator cutover --resume --link dr … does the rest."; hint != want {
		t.Errorf("got %s, want %s", hint, want)
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
