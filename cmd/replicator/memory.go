package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/memory"
)

// processMemory is how much memory the process is to use, and the setting that decided that.
type processMemory struct {
	total int64
	from  memory.Source
}

// processMemory determines it: --memory, or the container's limit, but at most GOMEMLIMIT.
func (f *runFlags) processMemory(environ []string) (processMemory, error) {
	m, err := memoryOf(int64(f.Memory), 1, environ)
	if least := f.leastMemory(); err == nil && m.total < least {
		err = fmt.Errorf("%s leaves the process %s of memory, and it needs %s: raise it", m.from, mebibytes(m.total), cli.Size(least))
	}
	return m, err
}

// memoryOf determines it for a process with so many links.
func memoryOf(given int64, links int, environ []string) (processMemory, error) {
	runtime, err := runtimeLimit(environ)
	if err != nil {
		return processMemory{}, err
	}
	var m processMemory
	m.total, m.from = memory.Total(given, links, os.DirFS("/"), runtime)
	return m, nil
}

// apply limits Go's runtime to the total, and returns a function that restores the previous
// limit.
func (m processMemory) apply() (undo func()) { return memory.Apply(m.total) }

// runtimeLimit returns GOMEMLIMIT, 0 if there is none. The runtime reads it, too, and does
// not start with one that it does not understand.
func runtimeLimit(environ []string) (int64, error) {
	for _, pair := range slices.Backward(environ) {
		text, ok := strings.CutPrefix(pair, "GOMEMLIMIT=")
		if !ok {
			continue
		}
		if text == "" || text == "off" {
			return 0, nil
		}
		var size cli.Size
		if err := size.UnmarshalText([]byte(text)); err != nil {
			return 0, fmt.Errorf("GOMEMLIMIT: %w", err)
		}
		return int64(size), nil
	}
	return 0, nil
}

func mebibytes(n int64) cli.Size { return cli.Size(n >> 20 << 20) }
