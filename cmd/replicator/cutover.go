package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify/standing"
)

// cutoverCommand cuts a link over, and says whether it can be.
type cutoverCommand struct {
	linkFlags
	Source      string     `placeholder:"URI" help:"The source: connection string of a replica set."`
	SourceLogin loginFlags `embed:"" prefix:"source-"`

	DryRun          bool          `settings:"no" help:"Check every precondition of a cutover, and change nothing."`
	Drain           bool          `settings:"no" help:"Once writes to the source are blocked: wait until the target has everything, and prove it. The link goes on."`
	Resume          bool          `settings:"no" help:"Go on with a cutover that was interrupted."`
	Cancel          bool          `settings:"no" help:"Take a cutover back that has not passed its commit point: the source takes writes again, and the link goes on."`
	Status          bool          `settings:"no" help:"Print the steps of the link's newest cutover, and who works on it. It needs no --source."`
	FreezeCommand   string        `settings:"no" placeholder:"CMD" help:"A shell command that stops the applications' writes to the source, in place of its write block."`
	ThawCommand     string        `settings:"no" placeholder:"CMD" help:"The command that lets them write again, if the cutover is cancelled."`
	AwaitQuiet      bool          `settings:"no" help:"Wait until no client has written to the source for five seconds, in place of its write block."`
	ThawSource      bool          `settings:"no" help:"After the commit point lift the block of the old source."`
	Within          time.Duration `settings:"no" default:"1m" help:"How long to wait for writes to stop, and for the link."`
	MaxLag          time.Duration `settings:"no" default:"10s" help:"How far the target may lag."`
	RequireVerified time.Duration `settings:"no" default:"1h" help:"How long ago everything may have been compared last, without a difference (replicator verify --link, run --verify=continuous)."`
	WritesStopped   bool          `settings:"no" help:"The operator states that no client writes to the source: its write block is not needed."`
	Reverse         string        `settings:"no" default:"arm" enum:"arm,none" help:"arm: record where a link the other way begins without a copy, or do not end the link. none: there is no way back."`
	Verify          bool          `settings:"no" help:"Once writes are stopped, compare both sides unless everything was compared within --require-verified, and do not end the link if they differ. In place of the precondition verified."`
	Waive           []string      `settings:"no" placeholder:"NAME" help:"Accept that a precondition is not met: deferred-indexes, divergences, foreign-writes, lacking, target-disk or verified."`
	Address         string        `name:"at" settings:"no" placeholder:"HOST:PORT" help:"Where the running process serves its status (--listen). Default: its host and port, as the metadata have them."`
	TLSCA           string        `name:"tls-ca" settings:"no" placeholder:"FILE" help:"PEM file with the authorities to trust, where the process serves HTTPS. Default: the system's."`
	JSON            bool          `name:"json" settings:"no" help:"Print one JSON object."`
	violationsFlag
}

// Run does what the flags say, prints it, and returns an error if the link is not ready, not drained, or
// not cut over.
func (c *cutoverCommand) Run(ctx context.Context, out cli.Output) error {
	from, faults := c.check()
	ask, err := newAsker(c.TLSCA)
	store, state, release, err := c.openLink(ctx, append(faults, err)...)
	if err != nil {
		return err
	}
	defer release()
	if c.Status {
		return c.printRecord(ctx, out, store, state.Over)
	}
	source, err := driver.Open(ctx, from)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	defer source.Close()
	switch {
	case c.Drain:
		return c.drain(ctx, out, source, store, &state)
	case !c.DryRun:
		return c.move(ctx, out, source, store, state, ask)
	}
	report, err := c.report(ctx, out, source, store, state, ask)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if err := c.print(out, report); err != nil {
		return err
	}
	return c.judge(report)
}

// check returns the source, and the faults of the flags.
func (c *cutoverCommand) check() (source *driver.Options, faults []error) {
	begun := c.Resume || c.Cancel || c.Status // what they are about has begun
	for _, rule := range []struct {
		broken bool
		fault  string
	}{
		{count(c.DryRun, c.Drain, c.Resume, c.Cancel, c.Status) > 1, "give one of --dry-run, --drain, --resume, --cancel and --status, or none for a cutover"},
		{(begun || c.Drain) && len(c.Waive) > 0, "--waive: only with --dry-run, or where a cutover begins"},
		{count(c.WritesStopped, c.FreezeCommand != "", c.AwaitQuiet) > 1, "give one of --writes-stopped, --freeze-command and --await-quiet"},
		{
			begun && (c.WritesStopped || c.FreezeCommand != "" || c.ThawCommand != "" || c.AwaitQuiet || c.ThawSource),
			"--writes-stopped, --freeze-command, --thaw-command, --await-quiet, --thaw-source: only where a cutover begins, which goes on, and is cancelled, as it was begun",
		},
		{(begun || c.Drain) && c.Verify, "--verify: only with --dry-run, or where a cutover begins"},
		{c.ThawCommand != "" && c.FreezeCommand == "", "--thaw-command: only with --freeze-command"},
		{c.Within < time.Second || c.Within > request.MostCutWait, fmt.Sprintf("--within: %s is not between 1s and %s", c.Within, request.MostCutWait)},
		{c.MaxLag <= 0, fmt.Sprintf("--max-lag: %s is not more than 0", c.MaxLag)},
		{c.RequireVerified <= 0, fmt.Sprintf("--require-verified: %s is not more than 0; --waive verified does without", c.RequireVerified)},
	} {
		if rule.broken {
			faults = append(faults, errors.New(rule.fault))
		}
	}
	if err := cutover.CheckWaived(c.Waive); err != nil {
		faults = append(faults, fmt.Errorf("--waive: %w", err))
	}
	if c.Address != "" {
		faults = append(faults, checkAddress("--at", c.Address))
	}
	faults = append(faults, c.checkFile())
	if c.Status && c.Source == "" {
		return nil, faults // it is not asked
	}
	source, err := parseDeployment("source", c.SourceLogin.config(c.Source, c.SelectionTimeout))
	return source, append(faults, err)
}

// count returns how many are true.
func count(of ...bool) int {
	n := 0
	for _, is := range of {
		if is {
			n++
		}
	}
	return n
}

// report checks all preconditions.
func (c *cutoverCommand) report(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state checkpoint.State, ask *asker) (*cutover.Report, error) {
	target := store.Target()
	specs, err := ddl.ReadDeferred(ctx, target, c.MetadataDB, c.Link)
	if err != nil {
		return nil, err
	}
	cuts, err := store.Cuts(ctx)
	if err != nil {
		return nil, err
	}
	report := &cutover.Report{Link: c.Link, At: time.Now().UTC(), Violations: []cutover.Violation{}}
	list, err := c.ofLink(ctx, store, state, cuts, ask, report)
	if err != nil {
		return nil, err
	}
	servers, err := preflight.Cutover(ctx, preflight.CutoverConfig{
		Source: source, Target: target, Link: c.Link, MetaDB: c.MetadataDB, Convert: databasesOf(specs), WritesStopped: !c.blocks(),
	}, nil)
	if err != nil {
		return nil, linkError{err}
	}
	for i := range servers.Findings {
		list = append(list, cutover.FromFinding(&servers.Findings[i]))
	}
	if c.Reverse != record.NoReverse {
		back, err := cutover.Reversible(ctx, source, target, &state, c.MetadataDB)
		if err != nil {
			return nil, linkError{err}
		}
		list = append(list, back)
	}
	indexes := status.Precondition{Name: cutover.DeferredIndexes, Standing: status.NotKnown, Value: fmt.Sprintf("not checked: %d deferred options", len(specs))}
	if !slices.Contains(c.Waive, cutover.DeferredIndexes) {
		if indexes, report.Violations, err = c.checkIndexes(ctx, out, store, specs, newestOf(cuts)); err != nil {
			return nil, err
		}
	}
	waived := c.Waive
	if c.Verify {
		waived = append(slices.Clone(waived), "verified") // it is verified later
	}
	report.Sum(append(list, indexes), waived)
	return report, nil
}

// checkIndexes checks, at the newest cut, whether documents violate deferred unique indexes, and lists them where that is asked for.
func (c *cutoverCommand) checkIndexes(ctx context.Context, out cli.Output, store *checkpoint.Store, specs ddl.Specs, newest *checkpoint.Cut) (status.Precondition, []cutover.Violation, error) {
	again := func(ctx context.Context) (*checkpoint.Cut, error) {
		cuts, err := store.Cuts(ctx)
		if cut := newestOf(cuts); err == nil && cut != nil {
			newest = cut
		}
		return newest, err
	}
	indexes, violations, err := cutover.Indexes(ctx, store.Target(), specs, newest, again, time.Now())
	if err != nil || len(violations) == 0 {
		return indexes, violations, err
	}
	if err := c.listAll(ctx, out, store.Target(), specs, newest); err != nil {
		return indexes, violations, linkError{err}
	}
	return indexes, violations, nil
}

// newestOf returns the first of a link's cuts, nil for none.
func newestOf(cuts []checkpoint.Cut) *checkpoint.Cut {
	if len(cuts) == 0 {
		return nil
	}
	return &cuts[0]
}

// ofLink returns the preconditions that the process knows which leads, or, where it cannot be
// asked, the metadata.
func (c *cutoverCommand) ofLink(ctx context.Context, store *checkpoint.Store, state checkpoint.State, cuts []checkpoint.Cut, ask *asker, report *cutover.Report) ([]status.Precondition, error) {
	limits := status.ReadinessLimits{Lag: c.MaxLag, Verified: c.RequireVerified}
	stored, leader, err := readStored(ctx, store.Target(), c.MetadataDB, &checkpoint.Listed{Link: c.Link, State: state})
	if err != nil {
		return nil, err
	}
	m := cutover.Metadata{Link: c.Link, State: state, Cuts: cuts, At: time.Now()}
	switch last := &stored.Lease.Record; {
	case leader != "" || c.Address != "":
		var s status.Snapshot
		if c.Address != "" {
			s, err = ask.ask(ctx, place{address: c.Address}, c.Link, leader)
		} else {
			s, _, err = ask.find(ctx, c.Link, leader)
		}
		if err == nil {
			report.From = "process"
			err := c.readVerified(ctx, store, &s)
			return s.Readiness(limits).Preconditions, err
		}
		m.Unasked = err.Error()
	case last.Holder != "" && last.Grant.ID.IsZero():
		m.Unasked = last.Holder + " renews no lease, so that it is not known whether it runs"
	default:
		m.Idle = true
	}
	report.From = "metadata"
	if m.Lacking, err = ddl.ReadLacking(ctx, store.Target(), c.MetadataDB, c.Link); err != nil {
		return nil, err
	}
	if m.Verified, err = standing.Read(ctx, store.Target(), c.MetadataDB, c.Link); err != nil {
		return nil, err
	}
	return m.Preconditions(limits), nil
}

// readVerified reads the results of comparisons, and the divergences, from the metadata, which the process has read up to a minute ago:
// an operator has compared both sides, or copied a collection again, just before.
func (c *cutoverCommand) readVerified(ctx context.Context, store *checkpoint.Store, s *status.Snapshot) error {
	if s.Verified == nil { // the process has not read it yet
		return nil
	}
	st, err := standing.Read(ctx, store.Target(), c.MetadataDB, c.Link)
	if err != nil {
		return err
	}
	was := s.Verified
	s.Verified, s.Diverged = status.NewVerified(&st, time.Now()), status.NewDiverged(st.Diverged)
	s.Verified.Continuous, s.Verified.Budget, s.Verified.Waiting = was.Continuous, was.Budget, was.Waiting
	return nil
}

// databasesOf returns the databases of the target with deferred options, sorted.
func databasesOf(specs ddl.Specs) []string {
	var dbs []string
	for i := range specs {
		dbs = append(dbs, specs[i].NS.DB())
	}
	slices.Sort(dbs)
	return slices.Compact(dbs)
}

// marks are the first column of the table.
var marks = map[status.Standing]string{status.Met: "ok", status.Unmet: "NO", status.NotKnown: "?", status.Waived: "waived"}

func (c *cutoverCommand) print(out cli.Output, r *cutover.Report) error {
	if c.JSON {
		if err := json.NewEncoder(out.Results).Encode(r); err != nil {
			return fmt.Errorf("print the preconditions: %w", err)
		}
		return nil
	}
	w := tabwriter.NewWriter(out.Results, 0, 0, 2, ' ', 0)
	for i := range r.Preconditions {
		p := &r.Preconditions[i]
		age := ""
		if p.AgeSeconds != nil {
			age = fmt.Sprintf(" (%.1f s ago)", *p.AgeSeconds)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s%s\n", marks[p.Standing], p.Name, printable.Text(p.Value), age) // Flush returns the error
		if p.Next != "" {
			_, _ = fmt.Fprintf(w, "\t\tnext: %s\n", printable.Text(p.Next))
		}
	}
	for i := range r.Violations {
		v := &r.Violations[i]
		_, _ = fmt.Fprintf(w, "NO\t%s\tindex %s: the same key in _id %s and _id %s\n",
			printable.Text(v.Namespace), printable.Text(v.Index), printable.Text(v.IDs[0]), printable.Text(v.IDs[1]))
	}
	answer := "not ready for a cutover"
	if r.Ready {
		answer = "ready for a cutover"
	}
	_, _ = fmt.Fprintf(w, "Link %s, asked the %s: %s.\n", r.Link, r.From, answer)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the preconditions: %w", err)
	}
	return nil
}

// judge returns an error that names the preconditions that are not met.
func (c *cutoverCommand) judge(r *cutover.Report) error {
	if r.Ready {
		return nil
	}
	var names []string
	for i := range r.Preconditions {
		if p := &r.Preconditions[i]; p.Standing == status.Unmet || p.Standing == status.NotKnown {
			names = append(names, p.Name)
		}
	}
	return &cli.Error{
		Err:  fmt.Errorf("link %s is not ready for a cutover: %s", c.Link, strings.Join(names, ", ")),
		Code: cli.ExitFailed, Hint: "docs/cutover.md has a row for each precondition. Nothing was changed.",
	}
}
