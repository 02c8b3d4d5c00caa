package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/request"
)

// move runs a cutover, continues with one, or cancels it, with the link's lock.
func (c *cutoverCommand) move(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state checkpoint.State, ask *asker) error {
	if o := state.Over; o != nil && !c.Resume && !c.Cancel {
		return c.ended(ctx, out, store, o, state.Back)
	}
	gone, err := c.sourceGone(ctx, out, source, store, &state)
	if err != nil {
		return cli.Stopped(ctx, linkError{err})
	}
	cfg := &cutover.Config{
		SourceGone: gone,
		Drain:      *c.drainConfig(out, source, store), Target: store.Target(), MetaDB: c.MetadataDB, Process: lease.NewProcess(""),
		Check: func(ctx context.Context) (string, error) { return c.ready(ctx, out, source, store, state, ask) },
		Shell: func(ctx context.Context, command string, env []string) error { return shell(ctx, out, command, env) },
		Said:  func(what string) { out.Complain("%s: %s.", c.Link, printable.Text(what)) },
		Told:  func(t record.Taken) { c.told(out, t) },
	}
	verifies := c.Verify
	if c.Resume {
		r, err := c.resumed(ctx, source, store, &state)
		if err != nil {
			return cli.Stopped(ctx, linkError{err})
		}
		verifies = r != nil && r.Options.Verify
	}
	if verifies {
		cfg.Verify = func(ctx context.Context, _ checkpoint.Cut) (string, error) {
			return c.verify(ctx, out, source, store, &state)
		}
	}
	do, why := func(ctx context.Context) (*record.Record, error) { return cutover.Run(ctx, cfg, c.options()) }, "cutover"
	switch {
	case c.Resume:
		do, why = func(ctx context.Context) (*record.Record, error) { return cutover.Resume(ctx, cfg) }, "cutover --resume"
	case c.Cancel:
		do, why = func(ctx context.Context) (*record.Record, error) { return cutover.Cancel(ctx, cfg) }, "cutover --cancel"
	}
	var r *record.Record
	lock := cutover.LockConfig{
		Target: store.Target(), MetaDB: c.MetadataDB, Link: c.Link, By: operator(), Why: why,
		Said: func(what string) { out.Complain("%s: %s.", c.Link, printable.Text(what)) },
	}
	err = cutover.Locked(ctx, lock, func(ctx context.Context) (err error) {
		r, err = do(ctx)
		return err
	})
	if err != nil {
		refused, _ := errors.AsType[ddl.RefusedErrors](err)
		return c.unmoved(ctx, r, errors.Join(err, c.listRefused(ctx, out, store.Target(), c.MetadataDB, c.Link, refused)))
	}
	err = c.printMoved(out, r, state.Back)
	if err == nil && r.State == record.Cancelled && staysIdle(ctx, store) {
		out.Complain("No process has begun to run link %s within %s: nothing of the source is applied until one does, as replicator run --link %s ….", c.Link, acquiredWithin, c.Link)
	}
	return err
}

// sourceGone reports whether the source cannot be reached and is not needed, because the link has ended and the remaining
// steps concern the target only. Otherwise the error says why it is not the source.
func (c *cutoverCommand) sourceGone(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state *checkpoint.State) (bool, error) {
	err := c.sameSource(ctx, source, &state.Source)
	if err == nil || ctx.Err() != nil || !c.Resume || state.Over == nil || errors.Is(err, checkpoint.ErrOtherSource) {
		return false, err
	}
	r, unread := (&record.Store{Target: store.Target(), DB: c.MetadataDB}).Get(ctx, c.Link)
	if unread != nil || !r.Open() || r.Options.ThawSource && !r.Has(record.Thaw) && !r.Began(record.Expire) {
		return false, errors.Join(err, unread)
	}
	out.Complain("%s: the old source cannot be reached, and is not needed for the rest: %s.", c.Link, printable.Text(err.Error()))
	return true, nil
}

// ended prints the end of a link that was cut over before.
func (c *cutoverCommand) ended(ctx context.Context, out cli.Output, store *checkpoint.Store, o *checkpoint.Over, was *checkpoint.Back) error {
	r, err := (&record.Store{Target: store.Target(), DB: c.MetadataDB}).Get(ctx, c.Link)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if r.Open() {
		return c.unmoved(ctx, r, fmt.Errorf("%w: %s", cutover.ErrUnderWay, r))
	}
	text := overText(o)
	if o.Promoted == nil {
		text += ".\n" + c.backOf(o.Reverse != nil, was)
	}
	_, err = fmt.Fprintf(out.Results, "%s.\n%s", text, whileBlocked(r, o.Reverse != nil))
	return shown(err)
}

func shown(err error) error {
	if err != nil {
		return fmt.Errorf("print what became of the cutover: %w", err)
	}
	return nil
}

// options are the options of a new cutover, from the flags.
func (c *cutoverCommand) options() *record.Options {
	o := &record.Options{Freeze: record.Block, FreezeCommand: c.FreezeCommand, ThawCommand: c.ThawCommand, ThawSource: c.ThawSource, Waived: c.Waive, Verify: c.Verify, Reverse: c.Reverse}
	switch {
	case c.WritesStopped:
		o.Freeze = record.Stopped
	case c.FreezeCommand != "":
		o.Freeze = record.Command
	case c.AwaitQuiet:
		o.Freeze = record.Quiet
	}
	return o
}

// blocks reports whether the source's own write block is what stops writes.
func (c *cutoverCommand) blocks() bool { return c.options().Freeze == record.Block }

// ready checks the preconditions, and prints them if they are not met.
func (c *cutoverCommand) ready(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state checkpoint.State, ask *asker) (string, error) {
	report, err := c.report(ctx, out, source, store, state, ask)
	if err != nil {
		return "", err
	}
	if err := c.judge(report); err != nil {
		if failed := c.print(out, report); failed != nil {
			return "", failed
		}
		return "", err
	}
	return "all preconditions are met or waived", nil
}

// told prints how a step has ended.
func (c *cutoverCommand) told(out cli.Output, t record.Taken) {
	if t.Ended.IsZero() || c.JSON {
		return
	}
	out.Complain("%-8s %s (%.2f s)", t.Step, printable.Text(t.Outcome), t.Ended.Sub(t.Started).Seconds())
}

// shell runs a command of the operator.
func shell(ctx context.Context, out cli.Output, command string, env []string) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command) //nolint:gosec // it is the operator's
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out.Complaints, out.Complaints
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// unmoved marks the error of a cutover that did not end: what to do depends on how far it is.
func (c *cutoverCommand) unmoved(ctx context.Context, r *record.Record, err error) error {
	if is[*cli.Error](err) {
		return err
	}
	what := fmt.Errorf("cutover of link %s: %w", c.Link, err)
	code, hint := cli.ExitUnexpected, ""
	switch {
	case is[*cutover.BusyError](err) && r == nil:
		return &cli.Error{Err: what, Code: cli.ExitFailed, Hint: "Nothing was done. replicator cutover --status says how far it is."}
	case is[*record.StateError](err):
		return &cli.Error{Err: errors.New(printable.Text(what.Error())), Code: cli.ExitCheck, Hint: "Nothing was done. Use the release that has begun the cutover, or a newer one."}
	case errors.Is(err, cutover.ErrNone), errors.Is(err, cutover.ErrCommitted) && !r.Open():
		return &cli.Error{Err: what, Code: cli.ExitFailed, Hint: "Nothing was done."}
	case errors.Is(err, request.ErrNoCut) && !r.Open():
		return &cli.Error{Err: errors.New(printable.Text(what.Error())), Code: cli.ExitFailed, Hint: "Nothing was done: the link could not be drained, so writes were not stopped."}
	case errors.Is(err, cutover.ErrMayStray):
		return &cli.Error{Err: what, Code: cli.ExitFailed, Hint: "Nothing was done. replicator cutover --cancel --link " + c.Link + " … waits until none can come any more, and lifts it; then begin again."}
	case errors.Is(err, cutover.ErrUncertain):
		hint = "Leave the source as it is, and the target unused: "
	case errors.Is(err, cutover.ErrNoWayBack):
		code, hint = cli.ExitFailed, "Without a way back: cancel it, and begin again with --reverse=none. "
	case is[*ddl.RefusedError](err), errors.Is(err, cutover.ErrWritten), errors.Is(err, cutover.ErrThawed), errors.Is(err, cutover.ErrUnderWay), errors.Is(err, cutover.ErrBusy), errors.Is(err, request.ErrNoCut), errors.Is(err, errDiffer), is[unverified](err):
		code = cli.ExitFailed
		hint = c.firstHint(r, err)
	case ctx.Err() == nil && !r.Open():
		return cli.Stopped(ctx, linkError{what})
	}
	if !r.Open() {
		return cli.Stopped(ctx, linkError{what})
	}
	if r.Blocks() && !errors.Is(err, cutover.ErrUncertain) {
		hint = stoppedText(r, err) + hint
	}
	if ctx.Err() != nil {
		hint = "The command was told to end before it was done. " + hint
	}
	next := nextOf(r)
	if errors.Is(err, cutover.ErrCommitted) { // the record may not say so yet
		code, next = cli.ExitFailed, restOf(r)
	}
	if cutover.OnlyCancel(r, err) {
		next = onlyCancel(r)
	}
	return &cli.Error{Err: errors.New(printable.Text(what.Error())), Code: code, Hint: hint + next}
}

// stoppedText says whether writes to the source are stopped.
func stoppedText(r *record.Record, err error) string {
	if e, is := errors.AsType[*cutover.SourceWrittenError](err); is {
		return "Writes to the source are not stopped: find out what writes to " + printable.Text(e.NS) + ", and stop it first. "
	}
	if errors.Is(err, cutover.ErrThawed) {
		return "Writes to the source are not blocked any more. "
	}
	// A cancellation lifts the block before it ends.
	if r.Has(record.Freeze) && r.State != record.Cancelling {
		return "Writes to the source are stopped. "
	}
	return "Writes to the source may be stopped. "
}

// startFirst says that a process has to run the link.
func (c *cutoverCommand) startFirst() string {
	return "Start a process that runs the link first, replicator run --link " + c.Link + " …"
}

// firstHint says what to do first about a link that no process runs, or documents that violate an index; empty for nothing.
func (c *cutoverCommand) firstHint(r *record.Record, err error) (hint string) {
	switch {
	case errors.Is(err, request.ErrNotBegun):
		return c.startFirst() + "; then "
	case !is[ddl.RefusedErrors](err):
		return ""
	}
	if c.Violations == "" {
		hint = "With --violations FILE all documents that violate it are listed. "
	}
	if cutover.OnlyCancel(r, err) {
		return hint + "Do not remove them before the cutover is cancelled: a write to the target after the drain leaves no way back. "
	}
	return hint + "Remove from the target those that the source does not have; then "
}

// onlyCancel says that a cutover can only be cancelled.
func onlyCancel(r *record.Record) string {
	return "replicator cutover --cancel --link " + r.Link + " … takes it back; then remove what is in the way, and begin again. --resume would find the same."
}

// nextOf says how to continue with a cutover.
func nextOf(r *record.Record) string {
	resume, cancel := "replicator cutover --resume --link "+r.Link+" …", "replicator cutover --cancel --link "+r.Link+" …"
	if r.Has(record.Commit) {
		return restOf(r)
	}
	if r.State == record.Cancelling {
		return cancel + " goes on with taking it back."
	}
	if r.Failed != nil && r.Failed.OnlyCancel {
		return onlyCancel(r)
	}
	return resume + " goes on; " + cancel + " takes it back."
}

// restOf says how to continue with a cutover that cannot be cancelled any more.
func restOf(r *record.Record) string {
	next := "replicator cutover --resume --link " + r.Link + " … does the rest."
	if r.Last().Step == record.Unblock && !r.Has(record.Unblock) {
		return record.TargetBlocked + " " + next
	}
	return next
}

// printMoved prints how a cutover has ended; was is the link that this one is the way back of, nil for none.
func (c *cutoverCommand) printMoved(out cli.Output, r *record.Record, was *checkpoint.Back) error {
	if c.JSON {
		return shown(json.NewEncoder(out.Results).Encode(r))
	}
	if r.State == record.Cancelled {
		_, err := fmt.Fprintf(out.Results, "The cutover of link %s is cancelled: %s; the link goes on.\n", c.Link, r.Thawed())
		return shown(err)
	}
	if r.GoneBack != "" {
		_, err := fmt.Fprintf(out.Results, "Link %s was cut over, and link %s, the way back, since: nothing of it is left to be done, and the target stays as it is.\n", c.Link, r.GoneBack)
		return shown(err)
	}
	kept, armed := "The old source stays blocked", r.Options.Reverse != record.NoReverse
	switch {
	case r.Options.ThawSource && r.Options.Freeze == record.Block:
		kept = "The old source takes writes again"
	case r.Options.Freeze != record.Block:
		kept = "No client may write to the old source"
	}
	_, err := fmt.Fprintf(out.Results, "Link %s is cut over: applications can use the target. Clients could not write for %.2f s.\n%s; nothing of it is applied any more.\n%s.\n%s", c.Link, r.DowntimeSeconds, kept, c.backOf(armed, was), whileBlocked(r, armed))
	return shown(err)
}

// nextUnless is nextOf unless the link has ended, which the record may not say yet.
func nextUnless(over *checkpoint.Over, r *record.Record) string {
	if over != nil {
		return restOf(r)
	}
	return nextOf(r)
}

// printRecord prints the newest cutover of a link, which has ended if over is not nil, and the process that works on it.
func (c *cutoverCommand) printRecord(ctx context.Context, out cli.Output, store *checkpoint.Store, over *checkpoint.Over) error {
	r, err := (&record.Store{Target: store.Target(), DB: c.MetadataDB}).Get(ctx, c.Link)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if c.JSON {
		return shown(json.NewEncoder(out.Results).Encode(r))
	}
	if r == nil {
		_, err := fmt.Fprintf(out.Results, "Link %s has no cutover.\n", c.Link)
		return shown(err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Link %s: %s.\n", c.Link, printable.Text(r.String()))
	for i := range r.Steps {
		s := &r.Steps[i]
		ended := "not ended"
		if !s.Ended.IsZero() {
			ended = fmt.Sprintf("%.2f s", s.Ended.Sub(s.Started).Seconds())
		}
		fmt.Fprintf(&text, "%-8s %s  %s, by %s  %s\n", s.Step, s.Started.UTC().Format("2006-01-02 15:04:05"), ended, printable.Text(s.By), printable.Text(s.Outcome))
	}
	if r.Open() {
		if r.Failed != nil {
			fmt.Fprintf(&text, "Last error: %s.\n", printable.Text(r.Failed.String()))
		}
		who, busy, err := cutover.WorksOn(ctx, store.Target(), c.MetadataDB, c.Link)
		switch {
		case err != nil:
			return cli.Stopped(ctx, err)
		case busy:
			fmt.Fprintf(&text, "%s.\n", printable.Text(worksText(&who)))
		default:
			fmt.Fprintf(&text, "No process works on it. %s\n", nextUnless(over, r))
		}
	}
	_, err = fmt.Fprint(out.Results, text.String())
	return shown(err)
}

// worksText says which process works on a cutover, and as of when: one that was killed keeps the lock for a while.
func worksText(r *locks.Record) string {
	text := r.Who + " (" + r.Process + ") works on it"
	if r.TTL == 0 {
		return text
	}
	at := func(t time.Time) string { return t.UTC().Format("15:04:05") }
	return fmt.Sprintf("%s, as it said last at %s UTC; if it has died, its lock ends at %s, and the cutover can be resumed then", text, at(r.Expires.Add(-r.TTL)), at(r.Expires))
}

// overText says that a link has ended.
func overText(o *checkpoint.Over) string {
	if o.Promoted != nil {
		return fmt.Sprintf("promoted at %s by %s: the source was gone, the target has it up to %s, and nothing later is applied",
			o.At.UTC().Format("2006-01-02 15:04:05 UTC"), printable.Text(o.By), o.Source)
	}
	return fmt.Sprintf("cut over at %s by %s: the target was the source as of %s, and nothing later is applied",
		o.At.UTC().Format("2006-01-02 15:04:05 UTC"), printable.Text(o.By), o.Source)
}
