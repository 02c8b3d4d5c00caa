package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
)

type agentRetryCommand struct {
	fileFlag
	Link string `arg:"" help:"The link, as status prints it."`
}

// Run has the process that has a link, which has ended there, start it again.
func (c *agentRetryCommand) Run(ctx context.Context, out cli.Output, known *settings) error {
	file, set, err := c.open(ctx, known.environ)
	if err != nil {
		return err
	}
	defer set.Close()
	f, err := readFleet(ctx, set, file)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	links := f.Links
	i := slices.IndexFunc(links, func(l fleetLink) bool { return l.Link == c.Link })
	if i < 0 {
		return notRetried(fmt.Errorf("start link %s again: the file does not have it, and no process has", printable.Text(c.Link)))
	}
	l := &links[i]
	_, now, _, why := l.text()
	if l.Failure == nil {
		return notRetried(fmt.Errorf("start link %s again: it has not ended, as far as is known (%s: %s)", printable.Text(c.Link), now, why))
	}
	board := failureBoard{target: set, db: file.ControlDB, group: file.Group, member: l.Holder.Member}
	switch ends, err := board.retry(ctx, c.Link, l.Failure.At); {
	case err != nil:
		return cli.Stopped(ctx, err)
	case !ends:
		return notRetried(fmt.Errorf("start link %s again: it was started again just now, or has ended once more", printable.Text(c.Link)))
	}
	_, err = fmt.Fprintf(out.Results, "%s starts %s again within %s. It had ended with %s\n", printable.Text(l.Holder.Member), printable.Text(c.Link), 2*askEvery, why)
	return err
}

// notRetried says where to look.
func notRetried(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitUnexpected, Hint: "replicator agent status lists the links, with their states."}
}
