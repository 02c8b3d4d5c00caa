package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/cli"
)

// benchCommand measures. Its flags cannot be set by the environment: a benchmark must
// not run on the target that the environment names for a link.
type benchCommand struct {
	Goals    benchGoals    `cmd:"" help:"Measure everything that the project has a goal for, and say which are met. Takes some minutes."`
	Pipeline benchPipeline `cmd:"" help:"Fetch, parse, batch, hash and hand out, into nothing."`
	Apply    benchApply    `cmd:"" help:"The applier alone, against any target; --ceiling times the plain driver too."`
	Ceiling  benchCeiling  `cmd:"" help:"The same operations written by goroutines of the plain driver: the limit to compare with."`
	Mirror   benchMirror   `cmd:"" help:"A link while its source is written to at a pace: how long after its commit an operation is applied."`
	CatchUp  benchCatchUp  `cmd:"" help:"A link that starts with a backlog, until it has caught up; --secondary times a secondary too."`
	Clone    benchClone    `cmd:"" help:"A copy of documents, compared with bare loops of the driver."`
	Presets  benchPresets  `cmd:"" help:"List the presets, or print one as JSON, to be changed and given to --workload."`
	Compare  benchCompare  `cmd:"" help:"Compare two results; ends with 4 if the newer one is worse."`
	Report   benchReport   `cmd:"" help:"Draw results: an HTML page with charts."`
	Serve    benchServe    `cmd:"" hidden:"" help:"Serve an embedded set for a measurement, until standard input ends."`
}

// commandLine is the command line of the program.
type commandLine []string

// shown is the command line without secrets.
func (c commandLine) shown() []string {
	list := []string{"replicator-lab"}
	for _, arg := range c {
		list = append(list, cli.WithoutPasswords(arg))
	}
	return list
}

// benchRun has the fields that all measurements share.
type benchRun struct {
	ctx    context.Context //nolint:containedctx // It lives as long as the command.
	out    cli.Output
	to     *outFlags
	old    *result.Report // the baseline, nil for none
	report *result.Report
}

// newBenchRun checks, before anything is measured, that the results and the other
// files can be written, and that the baseline can be read.
func newBenchRun(ctx context.Context, out cli.Output, line commandLine, seed uint64, to *outFlags, files ...string) (*benchRun, error) {
	b := &benchRun{ctx: ctx, out: out, to: to, report: &result.Report{
		Format: 1, Started: time.Now().UTC().Truncate(time.Second), Command: line.shown(), Seed: seed, Machine: meter.Machine(cli.Version()),
	}}
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
			return nil, benchFileError(err)
		}
	}
	return b, nil
}

// checkPlace returns an error if a file cannot be written.
func checkPlace(name string) error {
	if name == "" {
		return nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return cli.Usage(fmt.Errorf("write to %s: it is a folder", name))
	}
	info, err := os.Stat(filepath.Dir(name))
	if err == nil && !info.IsDir() {
		err = errors.New("it is no folder")
	}
	if err != nil {
		return cli.Usage(fmt.Errorf("write to %s: its folder: %w", name, err))
	}
	return nil
}

// end prints the results, and writes and compares them as the flags say.
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
		b.out.Complain("written to %s", b.to.JSON)
	}
	if b.old == nil {
		return nil
	}
	return compareResults(b.out, b.old, b.report)
}

func (b *benchRun) print(benchstat string) error {
	switch benchstat {
	case "-":
		return b.report.Benchstat(b.out.Results)
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
	return b.report.Table(b.out.Results)
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
		return cli.Usage(err)
	}
	return cli.Stopped(b.ctx, err)
}

// compareResults prints the differences; it returns a worseError if a figure is
// worse.
func compareResults(out cli.Output, old, now *result.Report) error {
	changes := result.Compare(old, now)
	if err := result.WriteChanges(out.Results, changes); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	worse := 0
	for i := range changes {
		if changes[i].Worse {
			worse++
		}
	}
	if worse > 0 {
		return worseError(fmt.Errorf("%d figures are worse than the limits allow", worse))
	}
	return nil
}
