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
		return cli.Usage(errors.New("--worse-allocs and --worse-ratio are shares: want 0 or more"))
	}
	return nil
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
	Profile  string `placeholder:"FILE" help:"Write a CPU profile of the last round."`
	InOne    bool   `name:"in-one-process" help:"Keep embedded ends in this process: what they cost is counted then."`
	Progress bool   `default:"true" negatable:"" help:"Say on standard error what is being done."`
}

// roundFlags are for commands that measure several rounds.
type roundFlags struct {
	Rounds int `default:"3" help:"How often it is done; the median counts."`
	watchFlags
}

// targetFlag names the target.
type targetFlag struct {
	Target    string `placeholder:"URI" help:"The target: a connection string, or null, a server that acknowledges everything. Empty: an embedded set."`
	Mongod    string `env:"MONGOD" placeholder:"PATH" help:"A server's binary: real servers are started in place of embedded sets, and a real secondary is timed."`
	Overwrite bool   `help:"Allow to drop the databases that the workload uses, where --source and --target name real servers."`
}

// sourceFlag names the source.
type sourceFlag struct {
	Source string `placeholder:"URI" help:"The source: a connection string. Empty: an embedded set."`
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

// config puts the flags together.
func (f *roundFlags) config(w workload.Workload, out cli.Output) (bench.Config, error) {
	c, _ := f.watchFlags.config(w, out) // they cannot be wrong
	c.Rounds = f.Rounds
	return c, positive(map[string]int{"rounds": f.Rounds})
}

func (f *watchFlags) config(w workload.Workload, out cli.Output) (bench.Config, error) {
	c := bench.Config{Workload: w, Profile: f.Profile, Progress: io.Discard}
	if f.Progress {
		c.Progress = out.Complaints
	}
	if !f.InOne {
		c.Serve = serveElsewhere
	}
	return c, nil
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

// watcher is implemented by watchFlags and roundFlags.
type watcher interface {
	config(w workload.Workload, out cli.Output) (bench.Config, error)
	profile() string
}

// begin makes the workload, of the preset if none is named, and the settings of the
// shared flags.
func (f *workFlags) begin(ctx context.Context, out cli.Output, line commandLine, to *outFlags, how watcher, preset string) (*benchRun, bench.Config, error) {
	w, err := f.make(preset)
	if err != nil {
		return nil, bench.Config{}, err
	}
	cfg, err := how.config(w, out)
	if err != nil {
		return nil, cfg, err
	}
	b, err := newBenchRun(ctx, out, line, w.Seed, to, how.profile())
	return b, cfg, err
}

func (f *watchFlags) profile() string { return f.Profile }
