package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/bench"
	benchends "github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
)

// benchCommand measures. Its flags are none of the settings of a link: nobody wants
// to measure on the target that the environment names for that.
type benchCommand struct {
	Goals    benchGoals    `cmd:"" help:"Measure everything that the project has a goal for, and say which are met. Takes some minutes."`
	Pipeline benchPipeline `cmd:"" help:"Fetch, parse, batch, hash and hand out, into nothing."`
	Apply    benchApply    `cmd:"" help:"The applier alone, against any target; --beside measures the plain driver in turns with it."`
	Ceiling  benchCeiling  `cmd:"" help:"The same operations written by goroutines of the plain driver: the limit to compare with."`
	Mirror   benchMirror   `cmd:"" help:"A link while its source is written to at a pace: how long after its commit an operation is applied."`
	CatchUp  benchCatchUp  `cmd:"" help:"A link that begins behind a backlog, until it has caught up; --secondary times a secondary too."`
	Clone    benchClone    `cmd:"" help:"A copy of documents, beside bare loops of the driver."`
	Presets  benchPresets  `cmd:"" help:"List the presets, or print one as JSON, to be changed and given to --workload."`
	Compare  benchCompare  `cmd:"" help:"Compare two results; ends with 4 if the newer one is worse."`
	Report   benchReport   `cmd:"" help:"Draw results: a page with charts, as SVG and PNG."`
	Serve    benchServe    `cmd:"" hidden:"" help:"Be an end of a measurement, until standard input ends."`
}

// commandLine is what the program was called with.
type commandLine []string

// shown is it without secrets.
func (c commandLine) shown() []string {
	list := []string{"replicator"}
	for _, arg := range c {
		list = append(list, withoutPasswords(arg))
	}
	return list
}

// outFlags say where the results go.
type outFlags struct {
	JSON      string `name:"json" default:"bench.json" placeholder:"FILE" help:"Write the results here. Empty: nowhere."`
	Benchstat string `placeholder:"FILE" help:"Write them in the format of benchstat too; - is standard output, in place of the table."`
	Compare   string `placeholder:"FILE" help:"Compare with these earlier results, and end with 4 if something has become worse."`
	limitFlags
}

// limitFlags say how much worse is too much.
type limitFlags struct {
	WorseAllocs float64 `default:"0.1" placeholder:"SHARE" help:"How much allocations of an operation may grow."`
	WorseRatio  float64 `default:"0.4" placeholder:"SHARE" help:"How much a ratio within a run may fall."`
}

func (f *limitFlags) limits() result.Limits {
	return result.Limits{Allocs: f.WorseAllocs, Ratio: f.WorseRatio}
}

func (f *limitFlags) checkLimits() error {
	if f.WorseAllocs < 0 || f.WorseRatio < 0 {
		return usageError{errors.New("--worse-allocs and --worse-ratio are shares: want 0 or more")}
	}
	return nil
}

// seedFlag is of what has a workload.
type seedFlag struct {
	Seed uint64 `default:"1" help:"Seed of everything random in the workload."`
}

// workFlags say what is written.
type workFlags struct {
	seedFlag
	Preset     string `help:"A named workload; replicator bench presets lists them. Default small-inserts; of mirror mixed, of catch-up backlog."`
	Workload   string `placeholder:"FILE" help:"A workload as JSON, in place of a preset."`
	Oplog      string `placeholder:"FILE" help:"A recorded oplog, BSON documents one after the other, in place of a preset."`
	Ops        *int   `placeholder:"N" help:"How many operations, in place of the preset's."`
	Documents  *int   `placeholder:"N" help:"How many documents there are before that."`
	Size       *int   `placeholder:"BYTES" help:"The median size of a document."`
	Namespaces *int   `placeholder:"N" help:"In how many collections."`
	IDs        string `name:"ids" placeholder:"TYPE" help:"The type of _id: objectid, int32, int64, string, uuid, decimal or document."`
	Indexes    *int   `placeholder:"N" help:"How many indexes a collection has beside that on _id."`
}

// make makes the workload, of the preset where none is named.
func (f *workFlags) make(preset string) (workload.Workload, error) {
	w, err := f.named(cmp.Or(f.Preset, preset))
	if err != nil {
		return w, err
	}
	w.Seed = f.Seed
	for _, v := range []struct {
		flag  string
		least int
		given *int
		to    *int
	}{
		{"ops", 1, f.Ops, &w.Ops}, {"documents", 0, f.Documents, &w.Documents}, {"size", 1, f.Size, &w.Size},
		{"namespaces", 1, f.Namespaces, &w.Namespaces}, {"indexes", 0, f.Indexes, &w.Indexes},
	} {
		if v.given == nil {
			continue
		}
		if *v.given < v.least {
			return w, usageError{fmt.Errorf("--%s=%d: want %d or more", v.flag, *v.given, v.least)}
		}
		*v.to = *v.given
	}
	if f.IDs != "" {
		w.IDs = workload.IDType(f.IDs)
	}
	if err := w.Validate(); err != nil {
		return w, usageError{err}
	}
	return w, nil
}

// named is the workload before other flags change it.
func (f *workFlags) named(preset string) (workload.Workload, error) {
	given := 0
	for _, name := range []string{f.Preset, f.Workload, f.Oplog} {
		if name != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return workload.Workload{}, usageError{errors.New("--preset, --workload and --oplog: give one of them")}
	case f.Oplog != "":
		return f.recorded()
	case f.Workload != "":
		return readWorkload(f.Workload)
	}
	w, err := workload.Preset(preset)
	if err != nil {
		return w, usageError{err}
	}
	return w, nil
}

// recorded is a recorded oplog. It is read once to know that it can be.
func (f *workFlags) recorded() (workload.Workload, error) {
	w := workload.Workload{Name: strings.TrimLeft(filepath.ToSlash(filepath.Clean(f.Oplog)), "/."), File: f.Oplog}
	if f.Documents != nil || f.Size != nil || f.Namespaces != nil || f.IDs != "" || f.Indexes != nil {
		return w, usageError{errors.New("--oplog: of a recording nothing can be chosen but --ops")}
	}
	log, err := workload.NewLog(w, benchends.First)
	for ok := true; ok && err == nil; {
		_, _, ok, err = log.Next()
	}
	if err != nil {
		return w, benchInputError{err}
	}
	return w, nil
}

func readWorkload(name string) (workload.Workload, error) {
	var w workload.Workload
	text, err := os.ReadFile(name)
	if err != nil {
		return w, benchInputError{fmt.Errorf("read a workload: %w", err)}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return w, benchInputError{fmt.Errorf("read the workload in %s: %w", name, err)}
	}
	if w.Name == "" {
		w.Name = name
	}
	return w, nil
}

// watchFlags say how what is measured is looked at.
type watchFlags struct {
	Profile  string `placeholder:"FILE" help:"Write a CPU profile of the last round, and show where the time went."`
	InOne    bool   `name:"in-one-process" help:"Keep embedded ends in this process: what they cost is counted then."`
	Progress bool   `default:"true" negatable:"" help:"Say on standard error what is being done."`
}

// roundFlags are of what is done several times.
type roundFlags struct {
	Rounds int `default:"3" help:"How often it is done; the median counts."`
	watchFlags
}

// targetFlag names the target.
type targetFlag struct {
	Target    string `settings:"no" placeholder:"URI" help:"The target: a connection string, or null, a server that acknowledges everything. Empty: an embedded set."`
	Mongod    string `env:"MONGOD" settings:"no" placeholder:"PATH" help:"A server's binary: real servers are started in place of embedded sets, and a real secondary is timed."`
	Overwrite bool   `help:"Allow to drop the databases that the workload uses, where --source and --target name real servers."`
}

// sourceFlag names the source.
type sourceFlag struct {
	Source string `settings:"no" placeholder:"URI" help:"The source: a connection string. Empty: an embedded set."`
}

// writersFlag is of what writes.
type writersFlag struct {
	Writers int `settings:"no" default:"16" help:"Number of writers, and of the goroutines of the plain driver."`
}

// laneFlags are those of the applier.
type laneFlags struct {
	writersFlag
	FlushDocs int `settings:"no" placeholder:"N" help:"Documents of a writer's transaction at most."`
	BatchOps  int `settings:"no" placeholder:"N" help:"Operations of a batch at most."`
}

// positive returns an error unless the flags, pairs of a name and a number, are more
// than none: in package bench that means the default.
func positive[T int | float64 | time.Duration](pairs map[string]T) error {
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if pairs[name] <= 0 {
			return usageError{fmt.Errorf("--%s=%v: want more than 0", name, pairs[name])}
		}
	}
	return nil
}

// benchRun is what all measurements share.
type benchRun struct {
	ctx    context.Context //nolint:containedctx // It lives as long as the command.
	out    output
	to     *outFlags
	old    *result.Report // what to compare with, nil for nothing
	report *result.Report
}

// newBenchRun makes sure, before anything is measured, that there is a place for the
// results, and for the other files, and something to compare them with.
func newBenchRun(ctx context.Context, out output, line commandLine, seed uint64, to *outFlags, files ...string) (*benchRun, error) {
	b := &benchRun{ctx: ctx, out: out, to: to, report: &result.Report{
		Format: 1, Started: time.Now().UTC().Truncate(time.Second), Command: line.shown(), Seed: seed, Machine: meter.Machine(version()),
	}}
	if err := to.checkLimits(); err != nil {
		return nil, err
	}
	if to.Benchstat != "-" {
		files = append(files, to.Benchstat)
	}
	for _, name := range append(files, to.JSON) {
		if err := checkPlace(name); err != nil {
			return nil, err
		}
	}
	if to.Compare != "" {
		var err error
		if b.old, err = result.Read(to.Compare); err != nil {
			return nil, benchFileError{err}
		}
	}
	return b, nil
}

// checkPlace tells whether a file can be where it is to be written.
func checkPlace(name string) error {
	if name == "" {
		return nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return usageError{fmt.Errorf("write to %s: it is a folder", name)}
	}
	info, err := os.Stat(filepath.Dir(name))
	if err == nil && !info.IsDir() {
		err = errors.New("it is no folder")
	}
	if err != nil {
		return usageError{fmt.Errorf("write to %s: its folder: %w", name, err)}
	}
	return nil
}

// config puts the flags together.
func (f *roundFlags) config(w workload.Workload, out output) (bench.Config, error) {
	c := f.watchFlags.config(w, out)
	c.Rounds = f.Rounds
	return c, positive(map[string]int{"rounds": f.Rounds})
}

func (f *watchFlags) config(w workload.Workload, out output) bench.Config {
	c := bench.Config{Workload: w, Profile: f.Profile, Profiled: f.Profile != "", Progress: io.Discard}
	if f.Progress {
		c.Progress = out.complaints
	}
	if !f.InOne {
		c.Serve = serveElsewhere
	}
	return c
}

func (f *writersFlag) into(c *bench.Config) error {
	c.Writers = f.Writers
	return positive(map[string]int{"writers": f.Writers})
}

func (f *laneFlags) into(c *bench.Config) error {
	c.FlushDocs, c.BatchOps = f.FlushDocs, f.BatchOps
	return f.writersFlag.into(c)
}

func (f *targetFlag) into(c *bench.Config) {
	c.Target, c.Mongod, c.Overwrite = f.Target, f.Mongod, f.Overwrite
}

// end prints what was measured, and writes and compares it as the flags say.
func (b *benchRun) end() error {
	if b.to.JSON != "" {
		if err := b.report.Write(b.to.JSON); err != nil {
			return err
		}
	}
	if err := b.print(b.to.Benchstat); err != nil {
		return err
	}
	if b.to.JSON != "" {
		b.out.complain("written to %s", b.to.JSON)
	}
	if b.old == nil {
		return nil
	}
	return compareResults(b.out, b.old, b.report, b.to.limits())
}

func (b *benchRun) print(benchstat string) error {
	switch benchstat {
	case "-":
		return b.report.Benchstat(b.out.results)
	case "":
	default:
		var text strings.Builder
		if err := b.report.Benchstat(&text); err != nil {
			return err
		}
		if err := os.WriteFile(benchstat, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("write the results for benchstat: %w", err)
		}
	}
	return b.report.Table(b.out.results)
}

// add adds runs, unless measuring them failed.
func (b *benchRun) add(err error, runs ...*result.Run) error {
	if err == nil {
		for _, r := range runs {
			b.report.Runs = append(b.report.Runs, *r)
		}
		return nil
	}
	if is[*bench.ConfigError](err) && b.ctx.Err() == nil {
		return usageError{err}
	}
	return stopped(b.ctx, err)
}

// compareResults prints what differs, and is a worseError if something is.
func compareResults(out output, old, now *result.Report, limits result.Limits) error {
	changes := result.Compare(old, now, limits)
	if err := result.WriteChanges(out.results, changes); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	worse := 0
	for i := range changes {
		if changes[i].Worse {
			worse++
		}
	}
	if worse > 0 {
		return worseError{fmt.Errorf("%d figures are worse than --worse-allocs and --worse-ratio allow", worse)}
	}
	return nil
}

// worseError is a comparison that shows something worse.
type worseError struct{ error }

func (e worseError) Unwrap() error { return e.error }

// benchFileError is a file of results that cannot be used.
type benchFileError struct{ error }

// benchInputError is a workload's file, or a recording, that cannot be used.
type benchInputError struct{ error }

func (e benchFileError) Unwrap() error  { return e.error }
func (e benchInputError) Unwrap() error { return e.error }
