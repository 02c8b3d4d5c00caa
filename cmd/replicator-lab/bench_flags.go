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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/bench"
	benchends "github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/cli"
)

// outFlags say where the results go.
type outFlags struct {
	JSON      string `name:"json" default:"bench.json" placeholder:"FILE" help:"Write the results here. Empty: nowhere."`
	Benchstat string `placeholder:"FILE" help:"Write them in the format of benchstat too; - is standard output, in place of the table."`
	Compare   string `placeholder:"FILE" help:"Compare with these earlier results, and end with 4 if something has become worse."`
}

// seedFlag is for commands with a workload.
type seedFlag struct {
	Seed uint64 `default:"1" help:"Seed of everything random in the workload."`
}

// workFlags describe the workload.
type workFlags struct {
	seedFlag
	Preset     string `help:"A named workload; replicator-lab bench presets lists them. Default small-inserts; of mirror mixed, of catch-up backlog."`
	Workload   string `placeholder:"FILE" help:"A workload as JSON, in place of a preset."`
	Oplog      string `placeholder:"FILE" help:"A recorded oplog, BSON documents one after the other, in place of a preset."`
	Ops        *int   `placeholder:"N" help:"How many operations, in place of the preset's."`
	Documents  *int   `placeholder:"N" help:"How many documents there are before that."`
	Size       *int   `placeholder:"BYTES" help:"The median size of a document."`
	Namespaces *int   `placeholder:"N" help:"In how many collections."`
	Indexes    *int   `placeholder:"N" help:"How many indexes a collection has, not counting that on _id."`
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
		{"ops", 1, f.Ops, &w.Ops},
		{"documents", 0, f.Documents, &w.Documents},
		{"size", 1, f.Size, &w.Size},
		{"namespaces", 1, f.Namespaces, &w.Namespaces},
		{"indexes", 0, f.Indexes, &w.Indexes},
	} {
		if v.given == nil {
			continue
		}
		if *v.given < v.least {
			return w, cli.Usage(fmt.Errorf("--%s=%d: want %d or more", v.flag, *v.given, v.least))
		}
		*v.to = *v.given
	}
	if err := w.Validate(); err != nil {
		return w, cli.Usage(err)
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
		return workload.Workload{}, cli.Usage(errors.New("--preset, --workload and --oplog: give one of them"))
	case f.Oplog != "":
		return f.recorded()
	case f.Workload != "":
		return readWorkload(f.Workload)
	}
	w, err := workload.Preset(preset)
	if err != nil {
		return w, cli.Usage(err)
	}
	return w, nil
}

// recorded returns a recorded oplog as a workload. It reads it once, as a
// check.
func (f *workFlags) recorded() (workload.Workload, error) {
	w := workload.Workload{Name: strings.TrimLeft(filepath.ToSlash(filepath.Clean(f.Oplog)), "/."), File: f.Oplog}
	if f.Documents != nil || f.Size != nil || f.Namespaces != nil || f.Indexes != nil {
		return w, cli.Usage(errors.New("--oplog: of a recording nothing can be chosen but --ops"))
	}
	ops := 0
	log, err := workload.NewLog(w, benchends.First)
	for ok := true; ok && err == nil; {
		var n int
		_, n, ok, err = log.Next()
		ops += n
	}
	if err == nil && ops == 0 {
		err = fmt.Errorf("read %s: it has no operations", f.Oplog)
	}
	if err != nil {
		return w, benchInputError(err)
	}
	w.Ops = ops
	return w, nil
}

func readWorkload(name string) (workload.Workload, error) {
	var w workload.Workload
	text, err := os.ReadFile(name)
	if err != nil {
		return w, benchInputError(fmt.Errorf("read a workload: %w", err))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return w, benchInputError(fmt.Errorf("read the workload in %s: %w", name, err))
	}
	if w.Name == "" {
		w.Name = name
	}
	return w, nil
}

// watchFlags say how measurements are observed.
type watchFlags struct {
	InOne    bool `name:"in-one-process" help:"Keep embedded ends in this process: what they cost is counted then."`
	Progress bool `default:"true" negatable:"" help:"Report the progress on standard error."`
}

// progress is where progress is reported, serve the command that starts embedded ends.
func (f *watchFlags) progress(out cli.Output) io.Writer {
	if f.Progress {
		return out.Complaints
	}
	return io.Discard
}

func (f *watchFlags) serve() benchends.Serve {
	if f.InOne {
		return nil
	}
	return serveElsewhere
}

// measureFlags are those of each single measurement.
type measureFlags struct {
	workFlags
	Rounds  int    `default:"3" help:"How often it is done; the median counts."`
	Profile string `placeholder:"FILE" help:"Write a CPU profile of the last round."`
	watchFlags
	outFlags
}

// measure makes the workload, of the preset if none is named, puts the settings together,
// runs the measurement and writes its results.
func (f *measureFlags) measure(ctx context.Context, out cli.Output, line commandLine, preset string,
	run func(bench.Config) ([]*result.Run, error), settings ...func(*bench.Config) error,
) error {
	w, err := f.make(preset)
	if err != nil {
		return err
	}
	cfg := bench.Config{
		Workload: w, Profile: f.Profile, Rounds: f.Rounds, Progress: f.progress(out), Serve: f.serve(),
	}
	if err := positive(map[string]int{"rounds": f.Rounds}); err != nil {
		return err
	}
	b, err := newBenchRun(ctx, out, line, w.Seed, &f.outFlags, f.Profile)
	if err != nil {
		return err
	}
	for _, set := range settings {
		if err := set(&cfg); err != nil {
			return err
		}
	}
	runs, err := run(cfg)
	if err := b.add(err, runs...); err != nil {
		return err
	}
	return b.end()
}

// one and two make a list of a measurement's runs.
func one(run *result.Run, err error) ([]*result.Run, error) { return []*result.Run{run}, err }

func two(a, b *result.Run, err error) ([]*result.Run, error) { return []*result.Run{a, b}, err }

// targetFlag names the target.
type targetFlag struct {
	Target    string `placeholder:"URI" help:"The target: a connection string, or null, a server that acknowledges everything, or calibrated, one that also uses as much CPU as a real one (apply and catch-up). Empty: an embedded set."`
	Mongod    string `env:"MONGOD" placeholder:"PATH" help:"A server's binary: real servers are started in place of embedded sets, and a real secondary is timed."`
	Overwrite bool   `help:"Allow to drop the databases that the workload uses, where --source and --target name real servers."`
}

// sourceFlag names the source.
type sourceFlag struct {
	Source string `placeholder:"URI" help:"The source: a connection string. Empty: an embedded set."`
}

func (f *sourceFlag) into(c *bench.Config) error {
	c.Source = f.Source
	return nil
}

// writersFlag is for commands that write.
type writersFlag struct {
	Writers int `default:"16" help:"Number of writers, and of the goroutines of the plain driver."`
}

// laneFlags are those of the applier.
type laneFlags struct {
	writersFlag
	FlushDocs int `placeholder:"N" help:"Documents of a writer's transaction at most."`
	BatchOps  int `placeholder:"N" help:"Operations of a batch at most."`
}

// positive returns an error unless the flags, pairs of a name and a number, are
// above 0: in package bench 0 means the default.
func positive[T int | float64 | time.Duration](pairs map[string]T) error {
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if pairs[name] <= 0 {
			return cli.Usage(fmt.Errorf("--%s=%v: want more than 0", name, pairs[name]))
		}
	}
	return nil
}

func (f *writersFlag) into(c *bench.Config) error {
	c.Writers = f.Writers
	return positive(map[string]int{"writers": f.Writers})
}

func (f *laneFlags) into(c *bench.Config) error {
	c.FlushDocs, c.BatchOps = f.FlushDocs, f.BatchOps
	return f.writersFlag.into(c)
}

// ceilingFlag is for commands that measure the plain driver.
type ceilingFlag struct {
	CeilingBatch int `default:"500" help:"Operations of a bulk write of the plain driver."`
}

func (f *ceilingFlag) into(c *bench.Config) error {
	c.CeilingBatch = f.CeilingBatch
	return positive(map[string]int{"ceiling-batch": f.CeilingBatch})
}

func (f *targetFlag) into(c *bench.Config) error {
	c.Target, c.Mongod, c.Overwrite = f.Target, f.Mongod, f.Overwrite
	return f.check()
}

// check returns an error if the named server binary does not exist.
func (f *targetFlag) check() error {
	if f.Mongod == "" {
		return nil
	}
	if _, err := exec.LookPath(f.Mongod); err != nil {
		return cli.Usage(fmt.Errorf("--mongod (MONGOD): %w", err))
	}
	return nil
}
