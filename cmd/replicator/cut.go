package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/request"
)

type cutCommand struct {
	linkFlags
	Wait    bool          `help:"Ask the link for a cut, and wait for it."`
	Timeout time.Duration `settings:"no" default:"1m" help:"How long --wait waits."`
	Why     string        `placeholder:"TEXT" settings:"no" help:"The reason for --wait, kept with the request."`
	JSON    bool          `help:"Print one JSON object."`
}

// Run prints the newest consistent cut of a link, or asks for one.
func (c *cutCommand) Run(ctx context.Context, out cli.Output) error {
	var fault error
	if c.Timeout < time.Second || c.Timeout > request.MostCutWait {
		fault = fmt.Errorf("--timeout: %s is not between 1s and %s", c.Timeout, request.MostCutWait)
	}
	store, state, release, err := c.openLink(ctx, fault)
	if err != nil {
		return err
	}
	defer release()
	if c.Wait {
		if err := c.goesOn(&state); err != nil {
			return err
		}
		return c.next(ctx, out, store)
	}
	list, err := store.Cuts(ctx)
	switch {
	case err != nil:
		return cli.Stopped(ctx, err)
	case len(list) == 0:
		return &cli.Error{Err: fmt.Errorf("link %s has no consistent cut", c.Link), Code: cli.ExitUnexpected, Hint: "With --wait the command asks for one, and says why there is none yet."}
	}
	return c.print(out, &list[0])
}

// next asks for a cut, and prints it.
func (c *cutCommand) next(ctx context.Context, out cli.Output, store *checkpoint.Store) error {
	if isIdle(ctx, store) {
		out.Complain("No process runs link %s: it makes no cut until replicator run does. Waiting %s.", c.Link, c.Timeout)
	}
	cut, err := request.New(store).NextCut(ctx, operator(), c.Why, c.Timeout, func(why string) {
		out.Complain("%s: cut: %s.", c.Link, printable.Text(why))
	})
	switch {
	case errors.Is(err, request.ErrNoCut):
		if of := errors.Unwrap(err); of != nil {
			err = of // without the package and the link
		}
		return &cli.Error{
			Err: fmt.Errorf("cut of link %s: %s", c.Link, printable.Text(err.Error())), Code: cli.ExitUnexpected,
			Hint: "docs/reading-the-target.md says when a link makes no cut. Without --wait the newest one that there is gets printed.",
		}
	case err != nil:
		return cli.Stopped(ctx, err)
	}
	return c.print(out, &cut)
}

func (c *cutCommand) print(out cli.Output, cut *checkpoint.Cut) error {
	wall := time.UnixMilli(cut.SourceWall).UTC()
	var err error
	if c.JSON {
		err = json.NewEncoder(out.Results).Encode(map[string]any{
			"link":   c.Link,
			"source": map[string]any{"t": cut.Source.TS.T, "i": cut.Source.TS.I, "term": cut.Source.Term, "wall": wall},
			"target": map[string]any{"t": cut.Target.T, "i": cut.Target.I, "wall": cut.At},
		})
	} else {
		_, err = fmt.Fprintf(out.Results, "source %s, written at %s\ntarget %d:%d, committed at %s\n",
			cut.Source, wall.Format(time.RFC3339Nano), cut.Target.T, cut.Target.I, cut.At.Format(time.RFC3339Nano))
	}
	if err != nil {
		return fmt.Errorf("print the cut: %w", err)
	}
	return nil
}
