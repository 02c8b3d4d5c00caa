package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
)

type statusCommand struct {
	linkFlags
	Address string        `name:"at" placeholder:"HOST:PORT" help:"Where the running process serves its status (--listen), also as https://HOST:PORT. Default: its host and port, as the metadata have them."`
	TLSCA   string        `name:"tls-ca" placeholder:"FILE" help:"PEM file with the authorities to trust, where processes serve HTTPS. Default: the system's."`
	MaxLag  time.Duration `default:"0s" help:"Fail if the target lags more than that, if that is not known, or if the target is not consistent. 0: fail for none."`
	JSON    bool          `name:"json" help:"Print a line of JSON for each link."`
	Watch   bool          `help:"Go on, every two seconds."`

	asker *asker
}

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// mostAsked is of how many links the processes are asked concurrently: one that is not there may take its time.
const mostAsked = 16

// statusLine is the status of one link.
type statusLine struct {
	Link    string         `json:"link"`
	Verdict status.Verdict `json:"verdict"`
	// LagSeconds is how far the target lags, null if that is not known.
	LagSeconds *float64 `json:"lagSeconds"`
	// Ended is true for a link that was cut over.
	Ended bool `json:"ended,omitempty"`
	// Back says which link it is the way back of, as the metadata have it; absent for others.
	Back *status.Back `json:"back,omitempty"`
	// From says where all that comes from: process or metadata.
	From string `json:"from"`
	// Leader is the process that runs the link, and Address where it was asked.
	Leader  string `json:"leader,omitempty"`
	Address string `json:"address,omitempty"`
	// Unasked is why the process could not be asked.
	Unasked string `json:"unasked,omitempty"`
	// Filters are the flags with which the link was created, as the metadata have them: what it mirrors.
	Filters string `json:"filters,omitempty"`
	// Status is the reply of the process.
	Status *status.Snapshot `json:"status,omitempty"`
}

// Run shows the status of one link, or of all.
func (c *statusCommand) Run(ctx context.Context, out cli.Output) error {
	var more []error
	if c.MaxLag < 0 {
		more = append(more, fmt.Errorf("--max-lag: %s is negative", c.MaxLag))
	}
	if c.Address != "" {
		_, at, found := strings.Cut(c.Address, "://")
		if !found {
			at = c.Address
		}
		if _, _, err := net.SplitHostPort(at); err != nil {
			more = append(more, fmt.Errorf("--at: %w", err))
		}
		if c.Link == "" {
			more = append(more, errors.New("--at: name the --link whose process that is"))
		}
	}
	if c.Link != "" && !checkpoint.ValidLink(c.Link) {
		more = append(more, fmt.Errorf("--link: %q: a name has letters, digits, dots, _ and -, 64 at most", c.Link))
	}
	var err error
	if c.asker, err = newAsker(c.TLSCA); err != nil {
		more = append(more, err)
	}
	set, err := c.open(ctx, more...)
	if err != nil {
		return err
	}
	defer set.Close()
	if c.Link != "" {
		if _, _, err := c.find(ctx, set); err != nil {
			return cli.Stopped(ctx, err)
		}
	}
	return c.run(ctx, out, set)
}

// run shows the status once, or continues.
func (c *statusCommand) run(ctx context.Context, out cli.Output, set *driver.Set) error {
	lines, err := repeat(ctx, out, c.Watch, watchEvery,
		func(ctx context.Context) ([]statusLine, error) { return c.look(ctx, set) },
		func(lines []statusLine) error { return c.print(out, lines) })
	if err != nil || c.Watch {
		return err
	}
	return c.judge(lines)
}

// look reads the status of the links.
func (c *statusCommand) look(ctx context.Context, set *driver.Set) ([]statusLine, error) {
	links, err := checkpoint.List(ctx, set, c.MetadataDB)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(l checkpoint.Listed) bool {
		return resync.IsPart(l.Link) && l.Link != c.Link || c.Link != "" && l.Link != c.Link
	})
	lines := make([]statusLine, len(links))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mostAsked)
	for i := range links {
		g.Go(func() (err error) {
			lines[i], err = c.lookAt(ctx, set, &links[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err //nolint:wrapcheck // it is of lookAt
	}
	return lines, nil
}

// filtersOf returns the filters that a link was created with, as flags of replicator run.
func filtersOf(state *checkpoint.State) string {
	if state.Filters == nil {
		return "filters that are not recorded: an earlier release has created the link"
	}
	return preflight.Flags(state.Filters)
}

func (c *statusCommand) lookAt(ctx context.Context, set *driver.Set, l *checkpoint.Listed) (statusLine, error) {
	line := statusLine{Link: l.Link, From: "metadata"}
	if l.Err != nil {
		line.Verdict = unreadable(l.Err)
		return line, nil //nolint:nilerr // the line has it
	}
	stored, leader, err := readStored(ctx, set, c.MetadataDB, l)
	if err != nil {
		return line, err
	}
	line.Leader, line.Ended, line.Back = leader, l.State.Over != nil, status.NewBack(l.State.Back)
	line.Filters = filtersOf(&l.State)
	if line.Ended {
		line.Verdict = stored.Verdict()
		return line, nil
	}
	process := line.Leader
	// One whose lease has ended may still run, and say why it has none. One that has released it has ended, and its host may take seconds
	// not to answer.
	if c.Address == "" && !stored.Lease.Record.Grant.Released {
		process = cmp.Or(process, stored.Lease.Record.Holder)
	}
	if process != "" || c.Address != "" {
		s, at, err := c.ask(ctx, l.Link, process)
		switch {
		case err == nil:
			line.From, line.Address, line.Status = "process", at, &s
			line.Verdict, line.LagSeconds = s.Verdict, s.AgeOfOldestUnappliedSeconds
			return line, nil
		case line.Leader != "" || c.Address != "":
			line.Unasked = err.Error()
		}
	}
	line.Verdict, line.LagSeconds = stored.Verdict(), stored.Lag()
	return line, nil
}

// ask asks the process that runs a link, and returns where it was.
func (c *statusCommand) ask(ctx context.Context, link, leader string) (status.Snapshot, string, error) {
	if c.Address != "" {
		s, err := c.asker.ask(ctx, place{address: c.Address}, c.Link, leader)
		return s, c.Address, err
	}
	return c.asker.find(ctx, link, leader)
}

func (c *statusCommand) print(out cli.Output, lines []statusLine) error {
	if c.JSON {
		w := json.NewEncoder(out.Results)
		for i := range lines {
			if err := w.Encode(lines[i]); err != nil {
				return fmt.Errorf("print the status: %w", err)
			}
		}
		return nil
	}
	if len(lines) == 0 {
		out.Complain("There is no link in %s of the target.", c.MetadataDB)
		return nil
	}
	var text strings.Builder
	for i := range lines {
		lines[i].describe(&text)
	}
	if _, err := fmt.Fprint(out.Results, text.String()); err != nil {
		return fmt.Errorf("print the status: %w", err)
	}
	return nil
}

// describe writes a link for people.
func (l *statusLine) describe(w *strings.Builder) {
	v := &l.Verdict
	_, _ = fmt.Fprintf(w, "%s  %s: %s\n", printable.Text(l.Link), printable.Text(string(v.Level)), printable.Text(v.Sentence))
	indent := strings.Repeat(" ", len(l.Link)+2)
	if v.Next != "" {
		_, _ = fmt.Fprintf(w, "%snext: %s\n", indent, printable.Text(v.Next))
	}
	for _, also := range v.Also {
		_, _ = fmt.Fprintf(w, "%salso: %s\n", indent, printable.Text(also))
	}
	if l.Back != nil {
		_, _ = fmt.Fprintf(w, "%sis %s\n", indent, printable.Text(l.Back.String()))
	}
	if l.Filters != "" {
		_, _ = fmt.Fprintf(w, "%smirrors with: %s\n", indent, printable.Text(l.Filters))
	}
	if l.Status != nil {
		describeFigures(w, indent, l.Status)
	}
	switch {
	case l.From == "process":
		_, _ = fmt.Fprintf(w, "%sasked %s\n", indent, printable.Text(l.Address))
	case l.Unasked != "":
		_, _ = fmt.Fprintf(w, "%sfrom the metadata: %s\n", indent, printable.Text(strings.ReplaceAll(l.Unasked, "\n", "; ")))
	}
}

// judge returns an error if a link is broken, or lags too much.
func (c *statusCommand) judge(lines []statusLine) error {
	var faults []error
	for i := range lines {
		l := &lines[i]
		switch {
		case l.Ended:
		case l.Verdict.Level == status.Broken:
			faults = append(faults, fmt.Errorf("%s: %s", printable.Text(l.Link), printable.Text(l.Verdict.Sentence)))
		case c.MaxLag > 0 && l.Status != nil && l.LagSeconds != nil && !l.Status.Consistent:
			faults = append(faults, fmt.Errorf("%s: the target is not consistent", printable.Text(l.Link)))
		case c.MaxLag > 0 && l.LagSeconds == nil:
			faults = append(faults, fmt.Errorf("%s: how far the target lags is not known", l.Link))
		case c.MaxLag > 0 && *l.LagSeconds > c.MaxLag.Seconds():
			faults = append(faults, fmt.Errorf("%s: the target lags %.1f s, more than %s", l.Link, *l.LagSeconds, c.MaxLag))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &cli.Error{Err: errors.Join(faults...), Code: cli.ExitFailed, Hint: "docs/troubleshooting.md has a section for each verdict."}
}
