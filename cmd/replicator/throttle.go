package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/request"
)

// The tag settings:"no" marks flags that environment variables do not set: the
// variables say how run starts a link, these flags what to change.
type throttleCommand struct {
	askFlags
	MaxBytesPerSecond string `settings:"no" placeholder:"SIZE" help:"Limit of the copy. 0: no limit."`
	MaxOpsPerSecond   string `settings:"no" placeholder:"N" help:"The same, in documents."`
	Default           bool   `help:"Remove these limits: the link uses those that run was started with."`
	ApplyBytes        string `settings:"no" placeholder:"SIZE" help:"Limit of applying the oplog, per second. 0: no limit."`
	ApplyOps          string `settings:"no" placeholder:"N" help:"The same, in operations."`
	Adaptive          string `settings:"no" enum:",on,off" default:"" help:"on: less than these limits while the target is under pressure, a sixteenth at the least. off: these limits."`
	Off               bool   `settings:"no" help:"Remove the limits of applying."`
}

// Run changes the limits of a link, or prints those that are set.
func (c *throttleCommand) Run(ctx context.Context, out cli.Output) error {
	bytes, faultBytes := requestedBytes("max-bytes-per-second", c.MaxBytesPerSecond)
	ops, faultOps := requestedOps("max-ops-per-second", c.MaxOpsPerSecond)
	applies, faultApply := c.change()
	copies := c.MaxBytesPerSecond != "" || c.MaxOpsPerSecond != "" || c.Default
	var both error
	if c.Default && (c.MaxBytesPerSecond != "" || c.MaxOpsPerSecond != "") {
		both = errors.New("--default removes the limits of the copy: it goes without others of the copy")
	}
	link, state, release, err := c.openLink(ctx, faultBytes, faultOps, faultApply, both)
	if err != nil {
		return err
	}
	defer release()
	if copies || applies != nil {
		if err := c.goesOn(&state); err != nil {
			return err
		}
	}
	store := request.New(link)
	if copies {
		if err := c.limitCopy(ctx, out, store, bytes, ops); err != nil {
			return err
		}
	}
	switch {
	case applies != nil:
		return c.ask(ctx, out, link, request.Throttle, applies)
	case !copies:
		return c.show(ctx, out, store)
	}
	return nil
}

// change returns the change of the limits of applying, nil for none.
func (c *throttleCommand) change() (json.RawMessage, error) {
	bytes, faultBytes := requestedBytes("apply-bytes", c.ApplyBytes)
	ops, faultOps := requestedOps("apply-ops", c.ApplyOps)
	given := c.ApplyBytes != "" || c.ApplyOps != "" || c.Adaptive != ""
	if c.Off && given {
		return nil, errors.New("--off removes the limits of applying: it goes without others of applying")
	}
	if err := errors.Join(faultBytes, faultOps); err != nil || !c.Off && !given {
		return nil, err
	}
	on := c.Adaptive == "on"
	change := request.Change{
		ApplyBytesPerSecond: request.Limit{Given: c.Off || c.ApplyBytes != "", PerSecond: max(0, bytes)},
		ApplyOpsPerSecond:   request.Limit{Given: c.Off || c.ApplyOps != "", PerSecond: max(0, ops)},
	}
	if c.Off || c.Adaptive != "" {
		change.Adaptive = &on
	}
	return json.Marshal(change)
}

// show prints the limits.
func (c *throttleCommand) show(ctx context.Context, out cli.Output, store *request.Store) error {
	requests, err := store.Read(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	settings, err := store.Settings(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if err := c.print(out, "", requests.BytesPerSecond, requests.OpsPerSecond); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out.Results, "Link %s applies %s.\n", c.Link, settings.Throttle.Describe()); err != nil {
		return fmt.Errorf("print the limits: %w", err)
	}
	return nil
}

// limitCopy changes the limits of the copy. That holds whichever release runs the link, and once
// one does; the request is for the record.
func (c *throttleCommand) limitCopy(ctx context.Context, out cli.Output, store *request.Store, bytes, ops int64) error {
	requests, err := store.Read(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	// Limits that are not given stay as they were.
	if c.MaxBytesPerSecond == "" && !c.Default {
		bytes = requests.BytesPerSecond
	}
	if c.MaxOpsPerSecond == "" && !c.Default {
		ops = requests.OpsPerSecond
	}
	if err := store.Limit(ctx, bytes, ops); err != nil {
		return cli.Stopped(ctx, err)
	}
	change := request.Change{Default: c.Default}
	if !c.Default {
		change.CopyBytesPerSecond = request.Limit{Given: c.MaxBytesPerSecond != "", PerSecond: max(0, bytes)}
		change.CopyOpsPerSecond = request.Limit{Given: c.MaxOpsPerSecond != "", PerSecond: max(0, ops)}
	}
	args, err := json.Marshal(change)
	if err == nil {
		_, err = store.Ask(ctx, request.Ask{Kind: request.Throttle, By: operator(), Why: c.Why, Args: args})
	}
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	return c.print(out, ", within a few seconds if it runs", bytes, ops)
}

// print prints the requested limits.
func (c *throttleCommand) print(out cli.Output, when string, bytes, ops int64) error {
	_, err := fmt.Fprintf(out.Results, "Link %s copies%s: %s, %s.\n", c.Link, when,
		limitText(bytes, "bytes", func(n int64) string { return cli.Size(n).String() }),
		limitText(ops, "documents", func(n int64) string { return strconv.FormatInt(n, 10) + " documents" }))
	if err != nil {
		return fmt.Errorf("print the limits: %w", err)
	}
	return nil
}

func limitText(n int64, what string, text func(int64) string) string {
	switch {
	case n < 0:
		return "as many " + what + " per second as it was started with"
	case n == 0:
		return what + " without a limit"
	}
	return "at most " + text(n) + " per second"
}

// requestedBytes reads a limit; negative where none is given.
func requestedBytes(flag, text string) (int64, error) {
	if text == "" {
		return -1, nil
	}
	var s cli.Size
	if err := s.UnmarshalText([]byte(text)); err != nil {
		return -1, fmt.Errorf("--%s: %w", flag, err)
	}
	return int64(s), checkSpeed(flag, int64(s))
}

func requestedOps(flag, text string) (int64, error) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1, fmt.Errorf("--%s: %q is not a number of 0 or more", flag, text)
	}
	return n, nil
}

// resyncOf returns the state of the resync requested for a collection.
func resyncOf(w *request.Requests, ns string) (request.Resync, bool) {
	for _, r := range w.Resync {
		if string(r.NS) == ns {
			return r, true
		}
	}
	return request.Resync{}, false
}
