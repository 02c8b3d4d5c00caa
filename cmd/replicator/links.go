package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	copied "github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
)

type linksCommand struct {
	targetFlags
}

// Run lists the links of a target.
func (c *linksCommand) Run(ctx context.Context, out cli.Output) error {
	set, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer set.Close()
	links, err := listed(ctx, set, c.MetadataDB)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if len(links) == 0 {
		out.Complain("There is no link in %s of the target.", c.MetadataDB)
		return nil
	}
	var under map[string]status.Cutover
	err = patiently(ctx, func() error {
		under, err = status.Cutovers(ctx, set, c.MetadataDB, "")
		return err
	})
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	w := tabwriter.NewWriter(out.Results, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "LINK\tSOURCE\tWRITERS\tAPPLIED\tOF\tSTATE") // Flush returns the error
	for i := range links {
		l := &links[i]
		if l.Err != nil {
			_, _ = fmt.Fprintf(w, "%s\t\t\t\t\tcannot be read: %s\n", printable.Text(l.Link), printable.Text(l.Err.Error()))
			continue
		}
		applied, of := positionOf(&l.State)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", l.Link, printable.Text(l.State.Source.SetName), l.State.Writers,
			applied, of, c.stateOf(ctx, set, l)+cutoverText(cutoverOf(under, l.Link)))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the links: %w", err)
	}
	return nil
}

// stateOf returns the state of a link, as far as it can be read.
func (c *linksCommand) stateOf(ctx context.Context, set *driver.Set, l *checkpoint.Listed) string {
	text := linkState(&l.State)
	if resync.IsPart(l.Link) {
		// It says nothing about the link that it belongs to.
		text = "a collection that another link copies again: " + text
	} else if lacking, err := ddl.ReadLacking(ctx, set, c.MetadataDB, l.Link); err != nil {
		text += "; cannot read which views, indexes and options it lacks: " + printable.Text(err.Error())
	} else {
		text += lackingText(lacking)
	}
	if l.State.Copy == nil || l.State.Copy.Phase != checkpoint.Copying || !l.State.Copy.Listed {
		return text
	}
	store, err := checkpoint.New(checkpoint.Config{Target: set, DB: c.MetadataDB, Link: l.Link})
	if err != nil {
		return text
	}
	done, total, err := copied.Counts(ctx, store)
	if err != nil {
		return text + "; cannot read which collections are done: " + printable.Text(err.Error())
	}
	return text + fmt.Sprintf(", %d of %d collections done", done, total)
}

// cutoverText says that a cutover of a link is under way.
func cutoverText(c *status.Cutover) string {
	if c == nil {
		return ""
	}
	return "; " + printable.Text(c.String())
}

// positionOf returns the optime up to which the target has everything, and its
// time.
func positionOf(s *checkpoint.State) (applied, of string) {
	at := s.Reached()
	if at.Applied.IsNull() {
		return "-", "-"
	}
	return at.Applied.String(), time.UnixMilli(at.AppliedWall).UTC().Format(time.RFC3339)
}

// leftOutNames are the collections of a list.
func leftOutNames(list []checkpoint.LeftOut) []string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = printable.Text(string(list[i].NS))
	}
	return names
}

// leftOutText names the collections that a link is not consistent of, and up to
// where the log was applied to the others.
func leftOutText(s *checkpoint.State) string {
	var copied, failed []checkpoint.LeftOut
	for _, out := range s.LeftOut {
		if out.Failed == "" {
			copied = append(copied, out)
		} else {
			failed = append(failed, out)
		}
	}
	var text strings.Builder
	if len(copied) > 0 {
		text.WriteString(", except collections that are copied again: " + strings.Join(leftOutNames(copied), ", "))
	}
	for _, out := range failed {
		_, _ = fmt.Fprintf(&text, ", but for %s, which could NOT be copied again and is left out: %s",
			printable.Text(string(out.NS)), printable.Text(out.Failed))
	}
	if text.Len() > 0 {
		text.WriteString("; the oplog was applied up to " + s.Applied.String())
	}
	return text.String()
}

// lackingText names the views, indexes and options of collections that the target of a link lacks.
func lackingText(l ddl.Lacking) string {
	var text strings.Builder
	for i := range l.Views {
		_, _ = fmt.Fprintf(&text, "; without the view %s: %s", printable.Text(l.Views[i].Name()), printable.Text(l.Views[i].Why))
	}
	for i := range l.Indexes {
		_, _ = fmt.Fprintf(&text, "; without the index %s of %s", printable.Text(l.Indexes[i].Index), printable.Text(string(l.Indexes[i].NS)))
	}
	for i := range l.Options {
		_, _ = fmt.Fprintf(&text, "; without the %s of %s", l.Options[i].Name, printable.Text(string(l.Options[i].NS)))
	}
	return text.String()
}

// linkState returns whether the target is consistent, and if not why.
func linkState(s *checkpoint.State) string {
	if s.Over != nil {
		return overText(s.Over)
	}
	text := "consistent"
	switch c := s.Copy; {
	case c != nil && c.Phase == checkpoint.Copying && !c.Listed:
		text = "not consistent: copying, not listed yet"
	case c != nil && c.Phase == checkpoint.Copying:
		text = "not consistent: copying"
	case c != nil && c.Phase == checkpoint.Replaying:
		text = "not consistent: copied, applying the oplog up to " + c.Stop.String()
	case s.Applied.Before(s.CopiedUntil):
		text = "not consistent: applying the oplog up to " + s.CopiedUntil.String()
	}
	text += leftOutText(s)
	if b := status.NewBack(s.Back); b != nil {
		text += "; " + printable.Text(b.String())
	}
	if c := s.Copy; c != nil && c.Number > 1 {
		text += fmt.Sprintf(" (copy %d: %s)", c.Number, printable.Text(c.Why))
	}
	return text
}
