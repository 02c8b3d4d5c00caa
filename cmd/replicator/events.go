package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/request"
)

type eventsCommand struct {
	linkFlags
	Follow bool `settings:"no" help:"Go on with what happens from now on."`
	JSON   bool `name:"json" settings:"no" help:"Print a line of JSON for each."`
}

// eventsPoll is how often the metadata are read.
const eventsPoll = time.Second

// linkEvent is a line: a request in one of its states, or another leader.
type linkEvent struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind"`
	// Request is nil for another leader.
	Request *request.Record `json:"request,omitempty"`
	// Term is the new one, Leader the process that has it.
	Term   int64  `json:"term,omitempty"`
	Leader string `json:"leader,omitempty"`
}

// eventSource reads the state of a link from the metadata, which remains after its process has
// ended.
type eventSource struct {
	*request.Store
	link  *checkpoint.Store
	watch *lease.Watch
}

// Leader returns the lease of the link; false if there is no link.
func (s eventSource) Leader(ctx context.Context) (record lease.Record, found bool, err error) {
	seen, found, err := s.link.Look(ctx, s.watch)
	return seen.Lease.Record, found, err
}

// Run prints the events.
func (c *eventsCommand) Run(ctx context.Context, out cli.Output) error {
	store, _, release, err := c.openLink(ctx)
	if err != nil {
		return err
	}
	defer release()
	return c.run(ctx, out, eventSource{request.New(store), store, lease.NewWatch("")})
}

func (c *eventsCommand) run(ctx context.Context, out cli.Output, from eventSource) error {
	w := eventWatch{states: map[string]string{}}
	_, err := repeat(ctx, out, c.Follow, eventsPoll,
		func(ctx context.Context) ([]linkEvent, error) { return w.look(ctx, from) },
		func(events []linkEvent) error { return c.print(out, events) })
	return err
}

// eventWatch finds changes since its last read.
type eventWatch struct {
	states map[string]string // of requests, by id
	holder string
}

func (w *eventWatch) look(ctx context.Context, from eventSource) ([]linkEvent, error) {
	list, err := from.List(ctx)
	if err != nil {
		return nil, err
	}
	now, found, err := from.Leader(ctx)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, cli.Usage(errors.New("the link was removed"))
	}
	var events []linkEvent
	for i := range list {
		r := &list[i]
		state := r.State + " " + r.Outcome
		if w.states[r.ID] == state {
			continue
		}
		w.states[r.ID] = state
		events = append(events, linkEvent{At: r.ChangedAt, Kind: string(r.Kind), Request: r})
	}
	// Each attempt of a process has a term of its own.
	if now.Term != 0 && now.Holder != w.holder {
		w.holder = now.Holder
		events = append(events, linkEvent{At: leaderSince(now), Kind: "leader", Term: now.Term, Leader: now.Holder})
	}
	slices.SortStableFunc(events, func(a, b linkEvent) int { return a.At.Compare(b.At) })
	return events, nil
}

// leaderSince is since when the process of the record leads. An earlier release does not say: it is
// when that was noticed then.
func leaderSince(r lease.Record) time.Time {
	if r.Grant.Granted == 0 {
		return time.Now().UTC()
	}
	return r.Grant.Granted.Time().UTC()
}

// print prints events, the oldest first.
func (c *eventsCommand) print(out cli.Output, events []linkEvent) error {
	if c.JSON {
		w := json.NewEncoder(out.Results)
		for i := range events {
			if err := w.Encode(events[i]); err != nil {
				return fmt.Errorf("print the events: %w", err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out.Results, 0, 0, 2, ' ', 0)
	for i := range events {
		e := &events[i]
		at := e.At.UTC().Format(time.RFC3339)
		if e.Request == nil {
			_, _ = fmt.Fprintf(w, "%s\t%s\tterm %d: %s\n", at, e.Kind, e.Term, printable.Text(cmp.Or(e.Leader, "no leader"))) // Flush returns the error
			continue
		}
		r := e.Request
		text := r.State
		if r.Outcome != "" {
			text += ": " + r.Outcome
		}
		by := "by " + cmp.Or(r.By, "an operator")
		if r.Why != "" {
			by += ": " + r.Why
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", at, printable.Text(e.Kind), printable.Text(text), printable.Text(by))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the events: %w", err)
	}
	return nil
}
