package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/request"
)

// The tag settings:"no" marks flags that environment variables do not set: the
// variables say how run starts a link, these flags what to change.
type throttleCommand struct {
	linkFlags
	MaxBytesPerSecond string `settings:"no" placeholder:"SIZE" help:"Limit of the copy. 0: no limit."`
	MaxOpsPerSecond   string `settings:"no" placeholder:"N" help:"The same, in documents."`
	Default           bool   `help:"Remove these limits: the link uses those that run was started with."`
}

// Run changes the limits of a link's copy, or prints the requested ones.
func (c *throttleCommand) Run(ctx context.Context, out cli.Output) error {
	bytes, faultBytes := requestedBytes(c.MaxBytesPerSecond)
	ops, faultOps := requestedOps(c.MaxOpsPerSecond)
	change := c.MaxBytesPerSecond != "" || c.MaxOpsPerSecond != ""
	var both error
	if c.Default && change {
		both = errors.New("--default removes the limits: use it alone")
	}
	link, _, release, err := c.openLink(ctx, faultBytes, faultOps, both)
	if err != nil {
		return err
	}
	defer release()
	store := request.New(link)
	requests, err := store.Read(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if !change && !c.Default {
		return c.print(out, "", requests.BytesPerSecond, requests.OpsPerSecond)
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
func requestedBytes(text string) (int64, error) {
	if text == "" {
		return -1, nil
	}
	var s cli.Size
	if err := s.UnmarshalText([]byte(text)); err != nil {
		return -1, fmt.Errorf("--max-bytes-per-second: %w", err)
	}
	return int64(s), checkSpeed(int64(s))
}

func requestedOps(text string) (int64, error) {
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1, fmt.Errorf("--max-ops-per-second: %q is not a number of 0 or more", text)
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
