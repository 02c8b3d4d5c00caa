package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease"
)

// commit drains the link and ends it. A link that has ended already is one that is committed.
func (c *cutoverCommand) commit(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store) error {
	err := c.sameSource(ctx, source, store)
	over := checkpoint.Over{}
	if err == nil {
		over, _, err = cutover.Commit(ctx, &cutover.CommitConfig{
			Drain: *c.drainConfig(out, source, store), Target: store.Target(), MetaDB: c.MetadataDB, Process: lease.NewProcess(""), NoReverse: c.Reverse == "none",
		})
	}
	if gone, is := errors.AsType[*checkpoint.OverError](err); is {
		over, err = gone.Over, nil
	}
	if err != nil {
		return c.undrained(ctx, fmt.Errorf("commit: %w", err))
	}
	return c.printOver(out, &over)
}

func (c *cutoverCommand) printOver(out cli.Output, o *checkpoint.Over) error {
	var err error
	if c.JSON {
		err = json.NewEncoder(out.Results).Encode(map[string]any{
			"link": c.Link, "at": o.At, "by": o.By,
			"source": map[string]any{"t": o.Source.TS.T, "i": o.Source.TS.I, "term": o.Source.Term},
		})
	} else {
		_, err = fmt.Fprintf(out.Results, "%s.\nThe processes of the link end by themselves, with exit code 6. Restore the deferred options, then let the applications use the target.\n"+
			"The source stays as it is: if its writes are blocked, they stay so.\n", overText(o))
	}
	if err != nil {
		return fmt.Errorf("print that the link has ended: %w", err)
	}
	return nil
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
