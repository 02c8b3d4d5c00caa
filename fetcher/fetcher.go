package fetcher

import (
	"context"
	"fmt"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Source is one member of the source set. It is asked one thing at a time.
type Source interface {
	mongo.Caller
	// Host is the member's name, host:port.
	Host() string
}

// Fetcher reads the oplog of one member after the other.
type Fetcher struct {
	cfg     Config
	deps    Deps
	metrics *metrics
	// setID is the id of the set that is followed, zero while it is not known.
	setID bson.ObjectID
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config, deps Deps) (*Fetcher, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Fetcher{cfg: cfg, deps: deps, metrics: newMetrics(deps.Registry), setID: cfg.ReplicaSetID}, nil
}

// End is why reading a member has ended without an error.
type End int

const (
	// EndNone is an end by an error.
	EndNone End = iota
	// EndCursor is a cursor that the member has ended in order.
	EndCursor
	// EndStop is a Decision of the owner.
	EndStop
)

// String says why.
func (e End) String() string {
	switch e {
	case EndCursor:
		return "the member ended the cursor"
	case EndStop:
		return "the member is to be left"
	default:
		return "an error"
	}
}

// Result is how far a member was read.
type Result struct {
	// Last is the last entry handed on, or known before: reading goes on from it.
	Last oplog.OpTime
	// Emitted tells whether Last has been handed on, so that the next Tail must
	// not hand it on again.
	Emitted bool
	// Metadata is that of the last reply that passed the checks, HasMetadata
	// whether there was one.
	Metadata    Metadata
	HasMetadata bool
	// Why is EndNone if there is an error too.
	Why End
}

// Tail reads src from the entry from on, and gives emit one Reply for each of the
// member's replies that has entries, in order; emit may block. The entry from has
// to be the first one that the member shows. It is handed on itself only if first
// is true: the reader starts with it, and has not gone on from it. A Reply, and the
// buffer that its entries are views into, belong to emit.
//
// Tail returns nil when the cursor has ended in order or the owner wants to leave
// the member, the cause of ctx when that is done, the error of emit, and else what
// was wrong with the member; see [Result] for where to go on. One Tail at a time.
func (f *Fetcher) Tail(ctx context.Context, src Source, from oplog.OpTime, first bool,
	emit func(ctx context.Context, r oplog.Reply) error,
) (Result, error) {
	t := &tail{
		cfg: &f.cfg, deps: &f.deps, metrics: f.metrics,
		src: src, host: src.Host(), emit: emit,
		lsid: mongo.NewSessionID(), setID: f.setID,
		last: from, emitted: !first,
	}
	if from.IsNull() {
		return Result{Last: from}, fmt.Errorf("fetcher: tail %s: no entry to start from", t.host)
	}
	err := t.run(ctx)
	f.setID = t.setID // the next member must be of the same set
	res := Result{Last: t.last, Emitted: t.emitted, Metadata: t.meta, HasMetadata: t.hasMeta, Why: t.why}
	switch {
	case err == nil:
		f.deps.Observer.Log(slog.LevelInfo, "stopped reading the oplog", slog.String(keyHost, t.host),
			slog.String(keyLast, t.last.String()), slog.String(keyReason, t.why.String()))
		return res, nil
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	default:
		return res, fmt.Errorf("fetcher: tail %s after %s: %w", t.host, t.last, err)
	}
}
