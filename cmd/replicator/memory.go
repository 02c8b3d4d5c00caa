package main

import (
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// memoryLimit sets the garbage collector's memory limit. Without one the heap
// grows to twice its live size, and so to twice the budget of the buffer. It is
// not a hard limit: near it the collector only works more. GOMEMLIMIT, which the
// runtime reads itself, takes precedence. The zero value sets no limit.
type memoryLimit struct {
	mu sync.Mutex // guards the rest
	// base is the memory that a link needs, 0 for no limit; again are the
	// collections being resynced, each with a budget of its own.
	base  int64
	again map[oplog.Namespace]bool
}

// What a link needs in addition to its buffer, in bytes. The copy uses the buffer's
// budget: while it runs, the log is on disk.
const (
	openTransactions = 64 << 20     // beyond it they go to disk
	windows          = 3 * 32 << 20 // entries of writers: as read, as planned, as sent
	otherMemory      = 128 << 20    // the program, connections, a reply or two
	copiedAgain      = 128 << 20    // one collection
)

// begin sets the limit of a link with a buffer of so many bytes.
func (m *memoryLimit) begin(buffer int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.base, m.again = buffer+openTransactions+windows+otherMemory, map[oplog.Namespace]bool{}
	m.set()
}

func (m *memoryLimit) set() { debug.SetMemoryLimit(m.base + int64(len(m.again))*copiedAgain) }

// observe raises the limit while a collection is copied again.
func (m *memoryLimit) observe(e event.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.base == 0 {
		return
	}
	switch e := e.(type) {
	case resync.Began:
		m.again[e.NS] = true
	case resync.Ended:
		delete(m.again, e.NS)
	default:
		return
	}
	m.set()
}

// hasMemoryLimit reports whether the operator has set a limit for the memory.
func hasMemoryLimit(environ []string) bool {
	return slices.ContainsFunc(environ, func(pair string) bool {
		value, ok := strings.CutPrefix(pair, "GOMEMLIMIT=")
		return ok && value != ""
	})
}
