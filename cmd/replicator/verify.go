package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify"
)

// verifyCommand compares two clusters.
type verifyCommand struct {
	sourceFlags `group:"Where"`
	Target      string     `group:"Where" placeholder:"URI" help:"The target: connection string of a replica set."`
	TargetLogin loginFlags `group:"Where" embed:"" prefix:"target-"`
	Link        string     `group:"Where" placeholder:"NAME" help:"Compare at the consistent cuts of this link, which runs. Without it nothing may write to either side."`
	MetadataDB  string     `group:"Where" name:"metadata-db" default:"replicator" help:"Database of the target for the links' metadata, which is left out."`

	Include       []string   `group:"What" sep:"none" placeholder:"PATTERN" help:"Compare these namespaces: shop, shop.orders, shop.log*, /regexp/. Default: everything."`
	Exclude       []string   `group:"What" sep:"none" placeholder:"PATTERN" help:"Do not compare these."`
	Map           []string   `group:"What" sep:"none" placeholder:"A=B" help:"Names on the target: shop=store, shop.a=store.b."`
	UsersAndRoles bool       `group:"What" help:"As for run. Users and roles themselves are not compared."`
	Resume        bool       `group:"What" settings:"no" help:"With --link: go on with a verification that was stopped. What it has compared is not compared again, and what it has found is only counted."`
	Sample        sampleSize `group:"What" settings:"no" placeholder:"N%" help:"Compare a sample of this size of each large collection, by _id."`

	IgnoreFieldOrder bool `group:"What" settings:"no" help:"Documents whose fields differ in their order only are equal."`

	Workers    int      `group:"Limits" name:"verify-workers" settings:"no" default:"4" help:"Ranges that are read at a time, if the memory is enough."`
	RangeBytes cli.Size `group:"Limits" name:"verify-range-bytes" settings:"no" default:"64MiB" help:"Size of the ranges that a large collection is split into."`
	Speed      cli.Size `group:"Limits" name:"max-bytes-per-second" settings:"no" default:"0" placeholder:"SIZE" help:"Limit of reading each side. 0: no limit. Under pressure of either side it is slower by itself."`
	Memory     cli.Size `group:"Limits" settings:"no" default:"256MiB" help:"Memory for documents: two replies of each side for each worker."`

	ShowValues bool `group:"Output" settings:"no" help:"Show values that differ. Without it only _ids, paths and types are shown."`
	JSON       bool `group:"Output" settings:"no" help:"Print a line of JSON for each difference, and one for the summary."`
}

// sampleSize is a part of a whole: 1%, or 0.01.
type sampleSize float64

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *sampleSize) UnmarshalText(text []byte) error {
	number, hundredths := strings.CutSuffix(string(text), "%")
	f, err := strconv.ParseFloat(number, 64)
	if hundredths {
		f /= 100
	}
	if err != nil || math.IsNaN(f) || f <= 0 || f >= 1 {
		return fmt.Errorf("%q: want a percentage, as 1%%, more than 0%% and less than 100%%", text)
	}
	*p = sampleSize(f)
	return nil
}

// mostShown is how many differences people are shown.
const mostShown = 20

// Run compares, and prints what differs.
func (c *verifyCommand) Run(ctx context.Context, out cli.Output) error {
	source, target, names, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	sides, err := openBoth(ctx, source, target)
	if err != nil {
		return err
	}
	defer sides.close()
	r := verifyReport{out: out.Results, json: c.JSON}
	cfg := verify.Config{
		Source: sides.source, Target: sides.target, Scope: names, Workers: c.Workers, RangeBytes: int64(c.RangeBytes), Memory: int64(c.Memory),
		Patience: verifyPatience, Waits: func(err error) { out.Complain("waiting until both clusters answer: %v", err) },
		AnyFieldOrder: c.IgnoreFieldOrder, Sample: float64(c.Sample), ShowValues: c.ShowValues, Found: r.found,
	}
	if c.Link != "" {
		if err := c.ofLink(ctx, sides, names, &cfg); err != nil {
			return cli.Stopped(ctx, err)
		}
	}
	pacer, err := pace.New(pace.Config{BytesPerSecond: int64(c.Speed), Source: sides.source, Target: sides.target})
	if err != nil {
		return cli.Usage(err)
	}
	cfg.Pacer = pacer
	v, err := verify.New(cfg)
	if err != nil {
		return cli.Usage(err)
	}
	summary, err := paced(ctx, pacer, v)
	if err != nil {
		return c.unfinished(ctx, err)
	}
	if err := r.summary(summary); err != nil {
		return err
	}
	return verdict(summary)
}

// unfinished is the error of a comparison that err has ended.
func (c *verifyCommand) unfinished(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && c.Link != "" && c.Sample == 0 && !c.IgnoreFieldOrder:
		return &cli.Error{Err: err, Code: cli.ExitUnexpected, Hint: "It was stopped before it was done. With --resume it goes on with what it has not compared."}
	case errors.Is(err, request.ErrNoCut):
		return &cli.Error{
			Err: errors.New(printable.Text(err.Error())), Code: cli.ExitUnexpected,
			Hint: "A link is compared while it runs: start it (replicator run), or remove what the message names, then run this again. With --on-divergence=report and --guard=alarm it runs although the target differs.",
		}
	}
	return cli.Stopped(ctx, err)
}

// verifyPatience is for how long a cluster may not answer: a comparison may have taken hours by then, and without a link it
// cannot be resumed.
const verifyPatience = 10 * time.Minute

// paced compares while the pacer watches both sides.
func paced(ctx context.Context, pacer *pace.Pacer, v *verify.Verifier) (*verify.Summary, error) {
	watching, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { _ = pacer.Run(watching) }) // it ends when the comparison does
	summary, err := v.Run(ctx)
	stop(errCompared)
	watch.Wait()
	return summary, err
}

var errCompared = errors.New("everything is compared")

// check checks the flags. The error has all faults.
func (c *verifyCommand) check() (source, target *driver.Options, names *scope.Scope, err error) {
	var faults []error
	keep := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	source, err = c.parse()
	keep(err)
	target, err = parseDeployment("target", c.TargetLogin.config(c.Target, c.SelectionTimeout))
	keep(err)
	if c.SelectionTimeout < time.Millisecond {
		keep(fmt.Errorf("--selection-timeout: %s is less than %s", c.SelectionTimeout, time.Millisecond))
	}
	filters := runFlags{Include: c.Include, Exclude: c.Exclude, Map: c.Map}
	keep(filters.checkPatterns())
	names, err = scope.New(scope.Config{Include: c.Include, Exclude: c.Exclude, Map: c.Map, UsersAndRoles: c.UsersAndRoles, MetaDB: c.MetadataDB})
	keep(err)
	if c.Resume && (c.Link == "" || c.Sample > 0 || c.IgnoreFieldOrder) {
		keep(errors.New("--resume: only with --link, whose metadata have the progress, and without --sample and --ignore-field-order"))
	}
	if err := checkSpeed("max-bytes-per-second", int64(c.Speed)); err != nil {
		keep(err)
	}
	if c.Link != "" && !checkpoint.ValidLink(c.Link) {
		keep(fmt.Errorf("--link: %q: a name has letters, digits, dots, _ and -, 64 at most", c.Link))
	}
	if c.Workers < 1 || c.Workers > 256 {
		keep(fmt.Errorf("--verify-workers: %d is not between 1 and 256", c.Workers))
	}
	if c.RangeBytes < 1<<20 {
		keep(fmt.Errorf("--verify-range-bytes: %s is less than %s", c.RangeBytes, cli.Size(1<<20)))
	}
	if c.Memory < verify.LeastMemory {
		keep(fmt.Errorf("--memory: %s is less than %s", c.Memory, cli.Size(verify.LeastMemory)))
	}
	return source, target, names, errors.Join(faults...)
}

// ofLink has a link compared: at its cuts, and as it is meant to make the target.
func (c *verifyCommand) ofLink(ctx context.Context, sides *bothSides, names *scope.Scope, cfg *verify.Config) error {
	link := linkFlags{Link: c.Link}
	link.MetadataDB = c.MetadataDB
	target := sides.target
	store, state, err := link.find(ctx, target)
	if err != nil {
		return err
	}
	if err := link.goesOn(&state); err != nil {
		return err
	}
	if err := readSource(ctx, c.Link, mongo.Reads(sides.source), &state.Source); err != nil {
		return err
	}
	if f := state.Filters; f != nil && state.Back != nil && len(c.Include)+len(c.Exclude)+len(c.Map) == 0 && !c.UsersAndRoles {
		if names, err = scope.New(cutover.ScopeOf(f, c.MetadataDB)); err != nil {
			return err
		}
		cfg.Scope = names
	}
	if mine := names.Fingerprint(); !strings.HasPrefix(state.Fingerprint, mine+";") {
		return cli.Usage(fmt.Errorf("link %s mirrors other namespaces than these (%s): it was created with %s; give --include, --exclude, --map and --users-and-roles as for replicator run", c.Link, names.Describe(), filtersOf(&state)))
	}
	cfg.Cuts = &verify.LinkCuts{Links: store, By: operator(), Patience: verifyPatience}
	cfg.Progress = &verify.Progress{Target: target, DB: c.MetadataDB, Link: c.Link, Resume: c.Resume}
	cfg.Deferred = func(ctx context.Context) (verify.Overlay, error) {
		specs, err := ddl.ReadDeferred(ctx, mongo.Reads(target), c.MetadataDB, c.Link)
		return specs.Overlay, err
	}
	return nil
}

// bothSides are the connections to two clusters.
type bothSides struct{ source, target *driver.Set }

func openBoth(ctx context.Context, source, target *driver.Options) (*bothSides, error) {
	from, err := driver.Open(ctx, source)
	if err != nil {
		return nil, cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	to, err := driver.Open(ctx, target)
	if err != nil {
		from.Close()
		return nil, cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	return &bothSides{from, to}, nil
}

func (b *bothSides) close() {
	b.source.Close()
	b.target.Close()
}

// verdict returns the error that stands for the result.
func verdict(s *verify.Summary) error {
	switch {
	case !s.Equal():
		return &cli.Error{Err: errors.New("source and target differ"), Code: cli.ExitFailed, Hint: "The output names what differs."}
	case s.Unchecked() > 0:
		return &cli.Error{
			Err:  fmt.Errorf("%d collections could not be compared; no other difference was found", s.Unchecked()),
			Code: cli.ExitUnexpected, Hint: "The table says why. Run it again, for those alone with --include.",
		}
	}
	return nil
}

// verifyReport prints a verification.
type verifyReport struct {
	out   io.Writer
	json  bool
	shown int
	more  int
}

// found prints a difference.
func (r *verifyReport) found(d *verify.Difference) error {
	var err error
	switch {
	case r.json:
		err = json.NewEncoder(r.out).Encode(d)
	case r.shown == mostShown:
		r.more++
	default:
		r.shown++
		_, err = fmt.Fprintln(r.out, printable.Text(differenceText(d)))
	}
	if err != nil {
		return fmt.Errorf("print a difference: %w", err)
	}
	return nil
}

// differenceText is a difference in a line.
func differenceText(d *verify.Difference) string {
	parts := []string{string(d.NS) + ":"}
	switch d.Kind {
	case verify.Missing, verify.Extra, verify.Differs:
		parts = append(parts, string(d.Kind), "_id "+string(d.ID))
	case verify.Order:
		parts = append(parts, "at another place", "_id "+string(d.ID))
	default:
		parts = append(parts, string(d.Kind), d.Name, d.What)
	}
	clauses := []string{strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")}
	for i := range d.Paths {
		clauses = append(clauses, pathText(&d.Paths[i]))
	}
	if d.MorePaths {
		clauses = append(clauses, "and more")
	}
	return strings.Join(clauses, "; ")
}

func pathText(p *verify.Path) string {
	name := cmp.Or(p.Path, "all of it")
	if p.Occurrence > 0 {
		name += fmt.Sprintf(" (field %d of that name)", p.Occurrence)
	}
	side := func(kind string, value json.RawMessage) string {
		if value != nil {
			return kind + " " + string(value)
		}
		return kind
	}
	source, target := side(p.Source, p.SourceValue), side(p.Target, p.TargetValue)
	switch p.What {
	case "missing":
		return name + ": missing, " + source + " at the source"
	case "extra":
		return name + ": " + target + ", none at the source"
	case "order":
		return name + ": at another place"
	case "bytes":
		return name + ": " + target + ", at the source " + source + ", equal to a server but of other bytes"
	case "value":
		if p.SourceValue == nil {
			return name + ": another " + target
		}
	}
	return name + ": " + target + ", at the source " + source
}

// summaryLine is the summary in JSON.
type summaryLine struct {
	Kind        string              `json:"kind"`
	Result      string              `json:"result"`
	Sample      float64             `json:"sample,omitempty"`
	Differences int64               `json:"differences"`
	Unchecked   int                 `json:"unchecked"`
	First       *verify.CutTimes    `json:"firstCut,omitempty"`
	Last        *verify.CutTimes    `json:"lastCut,omitempty"`
	Seconds     float64             `json:"seconds"`
	Total       verify.Tally        `json:"total"`
	Collections []verify.Collection `json:"collections"`
}

func resultText(s *verify.Summary) string {
	switch {
	case !s.Equal():
		return "different"
	case s.Unchecked() > 0:
		return "could not check"
	default:
		return "equal"
	}
}

// summary prints the rows of the collections, and the result.
func (r *verifyReport) summary(s *verify.Summary) error {
	total, catalog := s.Total()
	differences := total.Missing + total.Extra + total.Differs + total.Order + int64(catalog)
	var err error
	if r.json {
		line := summaryLine{
			Kind: "summary", Result: resultText(s), Sample: s.Sample, Differences: differences, Unchecked: s.Unchecked(),
			Seconds: s.Took.Seconds(), Total: total, Collections: s.Collections,
		}
		if s.First != nil {
			line.First, line.Last = s.First.Times(), s.Last.Times()
		}
		err = json.NewEncoder(r.out).Encode(line)
	} else {
		err = r.table(s, &total, differences)
	}
	if err != nil {
		return fmt.Errorf("print the summary: %w", err)
	}
	return nil
}

func (r *verifyReport) table(s *verify.Summary, total *verify.Tally, differences int64) error {
	var text strings.Builder
	if r.more > 0 {
		fmt.Fprintf(&text, "and %d more differences; --json prints all\n", r.more)
	}
	rows := []string{"NAMESPACE\tSOURCE\tTARGET\tEQUAL\tMISSING\tEXTRA\tDIFFERENT\tOTHER\tREAD\n"}
	for i := range s.Collections {
		c := &s.Collections[i]
		how := cmp.Or(c.How, c.Type)
		if c.Fault != "" {
			how = "NOT CHECKED: " + c.Fault
		}
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", printable.Text(string(c.NS)), c.SourceDocs, c.TargetDocs, c.EqualDocs,
			c.Missing, c.Extra, c.Differs, int64(c.Catalog)+c.Order, printable.Text(how)))
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(w, strings.Join(rows, ""))
	if err = errors.Join(err, w.Flush()); err != nil {
		return err
	}
	for _, name := range s.InvalidViews {
		fmt.Fprintf(&text, "%s: not compared: the source itself does not accept it as a view\n", printable.Text(name))
	}
	of := ""
	if s.Sample > 0 {
		of = fmt.Sprintf("in a sample of %g%% of each large collection: ", s.Sample*100)
	}
	fmt.Fprintf(&text, "%s%s: %d differences, %d documents equal, %d collections", of, resultText(s), differences, total.EqualDocs, len(s.Collections))
	if n := s.Unchecked(); n > 0 {
		fmt.Fprintf(&text, ", %d of them not checked", n)
	}
	fmt.Fprintf(&text, "; %s\n", s.Took.Round(time.Millisecond))
	if s.First != nil {
		fmt.Fprintf(&text, "read at cuts as of %d:%d to %d:%d of the source\n", s.First.Source.T, s.First.Source.I, s.Last.Source.T, s.Last.Source.I)
	}
	_, err = io.WriteString(r.out, text.String())
	return err
}
