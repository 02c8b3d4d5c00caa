package applier

import (
	"context"
	"log/slog"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/prometheus/client_golang/prometheus"
)

// Scope decides what is mirrored, and under which name.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
}

// Commands carries out what is alone: *ddl.Executor.
type Commands interface {
	InScope(op *oplog.Op) (bool, error)
	Apply(ctx context.Context, op *oplog.Op, again ddl.Again) error
}

// Config says how the log is applied. (Contract: the owner completes it.)
type Config struct {
	Target  call.Caller
	Hold    *checkpoint.Hold
	Catalog *catalog.Catalog
	Scope   Scope
	// Relaxed applies a source transaction as ordinary operations; otherwise it
	// reaches the target in one transaction where the target can take it.
	Relaxed bool
	// ReportDivergence goes on after a divergence; otherwise it ends the run.
	ReportDivergence bool
	// CopiedUntil is the entry up to which the log meets a moving copy.
	CopiedUntil oplog.OpTime
	Plan        plan.Options
	// FlushDocs, FlushBytes, CoalesceWindow bound one transaction of a writer.
	FlushDocs, FlushBytes, CoalesceWindow int
	// WindowBytes bounds what was handed to writers and is not applied yet.
	WindowBytes int64
	// Release is told the Bytes of each batch once all of it is applied.
	Release func(bytes int64)
	// Positions of Progress start here: the checkpoint.
	Start checkpoint.Progress

	Observer event.Observer
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Applier applies batches through the lanes of a Hold.
type Applier struct{}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Applier, error) { panic("not written yet") }

// Run applies batches from in until it is closed, or ctx is done, and sends on
// out how far everything has been applied: only the newest state, whenever out
// takes it, and the last one before it returns nil. It closes out.
func (a *Applier) Run(ctx context.Context, in <-chan batch.Batch, out chan<- Applied) error {
	panic("not written yet")
}

// Applied is a watermark, with what the writers' lanes had acknowledged then.
type Applied struct {
	checkpoint.Progress
	Lanes []checkpoint.Position
}
