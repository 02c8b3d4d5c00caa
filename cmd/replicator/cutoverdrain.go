package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/request"
)

// unblockHint is for a drain that did not succeed: the source must not stay blocked unnoticed.
const unblockHint = "The source stays as it is. If you do not go on, let it take writes again: db.adminCommand({setUserWriteBlockMode: 1, global: false}) on its primary."

// drain waits until the target has everything that the source has, and prints the proof.
func (c *cutoverCommand) drain(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state *checkpoint.State) error {
	err := c.sameSource(ctx, source, &state.Source)
	if err == nil && state.Over != nil {
		err = &checkpoint.OverError{Link: c.Link, Over: *state.Over}
	}
	if err != nil {
		return cli.Stopped(ctx, linkError{err})
	}
	d, err := cutover.Drain(ctx, c.drainConfig(out, source, store))
	if err != nil {
		return c.undrained(ctx, err)
	}
	return c.printDrained(out, &d)
}

// sameSource returns an error unless the source is the set that the link follows: blocking writes,
// proving or reverting anything on another set has no meaning for the link.
func (c *cutoverCommand) sameSource(ctx context.Context, source *driver.Set, was *checkpoint.Source) error {
	set, err := replset.Identify(ctx, mongo.Reads(source))
	if err != nil {
		return fmt.Errorf("ask the source for its set: %w", err)
	}
	if was.ReplicaSetID.IsZero() || was.ReplicaSetID.Equal(set.ReplicaSetID) {
		return nil
	}
	return otherSource(c.Link, was, &set)
}

// readSource returns an error if the source is known to be another set than the link follows, or followed, whose entries and
// documents would be taken for those of the link's source: optimes do not tell sets apart, as each logs an entry every ten seconds, and most are in a low term.
// A member that was started without its set does not say which one it is of.
func readSource(ctx context.Context, link string, source mongo.Caller, was *checkpoint.Source) error {
	set, err := replset.Identify(ctx, source)
	if err != nil || was.ReplicaSetID.IsZero() || set.ReplicaSetID.IsZero() || was.ReplicaSetID.Equal(set.ReplicaSetID) {
		return context.Cause(ctx)
	}
	return otherSource(link, was, &set)
}

func otherSource(link string, was *checkpoint.Source, set *replset.Identity) error {
	return linkError{fmt.Errorf("link %q follows set %s, and the source is the set %s, which has another id: %w", link, was.SetName, set.SetName, checkpoint.ErrOtherSource)}
}

func (c *cutoverCommand) drainConfig(out cli.Output, source *driver.Set, store *checkpoint.Store) *cutover.DrainConfig {
	return &cutover.DrainConfig{
		Source: source, Cuts: request.New(store), Link: c.Link, By: operator(), WritesStopped: c.WritesStopped, Within: c.Within,
		OnWait: func(why string) { out.Complain("%s: drain: %s.", c.Link, printable.Text(why)) },
	}
}

// undrained marks the error of a drain.
func (c *cutoverCommand) undrained(ctx context.Context, err error) error {
	what := fmt.Errorf("drain of link %s: %w", c.Link, err)
	switch {
	case errors.Is(err, cutover.ErrNotFrozen):
		return &cli.Error{
			Err: what, Code: cli.ExitFailed,
			Hint: "Block them: db.adminCommand({setUserWriteBlockMode: 1, global: true}) on its primary, from 6.0 on; or stop the applications, and give --writes-stopped.",
		}
	case errors.Is(err, cutover.ErrThawed):
		return &cli.Error{Err: what, Code: cli.ExitFailed, Hint: "The target may lack later writes, and the link continues. Stop all writes, then run the command again."}
	case errors.Is(err, request.ErrNoCut), errors.Is(err, context.DeadlineExceeded):
		hint := unblockHint
		if errors.Is(err, request.ErrNotBegun) {
			hint = c.startFirst() + ". " + hint
		}
		return &cli.Error{Err: errors.New(printable.Text(what.Error())), Code: cli.ExitFailed, Hint: hint}
	}
	return cli.Stopped(ctx, linkError{what})
}

func (c *cutoverCommand) printDrained(out cli.Output, d *cutover.Drained) error {
	s, t := d.Cut.Source.TS, d.Cut.Target
	var err error
	if c.JSON {
		err = json.NewEncoder(out.Results).Encode(map[string]any{
			"link": c.Link, "last": map[string]any{"t": d.Last.T, "i": d.Last.I}, "seconds": d.Took.Seconds(),
			"source": map[string]any{"t": s.T, "i": s.I, "term": d.Cut.Source.Term}, "target": map[string]any{"t": t.T, "i": t.I, "wall": d.Cut.At},
		})
	} else {
		_, err = fmt.Fprintf(out.Results, "Link %s is drained: the target has everything up to %d:%d, which was appended to the source's oplog after writes had been stopped.\n"+
			"At its cluster time %d:%d, which a majority has, it is the source as of %s. That took %s.\n",
			c.Link, d.Last.T, d.Last.I, t.T, t.I, d.Cut.Source, d.Took.Round(time.Millisecond))
	}
	if err != nil {
		return fmt.Errorf("print the proof: %w", err)
	}
	return nil
}
