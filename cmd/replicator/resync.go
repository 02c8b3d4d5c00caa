package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
)

type resyncCommand struct {
	linkFlags
	Namespace string `placeholder:"DB.COLLECTION" help:"The collection, under its name on the source."`
	NoWait    bool   `help:"Do not wait for the result."`
	List      bool   `settings:"no" help:"List the link's requests, and whom they wait for. Request nothing."`
	JSON      bool   `name:"json" settings:"no" help:"With --list: print a line of JSON for each."`
}

// resyncTexts explain the states.
var resyncTexts = map[string]string{
	request.Asked:   "asked for",
	request.Copying: "is being copied",
	request.Joining: "is copied, and the oplog is applied to the copy",
	request.Done:    "is the same as the source's again",
	request.Failed:  "could not be copied again",
}

const (
	// resyncPoll is the polling interval for a resync's state.
	resyncPoll = time.Second
	// resyncTell is the least time between two lines of progress.
	resyncTell = 10 * time.Second
	// nobodyRuns is the time without progress of a link after which it is reported as not
	// running: an idle source has an entry every ten seconds.
	nobodyRuns = 20 * time.Second
)

// Run requests the resync of a collection, and shows its progress.
func (c *resyncCommand) Run(ctx context.Context, out cli.Output) error {
	if c.List {
		return c.list(ctx, out)
	}
	ns := oplog.Namespace(c.Namespace)
	var misplaced error
	if c.JSON {
		misplaced = errors.New("--json: only with --list")
	}
	store, state, release, err := c.openGoing(ctx, checkResync(c.Namespace), misplaced)
	if err != nil {
		return err
	}
	defer release()
	requests := request.New(store)
	asked, err := requests.Ask(ctx, request.Ask{Kind: request.Again, By: operator(), Args: againArgs(c.Namespace)})
	switch {
	case errors.Is(err, request.ErrInvalid):
		return cli.Usage(err)
	case err != nil:
		return cli.Stopped(ctx, err)
	}
	if c.NoWait {
		_, err := fmt.Fprintf(out.Results, "%s: %s. Link %s starts it within a few seconds if it runs, otherwise when it does.\n", ns, resyncTexts[request.Asked], c.Link)
		return err
	}
	w := &resyncWatch{store: linkReader{requests, store, asked.ID, ns}, ns: ns, link: c.Link, out: out, idle: newIdleNote(store, out), applied: state.Applied, term: state.Term, moved: time.Now()}
	return w.run(ctx)
}

// checkResync reports early the requests that the link would refuse.
func checkResync(name string) error {
	db, coll, _ := strings.Cut(name, ".")
	switch {
	case name == "":
		return errors.New("--namespace is missing: DB.COLLECTION, as named on the source")
	case db == "" || coll == "":
		return fmt.Errorf("--namespace: %q is not of the form DB.COLLECTION", name)
	case oplog.IsServerDB(db):
		return fmt.Errorf("--namespace: %s belongs to the server", name)
	}
	return nil
}

// resyncError marks that of a collection that could not be copied again.
func resyncError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitUnexpected, Hint: "The link continues with all other collections. Fix what the message names, then run resync again."}
}

// leftError marks that of a collection that is still to be copied, or is being, when
// the command was stopped.
func leftError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitUnexpected, Hint: "The request stays, and the link continues with it; the same command again shows its progress."}
}

// requestReader reads the requests of a link, and the link. Reads are idempotent.
type requestReader interface {
	Read(ctx context.Context) (request.Requests, error)
	Load(ctx context.Context) (checkpoint.State, bool, error)
}

// linkReader is the requestReader of a link in a target, for one request.
type linkReader struct {
	*request.Store
	link *checkpoint.Store
	id   string
	ns   oplog.Namespace
}

// Read reads the state of the request. That of an earlier request for the same collection does
// not count.
func (r linkReader) Read(ctx context.Context) (request.Requests, error) {
	now, err := r.Get(ctx, r.id)
	switch {
	case err != nil && !errors.Is(err, request.ErrGone): // it is removed after a month
		return request.Requests{}, err
	case err == nil && now.State == request.Asked:
		return request.Requests{Resync: []request.Resync{{NS: r.ns, Asked: now.At, State: request.Asked}}}, nil
	case err == nil && now.State == request.Refused:
		return request.Requests{Resync: []request.Resync{{NS: r.ns, Asked: now.At, State: request.Failed, Why: now.Outcome}}}, nil
	}
	return r.Store.Read(ctx)
}

// againArgs are the arguments of a request to copy a collection again.
func againArgs(ns string) json.RawMessage {
	args, err := json.Marshal(request.AgainArgs{Namespace: ns})
	if err != nil { // a text can always be written
		panic("resync: invariant broken: " + err.Error())
	}
	return args
}

// Load reads the link.
func (r linkReader) Load(ctx context.Context) (checkpoint.State, bool, error) {
	return r.link.Load(ctx)
}

// resyncWatch shows the progress of a resync.
type resyncWatch struct {
	store requestReader
	ns    oplog.Namespace
	link  string
	out   cli.Output

	// state and why were shown last, at told.
	state, why string
	told       time.Time
	// applied and term are the link's, moved is when they last changed; said is
	// true once their standstill was reported.
	applied oplog.OpTime
	term    int64
	moved   time.Time
	said    bool
	// idle tells that no process runs the link, before one has begun.
	idle idleNote
	// first is true once the link's initial copy was reported.
	first bool
	// away is true once the unreachable target was reported.
	away bool
}

// run returns when it is done (nil), or cannot be.
func (w *resyncWatch) run(ctx context.Context) error {
	tick := time.NewTicker(resyncPoll)
	defer tick.Stop()
	for {
		over, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return leftError(fmt.Errorf("stopped waiting for %s to be copied again, which %s", w.ns, w.stands()))
		case err != nil && failure.Transient(err):
			if !w.away {
				w.away = true
				w.out.Complain("The target cannot be read: %v. Retrying.", err)
			}
		case over || err != nil:
			return err
		default:
			w.away = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// look polls once and prints changes. It reports whether the resync has ended.
func (w *resyncWatch) look(ctx context.Context) (over bool, err error) {
	requests, err := w.store.Read(ctx)
	if err != nil {
		return false, err
	}
	req, ok := resyncOf(&requests, string(w.ns))
	if !ok {
		return true, resyncError(fmt.Errorf("copy %s again: the request was removed", w.ns))
	}
	if news := req.Why != w.why && time.Since(w.told) >= resyncTell; req.State != w.state || news {
		w.state, w.why, w.told = req.State, req.Why, time.Now()
		text, known := resyncTexts[req.State]
		if !known {
			text = req.State
		}
		if req.State == request.Failed {
			return true, resyncError(fmt.Errorf("%s %s: %s", w.ns, text, req.Why))
		}
		if req.Why != "" {
			text += ": " + req.Why
		}
		if _, err := fmt.Fprintf(w.out.Results, "%s  %s %s\n", time.Now().UTC().Format(time.RFC3339), w.ns, printable.Text(text)); err != nil {
			return true, fmt.Errorf("print the progress of %s: %w", w.ns, err)
		}
	}
	if req.State == request.Done {
		return true, nil
	}
	return false, w.waits(ctx, req.State)
}

// stands describes the state last seen.
func (w *resyncWatch) stands() string {
	switch text, known := resyncTexts[w.state]; {
	case w.state == request.Asked, w.state == "":
		return "has not started yet"
	case known:
		return text
	}
	return "is in state " + printable.Text(w.state)
}

// waits prints why the resync may not progress at present: once, until the link
// moves.
func (w *resyncWatch) waits(ctx context.Context, req string) error {
	if req == request.Asked {
		w.idle.look(ctx)
	}
	state, found, err := w.store.Load(ctx)
	switch {
	case err != nil:
		return err
	case !found:
		return resyncError(fmt.Errorf("copy %s again: the link %s was removed", w.ns, w.link))
	case state.Over != nil:
		return &checkpoint.OverError{Link: w.link, Over: *state.Over}
	case state.Copy != nil && state.Copy.Phase == checkpoint.Copying && req == request.Asked:
		if !w.first {
			w.first = true
			w.out.Complain("Link %s has not finished its initial sync; this request follows it, once a process runs the link.", w.link)
		}
	case state.Applied != w.applied || state.Term != w.term:
		w.applied, w.term, w.moved, w.said = state.Applied, state.Term, time.Now(), false
	case !w.said && !w.idle.said && time.Since(w.moved) >= nobodyRuns:
		w.said = true
		w.out.Complain("Link %s has not moved for %s: if no process runs it, this takes effect once replicator run does. The request stays, whether this command waits for it or not.",
			w.link, nobodyRuns)
	}
	return nil
}
