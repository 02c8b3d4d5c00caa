package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/verify/standing"
)

type guardCommand struct {
	linkFlags
	Clear bool `settings:"no" help:"Record that the writes that are printed have been dealt with."`
	JSON  bool `help:"Print one JSON object per line."`
}

// Run prints the namespaces that have foreign writes, and the newest of these.
func (c *guardCommand) Run(ctx context.Context, out cli.Output) error {
	links, _, release, err := c.openLink(ctx, nil)
	if err != nil {
		return err
	}
	defer release()
	store := guard.Store{Target: links.Target(), DB: links.DB(), Link: links.Link()}
	st, err := openWrites(ctx, &store)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if st == nil {
		return &cli.Error{
			Err:  fmt.Errorf("the target of link %s was not watched for foreign writes yet", c.Link),
			Code: cli.ExitUnexpected, Hint: "It is while the link runs with --guard=alarm or stop; its /status says why it is not.",
		}
	}
	if err := c.print(out, st); err != nil {
		return fmt.Errorf("print the foreign writes: %w", err)
	}
	if !c.Clear || !st.IsTouched() {
		return nil
	}
	upTo := st.UpTo()
	// What it was compared with before is out of date, even if no link runs to say so.
	marks := standing.Store{Target: links.Target(), DB: links.DB(), Link: links.Link()}
	if err := marks.BeforeClear(ctx, st); err != nil {
		return cli.Stopped(ctx, err)
	}
	if err := store.Clear(ctx, upTo); err != nil {
		return cli.Stopped(ctx, err)
	}
	out.Complain("%s: cleared up to %s; a link that runs takes it within seconds.", c.Link, time.Unix(int64(upTo.T), 0).UTC().Format(time.RFC3339))
	return nil
}

func (c *guardCommand) print(out cli.Output, st *guard.State) error {
	if c.JSON {
		return c.printJSON(out, st)
	}
	if !st.IsTouched() {
		_, err := fmt.Fprintf(out.Results, "No namespace has foreign writes that are not dealt with; %d were found since the link was made.\n", st.Total())
		return err
	}
	for _, t := range st.Touched {
		text := fmt.Sprintf("%s: %d, from %s to %s", t.NS, t.Count, t.First.Format(time.DateTime), t.Last.Format(time.DateTime))
		if t.Copying {
			text += "; it is being copied again"
		}
		if _, err := fmt.Fprintln(out.Results, printable.Text(text)); err != nil {
			return err
		}
	}
	if st.More > 0 {
		if _, err := fmt.Fprintf(out.Results, "%d more to other namespaces\n", st.More); err != nil {
			return err
		}
	}
	if len(st.Writes) > 0 {
		if _, err := fmt.Fprintln(out.Results, "The newest:"); err != nil {
			return err
		}
	}
	for i := range st.Writes {
		if _, err := fmt.Fprintln(out.Results, "  "+printable.Text(st.Writes[i].String())); err != nil {
			return err
		}
	}
	return nil
}

// printJSON prints the namespaces, then the newest writes.
func (c *guardCommand) printJSON(out cli.Output, st *guard.State) error {
	enc := json.NewEncoder(out.Results)
	for _, t := range st.Touched {
		if err := enc.Encode(map[string]any{
			"namespace": t.NS, "source": t.Source, "count": t.Count, "first": t.First, "last": t.Last, "copying": t.Copying,
		}); err != nil {
			return err
		}
	}
	for i := range st.Writes {
		w := &st.Writes[i]
		if err := enc.Encode(map[string]any{
			"write": w.Kind, "namespace": w.NS, "to": w.To, "id": w.ID, "session": w.Session, "txnNumber": w.Txn, "at": w.Wall,
		}); err != nil {
			return err
		}
	}
	return nil
}
