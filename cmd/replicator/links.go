package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/printable"
)

type linksCommand struct {
	targetFlags
}

// Run lists the links of a target.
func (c *linksCommand) Run(ctx context.Context, out output) error {
	set, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer set.Close()
	links, err := checkpoint.List(ctx, set, c.MetadataDB)
	if err != nil {
		return stopped(ctx, err)
	}
	if len(links) == 0 {
		out.complain("There is no link in %s of the target.", c.MetadataDB)
		return nil
	}
	w := tabwriter.NewWriter(out.results, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "LINK\tSOURCE\tWRITERS\tAPPLIED\tOF\tSTATE") // Flush says what goes wrong
	for i := range links {
		l := &links[i]
		if l.Err != nil {
			_, _ = fmt.Fprintf(w, "%s\t\t\t\t\tcannot be read: %s\n", printable.Text(l.Link), printable.Text(l.Err.Error()))
			continue
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", l.Link, printable.Text(l.State.Source.SetName), l.State.Writers,
			l.State.Applied, time.UnixMilli(l.State.AppliedWall).UTC().Format(time.RFC3339), linkState(&l.State)+c.counts(ctx, set, l))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the links: %w", err)
	}
	return nil
}

// counts says how far a copy is, and nothing where that cannot be learned.
func (c *linksCommand) counts(ctx context.Context, set *mdb.Set, l *checkpoint.Listed) string {
	if l.State.Copy == nil || l.State.Copy.Phase != checkpoint.Copying || !l.State.Copy.Listed {
		return ""
	}
	store, err := checkpoint.New(checkpoint.Config{Target: set, DB: c.MetadataDB, Link: l.Link})
	if err != nil {
		return ""
	}
	done, total, err := store.CopyCounts(ctx)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", %d of %d collections done", done, total)
}

// linkState says whether the target is consistent, and if not why.
func linkState(s *checkpoint.State) string {
	text := "consistent"
	switch c := s.Copy; {
	case c != nil && c.Phase == checkpoint.Copying && !c.Listed:
		text = "not consistent: copying, not listed yet"
	case c != nil && c.Phase == checkpoint.Copying:
		text = "not consistent: copying"
	case c != nil && c.Phase == checkpoint.Replaying:
		text = "not consistent: copied, applying the log up to " + c.Stop.String()
	case s.Applied.Before(s.CopiedUntil):
		text = "not consistent: applying the log up to " + s.CopiedUntil.String()
	}
	if c := s.Copy; c != nil && c.Number > 1 {
		text += fmt.Sprintf(" (copy %d: %s)", c.Number, printable.Text(c.Why))
	}
	return text
}
