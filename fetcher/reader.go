package fetcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// ReaderConfig says how a member is read.
type ReaderConfig struct {
	// AwaitTime is how long the member waits for new entries before it sends an
	// empty reply. Zero means 5 s; the server's rule is half of the set's election
	// timeout, 30 s at most.
	AwaitTime time.Duration
	// ReplicaSetID is the id that the source's set must have. Zero means that of
	// the first reply.
	ReplicaSetID bson.ObjectID

	// ReplyBytes is the memory that a reply should take at most, in bytes. The size of
	// entries is not known before they are read: a reply may take more if they are larger
	// than those before. Zero means no limit but that of the server, 16 MiB.
	ReplyBytes int64

	// Without, if not nil, is a filter of the entries that are not read, except for the one
	// to start from. The member does not reply before it has another one, or after AwaitTime.
	Without bson.Raw

	Observer event.Observer
	Registry prometheus.Registerer
	// Meter measures the goroutine that reads. May be nil. While the member has more to
	// send, waiting for its reply counts as work.
	Meter *metric.Meter

	// restarts is how often in a row a cursor may be opened again. Zero means 1,
	// negative means never.
	restarts int
	// refindTime and networkTime: see the defaults.
	refindTime, networkTime time.Duration
	// onReply, if not nil, is called with each reply, empty ones too, after it has
	// passed the checks and before its entries are passed on. It decides whether the
	// member is left, and must not block.
	onReply func(Metadata) decision
	// onError, if not nil, is called with an error before the cursor is opened again,
	// and reports whether to leave the member instead. It must not block.
	onError func(err error) (leave bool)
}

// decision is the reaction to a reply that has passed the checks.
type decision int

const (
	// goOn passes the reply on and reads further.
	goOn decision = iota
	// stopAfter passes the reply on and ends.
	stopAfter
	// stopBefore ends, and passes nothing of the reply on.
	stopBefore
)

// The server's own numbers, and the bounds that it sets.
const (
	defaultAwait    = 5 * time.Second
	longestAwait    = 30 * time.Second
	defaultRestarts = 1
	// findTime is the maxTimeMS of the first find, defaultRefind that of the find that
	// opens the cursor again.
	findTime, defaultRefind = time.Minute, 2 * time.Second
	// defaultNetwork is how long after the time that a command may take its reply may
	// begin to arrive, and how long nothing of it may arrive then; after that it is
	// lost.
	defaultNetwork = 5 * time.Second
	// maxEntries is the batchSize. A parsed entry takes more memory than a small one's
	// bytes: with as many as fit into a reply of 16 MiB, a reply would take 48 MiB.
	maxEntries = 32 << 10
)

func (c *ReaderConfig) setDefaults() {
	c.AwaitTime = cmp.Or(c.AwaitTime, defaultAwait)
	c.restarts = cmp.Or(c.restarts, defaultRestarts)
	c.refindTime = cmp.Or(c.refindTime, defaultRefind)
	c.networkTime = cmp.Or(c.networkTime, defaultNetwork)
}

func (c *ReaderConfig) validate() error {
	if c.AwaitTime < time.Millisecond || c.AwaitTime > longestAwait {
		return fmt.Errorf("fetcher: an await time of %s: want 1ms to %s", c.AwaitTime, longestAwait)
	}
	return nil
}

// Reader reads the oplog of one member after the other, all of one set.
type Reader struct {
	cfg     ReaderConfig
	metrics *metrics
	// setID is the id of the set that is followed, zero while it is not known.
	setID bson.ObjectID
}

// NewReader checks cfg. It does no I/O and starts nothing.
func NewReader(cfg ReaderConfig) (*Reader, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Reader{cfg: cfg, metrics: newMetrics(cfg.Registry), setID: cfg.ReplicaSetID}, nil
}

// Result is how far a member was read.
type Result struct {
	// Last is the last entry that was passed on, or the one to start from: reading
	// continues from it.
	Last oplog.OpTime
	// Emitted reports whether Last has been passed on, so that the next Tail must not
	// pass it on again.
	Emitted bool
}

// Tail reads the oplog of a host from the entry from on, through src, which gets one
// command at a time, and calls emit with one Reply for each of the
// member's replies that has entries, in order; emit may block. The entry from must be
// the first one that the member shows. It is passed on itself only if first is true:
// the caller begins with it. A Reply, and the buffer that its entries are views into,
// belong to emit.
//
// Tail returns nil when the member has ended the cursor in order, or was left because
// another one is better; the cause of ctx when that is done; the error of emit; or else
// the fault of the member. [Result] says where to continue. Calls must not be
// concurrent.
func (r *Reader) Tail(ctx context.Context, host string, src mongo.Caller, from oplog.OpTime, first bool,
	emit func(ctx context.Context, r oplog.Reply) error,
) (Result, error) {
	t := &tail{
		cfg: &r.cfg, metrics: r.metrics, src: src, host: host, emit: emit,
		lsid: mongo.NewSessionID(), setID: r.setID, last: from, emitted: !first,
		batch: batchSize{limit: r.cfg.ReplyBytes, entry: firstEntry},
	}
	if from.IsNull() {
		return Result{Last: from}, fmt.Errorf("fetcher: tail %s: no entry to start from", t.host)
	}
	err := t.run(ctx)
	r.setID = t.setID // the next member must be of the same set
	res := Result{Last: t.last, Emitted: t.emitted}
	switch {
	case err == nil:
		why := "the member ended the cursor"
		if t.left {
			why = "the fetcher left the member"
		}
		r.cfg.Observer.Log(slog.LevelInfo, "stopped reading the oplog", slog.String(keyHost, t.host),
			slog.String(keyLast, t.last.String()), slog.String(keyReason, why))
		return res, nil
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	default:
		return res, fmt.Errorf("fetcher: tail %s after %s: %w", t.host, t.last, err)
	}
}
