package main

import (
	"context"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/demo"
)

type demoCommand struct {
	Seed      uint64 `default:"1" help:"Seed for the writes."`
	Seconds   int    `default:"12" help:"For how long is written, in seconds."`
	Documents int    `default:"40000" help:"How many documents the source has before that."`
	Listen    string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Where to serve the page, ${default}; none: nowhere. Port 0: a free one."`
	Keep      bool   `help:"Leave both sets and the link running after the comparison, until Ctrl-C."`
}

// Run mirrors one embedded replica set into another one, and fails if they are not
// equal in the end.
func (c *demoCommand) Run(ctx context.Context, out cli.Output) error {
	if c.Seconds < 1 {
		return cli.Usage(fmt.Errorf("--seconds=%d: want 1 or more", c.Seconds))
	}
	if c.Documents < 1 {
		return cli.Usage(fmt.Errorf("--documents=%d: want 1 or more", c.Documents))
	}
	if c.Listen == "none" {
		c.Listen = ""
	}
	d, err := demo.New(demo.Config{
		Listen: c.Listen, Keep: c.Keep, Seed: c.Seed, Documents: c.Documents, Writing: time.Duration(c.Seconds) * time.Second, Out: out.Results, InPlace: cli.OnTerminal(out.Results),
	})
	if err != nil {
		return err
	}
	res, err := d.Run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return cli.Stopped(ctx, fmt.Errorf("show a link: %w", context.Cause(ctx)))
	case err != nil:
		return failedError(err)
	case !res.Compared.Equal():
		return failedError(fmt.Errorf("the target is not equal to the source, with seed %d", c.Seed))
	}
	return nil
}
