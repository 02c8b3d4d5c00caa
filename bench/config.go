package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/memory"
)

const (
	defaultRounds       = 3
	defaultWriters      = 16
	defaultCeilingBatch = 500
	defaultRate         = 1000
	defaultDuration     = 10 * time.Second
	defaultCloneWorkers = 8
	// The defaults of package workload, repeated here so that they are shown.
	defaultSize       = 200
	defaultNamespaces = 4
)

func (c *Config) setDefaults() {
	setDefault(&c.Rounds, defaultRounds)
	setDefault(&c.Writers, defaultWriters)
	setDefault(&c.BatchOps, batcher.DefaultMaxOps)
	setDefault(&c.CeilingBatch, defaultCeilingBatch)
	setDefault(&c.BufferBytes, buffer.DefaultLimit)
	setDefault(&c.Memory, memory.Default)
	setDefault(&c.Rate, defaultRate)
	setDefault(&c.Duration, defaultDuration)
	setDefault(&c.CloneWorkers, defaultCloneWorkers)
	if c.Workload.File == "" {
		setDefault(&c.Workload.Size, defaultSize)
		setDefault(&c.Workload.Namespaces, defaultNamespaces)
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Filled returns a workload with its defaults filled in.
func Filled(w workload.Workload) workload.Workload {
	c := Config{Workload: w}
	c.setDefaults()
	return c.Workload
}

// validate returns all faults, joined.
func (c *Config) validate() error {
	faults := []error{c.Workload.Validate()}
	for _, f := range []struct {
		is   bool
		what string
	}{
		{c.Rounds < 1, fmt.Sprintf("%d rounds", c.Rounds)},
		{c.Writers < 1 || c.Writers > checkpoint.MaxWriters, fmt.Sprintf("%d writers: not between 1 and %d", c.Writers, checkpoint.MaxWriters)},
		{c.BatchOps < 1 || c.BatchOps > batcher.MostOps, fmt.Sprintf("%d operations of a batch: not between 1 and %d", c.BatchOps, batcher.MostOps)},
		{c.FlushDocs < 0, fmt.Sprintf("%d documents of a flush", c.FlushDocs)},
		{c.CeilingBatch < 1, fmt.Sprintf("%d operations of a bulk write", c.CeilingBatch)},
		{c.Memory < memory.MinLink, fmt.Sprintf("a memory of %d bytes: at least %d", c.Memory, memory.MinLink)},
		{c.BufferBytes < buffer.MinLimit, fmt.Sprintf("a buffer of %d bytes: at least %d", c.BufferBytes, buffer.MinLimit)},
		{c.Rate < 0, fmt.Sprintf("%g operations a second", c.Rate)},
		{c.Duration < 0, fmt.Sprintf("for %s", c.Duration)},
		{c.CutEvery < 0, fmt.Sprintf("%s between cuts", c.CutEvery)},
		{c.TakeRate < 0, fmt.Sprintf("%g operations a second taken", c.TakeRate)},
		{c.CloneWorkers < 1, fmt.Sprintf("%d ranges at a time", c.CloneWorkers)},
	} {
		if f.is {
			faults = append(faults, errors.New(f.what))
		}
	}
	for _, end := range []string{c.Source, c.Target} {
		if end != "" && end != memoryEnd && end != nullEnd && end != calibratedEnd {
			faults = append(faults, ends.CheckURI(end))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return &ConfigError{err}
	}
	return nil
}

// nameAfter makes a run's name of its kind, its preset, its ends, and the settings
// that differ from the preset or the default, the number of operations among them.
func nameAfter(run *result.Run, c Config) {
	parts := []string{run.Kind, cmp.Or(c.Workload.Name, "unnamed")}
	for _, end := range []result.End{run.Source, run.Target} {
		switch {
		case end.Set(): // the run's Source and Target say which one
			parts = append(parts, "set")
		case end.Kind != "":
			parts = append(parts, string(end.Kind))
		}
	}
	usual := Config{Workload: c.Workload}
	if preset, err := workload.Preset(c.Workload.Name); err == nil {
		usual.Workload = preset
	}
	usual.setDefaults()
	for _, v := range []struct {
		name       string
		now, usual int
	}{
		{"writers", c.Writers, usual.Writers},
		{"batch", c.BatchOps, usual.BatchOps},
		{"flush", c.FlushDocs, usual.FlushDocs},
		{"bulk", c.CeilingBatch, usual.CeilingBatch},
		{"buffer", int(c.BufferBytes), int(usual.BufferBytes)},
		{"take", int(c.TakeRate), 0},
		{"size", c.Workload.Size, usual.Workload.Size},
		{"namespaces", c.Workload.Namespaces, usual.Workload.Namespaces},
		{"ops", c.Workload.Ops, usual.Workload.Ops},
		{"documents", c.Workload.Documents, usual.Workload.Documents},
	} {
		if v.now != v.usual {
			parts = append(parts, v.name+"="+strconv.Itoa(v.now))
		}
	}
	run.Name = strings.Join(parts, "/")
	run.Settings["ops"] = float64(run.Ops)
}
