package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/mongoboard"
)

// open reads the file and connects to the control plane that it names.
func (f *fileFlag) open(ctx context.Context, environ []string) (*linksFile, *driver.Set, error) {
	file, err := f.load(environ)
	if err != nil {
		return nil, nil, err
	}
	options, err := file.control()
	if err != nil {
		return nil, nil, cli.Usage(err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return nil, nil, cli.Connect(fmt.Errorf("connect to the control plane: %w", err))
	}
	return file, set, nil
}

type agentStatusCommand struct {
	fileFlag
	JSON bool `name:"json" help:"Print JSON."`
}

// fleet has the links and the processes that run them.
type fleet struct {
	share.Status
	// Links are the partitions with the known state of the links: those of the file, and others
	// that processes have.
	Links []fleetLink `json:"links"`
	// Partitions hides those of the Status, which Links has.
	Partitions *struct{} `json:"partitions,omitempty"`
}

// fleetLink is one link of a fleet.
type fleetLink struct {
	Link string `json:"link"`
	// InFile is false for a link that the file does not have.
	InFile bool `json:"inFile"`
	// Member is the process that the link is assigned to, "" for none; Since and Why belong to that.
	Member string     `json:"member"`
	Since  *time.Time `json:"since,omitempty"`
	Why    string     `json:"why"`
	// Holder has the lease of the assignment, nil if no process has.
	Holder *share.Holder `json:"holder"`
	// Failure is how the link has ended there, nil while it runs. Waits is what it waits for that
	// has not begun, empty once it has.
	Failure *agent.Failure `json:"failure,omitempty"`
	Waits   string         `json:"waits,omitempty"`
	// nowhere means that Member has gone, and that no process has the link.
	nowhere bool
}

// Run shows which process has which link.
func (c *agentStatusCommand) Run(ctx context.Context, out cli.Output, known *settings) error {
	file, set, err := c.open(ctx, known.environ)
	if err != nil {
		return err
	}
	defer set.Close()
	f, err := readFleet(ctx, set, file)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if c.JSON {
		to := json.NewEncoder(out.Results)
		to.SetIndent("", "  ")
		if err := to.Encode(f); err != nil {
			return fmt.Errorf("print the status: %w", err)
		}
		return nil
	}
	if err := f.print(out.Results); err != nil {
		return fmt.Errorf("print the status: %w", err)
	}
	return nil
}

// readFleet reads what the control plane and the processes say of the links of a file.
func readFleet(ctx context.Context, set *driver.Set, file *linksFile) (*fleet, error) {
	var state *share.Status
	var failures map[string]memberFailure
	err := patiently(ctx, func() (err error) {
		if state, err = share.State(ctx, mongoboard.New(set, file.ControlDB), mongostore.New(set, file.ControlDB), file.Group); err == nil {
			failures, err = readFailures(ctx, set, file.ControlDB, file.Group)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return fleetOf(file, state, failures), nil
}

// fleetOf puts together what the file, the control plane and the processes say.
func fleetOf(file *linksFile, state *share.Status, failures map[string]memberFailure) *fleet {
	f := &fleet{Status: *state, Links: []fleetLink{}}
	there := map[string]bool{}
	for _, p := range state.Partitions {
		l := fleetLink{Link: p.Partition, Member: p.Member, Why: p.Why, Holder: p.Holder}
		if !p.Since.IsZero() {
			since := p.Since.UTC()
			l.Since = &since
		}
		if p.Member != "" && p.Holder == nil && !f.alive(p.Member) {
			l.Why, l.nowhere = f.gone(p.Member), true
		}
		if n, ok := failures[p.Partition]; ok && p.Holder != nil && n.Term == p.Holder.Term {
			if l.Waits = n.Waits; n.Waits == "" {
				l.Failure = &n.Failure
			}
		}
		there[p.Partition] = true
		f.Links = append(f.Links, l)
	}
	for _, l := range file.links {
		if !there[l.name] {
			f.Links = append(f.Links, fleetLink{Link: l.name, Why: f.unknown()})
		}
	}
	for i := range f.Links {
		l := &f.Links[i]
		l.InFile = slices.ContainsFunc(file.links, func(in *fileLink) bool { return in.name == l.Link })
	}
	slices.SortFunc(f.Links, func(a, b fleetLink) int { return cmp.Compare(a.Link, b.Link) })
	return f
}

const noCoordinator = "there is no coordinator: no agent runs, or one is about to"

// unknown returns the reason why a link of the file is not in the plan.
func (f *fleet) unknown() string {
	if f.Coordinator == nil {
		return noCoordinator
	}
	return "not in the links file of the coordinator, " + f.Coordinator.Member + ", or not yet"
}

// alive reports whether a process has the name of a member, and was heard of.
func (f *fleet) alive(member string) bool {
	return slices.ContainsFunc(f.Members, func(m share.MemberStatus) bool { return m.Member == member && m.Process != "" && m.Alive })
}

// gone returns the reason why no process has a link whose member has gone.
func (f *fleet) gone(member string) string {
	why := "it was assigned to " + member + ", which has gone; "
	if f.Coordinator == nil {
		return why + noCoordinator
	}
	return why + f.Coordinator.Member + ", the coordinator, assigns it to another process"
}

// print prints the fleet as text.
func (f *fleet) print(to io.Writer) error {
	coordinator := "none"
	if c := f.Coordinator; c != nil {
		coordinator = fmt.Sprintf("%s since %s, term %d", printable.Text(c.Member), timeOf(&c.Since), c.Term)
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(to, "group %s, coordinator: %s\n\n", printable.Text(f.Group), coordinator)
	_, _ = fmt.Fprintln(w, "MEMBER\tSTATE\tLINKS\tAT MOST\tSINCE") // Flush returns the error
	for _, m := range f.Members {
		since := "-"
		if !m.Joined.IsZero() {
			since = timeOf(&m.Joined)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", printable.Text(m.Member), memberState(m), m.Running, m.Limit, since)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(to)
	_, _ = fmt.Fprintln(w, "LINK\tMEMBER\tSTATE\tSINCE\tWHY")
	for _, l := range f.Links {
		member, state, since, why := l.text()
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", printable.Text(l.Link), member, state, since, why)
	}
	return w.Flush()
}

// memberState describes a member in a word.
func memberState(m share.MemberStatus) string {
	switch {
	case m.Process == "":
		return "drained, not there"
	case !m.Alive:
		return "gone"
	case m.Leaving:
		return "leaving"
	case m.Drained:
		return "drained"
	}
	return "alive"
}

// text describes a link.
func (l *fleetLink) text() (member, state, since, why string) {
	member, state, since, why = "-", "no process has it", "-", printable.Text(l.Why)
	if l.Since != nil {
		since = timeOf(l.Since)
	}
	switch {
	case l.Holder != nil:
		member, state, since = printable.Text(l.Holder.Member), "running", timeOf(&l.Holder.Since)
		if l.Holder.Member != l.Member {
			state = "moving"
		}
	case l.Member != "" && !l.nowhere:
		member, state = printable.Text(l.Member), "starting"
	}
	if l.Waits != "" {
		state, why = "waiting", printable.Text(l.Waits)
	}
	if f := l.Failure; f != nil {
		state = "ended"
		if f.Helps {
			state = "retrying"
		}
		why = printable.Text(fmt.Sprintf("exit code %d: %s. %s", f.Code, f.Error, f.Do))
	}
	if !l.InFile {
		why += " (not in this file)"
	}
	return member, state, since, why
}

type agentDrainCommand struct {
	fileFlag
	Member string `arg:"" help:"The process, as status prints it."`
}

// Run drains a member.
func (c *agentDrainCommand) Run(ctx context.Context, out cli.Output, known *settings) error {
	return c.drain(ctx, out, known.environ, c.Member, true)
}

type agentUndrainCommand struct {
	fileFlag
	Member string `arg:"" help:"The process, as status prints it."`
}

// Run undoes drain.
func (c *agentUndrainCommand) Run(ctx context.Context, out cli.Output, known *settings) error {
	return c.drain(ctx, out, known.environ, c.Member, false)
}

// drain drains a member, or undoes that, and says what follows.
func (f *fileFlag) drain(ctx context.Context, out cli.Output, environ []string, member string, yes bool) error {
	file, set, err := f.open(ctx, environ)
	if err != nil {
		return err
	}
	defer set.Close()
	board := mongoboard.New(set, file.ControlDB)
	change, said := share.Undrain, "%s gets links again.\n"
	if yes {
		change, said = share.Drain, "%s is drained: the others take its links as far as they have room, and it gets none until agent undrain.\n"
	}
	var members []share.Member
	err = patiently(ctx, func() (err error) {
		if err = change(ctx, board, file.Group, member); err == nil {
			members, _, err = board.Members(ctx, file.Group)
		}
		return err
	})
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if !slices.ContainsFunc(members, func(m share.Member) bool { return m.Name == member && m.Process != "" }) {
		out.Complain("No process has the name %s at this moment: it counts once one has.", printable.Text(member))
	}
	_, err = fmt.Fprintf(out.Results, said, printable.Text(member))
	return err
}
