package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
)

type leaseCommand struct {
	List    leaseListCommand    `cmd:"" help:"List the leases of links, and the named locks."`
	Show    leaseShowCommand    `cmd:"" help:"Show one of them."`
	Release leaseReleaseCommand `cmd:"" help:"Release a named lock whose holder will not."`
	Exec    leaseExecCommand    `cmd:"" help:"Run a command on one machine at a time: with a named lock."`
}

// linkPrefix is the beginning of the names of links' leases. No named lock has it.
const linkPrefix = "link/"

// leaseLine is one lease or lock in JSON.
type leaseLine struct {
	Name    string `json:"name"`
	Locked  bool   `json:"locked"`
	Process string `json:"process,omitempty"`
	Who     string `json:"who,omitempty"`
	Why     string `json:"why,omitempty"`
	// Term is the fencing token.
	Term     int64      `json:"term"`
	Renewals int64      `json:"renewals"`
	Since    *time.Time `json:"since,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
	ID       string     `json:"id,omitempty"`
}

// lineOf describes a named lock.
func lineOf(r locks.Record) leaseLine {
	if !r.IsLocked() {
		return leaseLine{Name: r.Name, Term: r.Term}
	}
	l := leaseLine{Name: r.Name, Locked: true, Process: r.Process, Who: r.Who, Why: r.Why, Term: r.Term, Renewals: r.Renewals, Since: &r.When, ID: r.ID.Hex()}
	if !r.Expires.IsZero() {
		l.Expires = &r.Expires
	}
	return l
}

// lineOfLink describes the lease of a link.
func lineOfLink(link string, s lease.Sighting) leaseLine {
	r := s.Record
	l := leaseLine{Name: linkPrefix + link, Locked: !s.Free, Process: r.Holder, Why: r.Grant.Why, Term: r.Term, Renewals: r.Grant.Duration}
	if !r.Grant.ID.IsZero() {
		since, expires := r.Grant.Granted.Time().UTC(), r.Grant.Expires.Time().UTC()
		l.Since, l.Expires, l.ID = &since, &expires, r.Grant.ID.Hex()
	}
	return l
}

// leaseLines returns all leases and locks.
func leaseLines(ctx context.Context, target mongo.Caller, db string) (lines []leaseLine, err error) {
	err = patiently(ctx, func() error {
		lines, err = readLeases(ctx, target, db)
		return err
	})
	return lines, err
}

// readLeases reads all leases and locks.
func readLeases(ctx context.Context, target mongo.Caller, db string) ([]leaseLine, error) {
	links, err := checkpoint.List(ctx, target, db)
	if err != nil {
		return nil, err
	}
	var lines []leaseLine
	for i := range links {
		store, err := checkpoint.New(checkpoint.Config{Target: target, DB: db, Link: links[i].Link})
		if err != nil {
			return nil, err
		}
		now, found, err := store.Look(ctx, lease.NewWatch(""))
		if err != nil {
			return nil, err
		}
		if found {
			lines = append(lines, lineOfLink(links[i].Link, now.Lease))
		}
	}
	list, err := locks.Sight(ctx, mongostore.New(target, db))
	for _, r := range list {
		lines = append(lines, lineOf(r))
	}
	return lines, err
}

func findLease(ctx context.Context, target mongo.Caller, db, name string) (leaseLine, error) {
	lines, err := leaseLines(ctx, target, db)
	if err != nil {
		return leaseLine{}, err
	}
	names := make([]string, len(lines))
	for i, l := range lines {
		if l.Name == name {
			return l, nil
		}
		names[i] = printable.Text(l.Name)
	}
	there := "has none"
	if len(names) > 0 {
		there = "has " + strings.Join(names, ", ")
	}
	return leaseLine{}, cli.Usage(fmt.Errorf("there is no lease or lock %s in %s of the target, which %s", printable.Text(name), db, there))
}

type leaseListCommand struct {
	targetFlags
	JSON bool `name:"json" help:"Print a line of JSON for each."`
}

// Run lists the leases and locks.
func (c *leaseListCommand) Run(ctx context.Context, out cli.Output) error {
	set, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer set.Close()
	lines, err := leaseLines(ctx, set, c.MetadataDB)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if c.JSON {
		return printJSON(out.Results, lines...)
	}
	if len(lines) == 0 {
		out.Complain("There is no lease and no lock in %s of the target.", c.MetadataDB)
		return nil
	}
	w := tabwriter.NewWriter(out.Results, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tTERM\tPROCESS\tSINCE\tEXPIRES\tWHY") // Flush returns the error
	for _, l := range lines {
		process, since, expires := "-", "-", "-"
		if l.Locked {
			process, since = printable.Text(l.Process), timeOf(l.Since)
			expires = timeOf(l.Expires)
		} else {
			l.Why = "-"
		}
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", printable.Text(l.Name), l.Term, process, since, expires, printable.Text(l.Why))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the leases: %w", err)
	}
	return nil
}

func timeOf(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func printJSON(w io.Writer, lines ...leaseLine) error {
	to := json.NewEncoder(w)
	for _, l := range lines {
		if err := to.Encode(l); err != nil {
			return fmt.Errorf("print the leases: %w", err)
		}
	}
	return nil
}

type leaseShowCommand struct {
	targetFlags
	Name string `arg:"" help:"Its name, as list prints it."`
	JSON bool   `name:"json" help:"Print a line of JSON."`
}

// Run shows one lease or lock.
func (c *leaseShowCommand) Run(ctx context.Context, out cli.Output) error {
	set, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer set.Close()
	l, err := findLease(ctx, set, c.MetadataDB, c.Name)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if c.JSON {
		return printJSON(out.Results, l)
	}
	return showLease(out.Results, l)
}

func showLease(w io.Writer, l leaseLine) error {
	if !l.Locked {
		_, err := fmt.Fprintf(w, "%s: no process has it. Its last term was %d.\n", printable.Text(l.Name), l.Term)
		return err
	}
	text := fmt.Sprintf("%s\n  process  %s\n  term     %d", printable.Text(l.Name), printable.Text(l.Process), l.Term)
	switch {
	case l.Expires == nil: // It is not renewed: its process shows that it is alive.
	case l.Renewals == 0:
		text += ", not renewed yet"
	case l.Renewals == 1:
		text += ", renewed once"
	default:
		text += fmt.Sprintf(", renewed %d times", l.Renewals)
	}
	text += "\n"
	if l.Since != nil {
		text += fmt.Sprintf("  since    %s\n", timeOf(l.Since))
	}
	if l.Expires != nil {
		text += fmt.Sprintf("  expires  %s, unless it is renewed\n", timeOf(l.Expires))
	} else {
		text += "  expires  15 minutes after the process has last shown a sign of life\n"
	}
	if l.Who != "" {
		text += "  who      " + printable.Text(l.Who) + "\n"
	}
	if l.Why != "" {
		text += "  why      " + printable.Text(l.Why) + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

type leaseReleaseCommand struct {
	targetFlags
	Name string `arg:"" help:"The name of a lock, as list prints it."`
	Yes  bool   `settings:"no" help:"Do not ask."`
}

// Run releases a lock.
func (c *leaseReleaseCommand) Run(ctx context.Context, out cli.Output) error {
	return c.release(ctx, out, os.Stdin)
}

func (c *leaseReleaseCommand) release(ctx context.Context, out cli.Output, in io.Reader) error {
	if link, ok := strings.CutPrefix(c.Name, linkPrefix); ok {
		return cli.Usage(fmt.Errorf("%s is the lease of a link: replicator run --link=%s --takeover takes it, and the target refuses what its process still writes", c.Name, link))
	}
	set, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer set.Close()
	return cli.Stopped(ctx, c.releaseIn(ctx, set, out, in))
}

func (c *leaseReleaseCommand) releaseIn(ctx context.Context, set *driver.Set, out cli.Output, in io.Reader) error {
	store := mongostore.New(set, c.MetadataDB)
	list, err := store.List(ctx, "")
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.Name != c.Name {
			continue
		}
		if !r.IsLocked() {
			return showLease(out.Results, lineOf(r))
		}
		if !c.Yes {
			if err := askRelease(out, in, r); err != nil {
				return err
			}
		}
		if err := store.Release(ctx, r.Name, r.ID); err != nil {
			return err
		}
		return c.released(ctx, store, out, r)
	}
	_, err = findLease(ctx, set, c.MetadataDB, c.Name)
	return err
}

// released reports the state of a lock that was released. Meanwhile its process may have given
// it back, and another one may have it.
func (c *leaseReleaseCommand) released(ctx context.Context, store *mongostore.Store, out cli.Output, was locks.Record) error {
	list, err := store.List(ctx, "")
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.Name == was.Name && r.IsLocked() {
			return &cli.Error{
				Err:  fmt.Errorf("%s is taken again, by another acquisition: %s", printable.Text(r.Name), printable.Text(r.String())),
				Code: cli.ExitUsage, Hint: "The one that was shown has ended. Release this one if you mean it, too.",
			}
		}
	}
	_, err = fmt.Fprintf(out.Results, "%s is released. Its next term is %d.\n", printable.Text(was.Name), was.Term+1)
	return err
}

// askRelease says what releasing a lock does, and asks.
func askRelease(out cli.Output, in io.Reader, r locks.Record) error {
	finds := "within 30 s, with its next sign of life"
	if r.TTL > 0 {
		finds = "with its next renewal, within " + (r.TTL / 5).String()
	}
	out.Complain("%s.\nIf that process is alive, it finds out %s, and ends what it does with the lock. Until then it and the next process "+
		"may both work. The next one has a larger term: only what checks terms refuses the first one's late writes; a link's data do.",
		printable.Text(r.String()), finds)
	_, _ = fmt.Fprint(out.Complaints, "Release it? Type yes: ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(answer) == "yes" {
		return nil
	}
	if err != nil {
		out.Complain("") // ends the line of the question
		err = fmt.Errorf("%s was not released: no answer (%w); --yes does not ask", printable.Text(r.Name), err)
	} else {
		err = fmt.Errorf("%s was not released: the answer was not yes", printable.Text(r.Name))
	}
	return &cli.Error{Err: err, Code: cli.ExitUsage, Hint: "Type yes, or use --yes in scripts."}
}
