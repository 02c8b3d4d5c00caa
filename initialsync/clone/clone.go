package clone

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Pacer slows the copy down.
type Pacer interface {
	// Wait returns when this many documents and bytes may be written.
	Wait(ctx context.Context, docs, bytes int) error
	// Took reports how long it took to read or write them.
	Took(side Side, d time.Duration, docs, bytes int)
}

// Side is one of the two clusters.
type Side string

// The sides.
const (
	Source Side = "source"
	Target Side = "target"
)

const (
	defaultRangeBytes = 512 << 20
	defaultFlushDocs  = 2000
	defaultFlushBytes = 8 << 20
	defaultMemory     = 256 << 20
	leastMemory       = 32 << 20
	// sendingPart is the fraction (1/n) of Memory that is for messages.
	sendingPart     = 4
	defaultRetryFor = 30 * time.Second
	// replyDocs limits a batch, so that the structs for many small documents do not
	// take more memory than the documents.
	replyDocs = 100_000
	// replyBytes is the maximum memory of a reply: a batch of 16 MiB, or one document
	// that is slightly larger, with its envelope and the document structs.
	replyBytes = 17<<20 + replyDocs*documentBytes
)

// Config says how collections are copied.
type Config struct {
	// Source runs commands on the member that is copied, Target on the target's
	// primary. Documents are written through lanes.
	Source, Target mongo.Caller
	// After is a cluster time that every read must reflect.
	After bson.Timestamp
	// Unchanged returns an error if Source is not the member, in the same state, that the
	// record ids of all ranges are of. Nil means that they always are.
	Unchanged func(ctx context.Context) error
	// RangeBytes is the size of a range. Zero means 512 MiB.
	RangeBytes int64
	// FlushDocs and FlushBytes limit one transaction. Zero means 2,000 and 8 MiB.
	FlushDocs, FlushBytes int
	// Memory limits the bytes that are read and not yet written, of all ranges
	// together, a quarter of it the messages to the target. Zero means 256 MiB; the minimum
	// is 32 MiB.
	Memory int64
	// RetryFor is how long a flush is retried that the target refuses for transient
	// reasons, and a read that the source interrupts. Zero means 30 s.
	RetryFor time.Duration
	// NoHoles: a capped collection is copied from its beginning (ErrHole) if it has
	// discarded documents before they could be read, after earlier ones were read: the
	// oplog will not delete the earlier ones from the target.
	NoHoles bool
	// Pacer may be nil.
	Pacer Pacer
	// Enter, if not nil, is called before each flush; it waits while the link is paused. Leave is
	// called after it.
	Enter    func(context.Context) (leave func(), err error)
	Observer event.Observer
	// Moved is called with each step of a range: the number of further documents and
	// bytes, and whether it is done. It must not block. May be nil.
	Moved func(r *progress.Range, docs, bytes int64)
}

func (c *Config) setDefaults() {
	if c.RangeBytes == 0 {
		c.RangeBytes = defaultRangeBytes
	}
	if c.FlushDocs == 0 {
		c.FlushDocs = defaultFlushDocs
	}
	if c.FlushBytes == 0 {
		c.FlushBytes = defaultFlushBytes
	}
	if c.Memory == 0 {
		c.Memory = defaultMemory
	}
	if c.RetryFor == 0 {
		c.RetryFor = defaultRetryFor
	}
}

func (c *Config) validate() error {
	var errs []error
	if c.Source == nil || c.Target == nil {
		errs = append(errs, errors.New("both clusters are needed"))
	}
	if c.RangeBytes < 0 || c.FlushDocs < 0 || c.FlushBytes < 0 || c.RetryFor < 0 {
		errs = append(errs, errors.New("sizes and times are not negative"))
	}
	if c.Memory < leastMemory {
		errs = append(errs, fmt.Errorf("memory of %d bytes: the least is %d", c.Memory, leastMemory))
	}
	if len(errs) > 0 {
		return fmt.Errorf("clone: %w", errors.Join(errs...))
	}
	return nil
}

// Lane is a *progress.Lane.
type Lane interface {
	// Session returns the lane's session, to write with.
	Session() *mongo.Session
	// MoveRange must be the first call in a transaction: it moves the range's document
	// from r to next, if the term is still ours.
	MoveRange(ctx context.Context, txn *mongo.Txn, r, next *progress.Range) error
}

// Cloner copies ranges. It is safe for concurrent use, with one call of Copy at a time
// for each lane.
type Cloner struct {
	cfg Config
	// lsid is the session of all cursors: a cursor can be used only in the session that
	// created it, and one session may have many.
	lsid bson.Raw
	// memory is the budget for replies that are being read, or are read and not
	// written.
	memory *semaphore.Weighted
	// sending is the budget for messages on the way to the target, of sendingBytes. It is
	// acquired last, and so is always released.
	sending      *semaphore.Weighted
	sendingBytes int64
	// batch is the maximum number of documents in a reply.
	batch int32
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Cloner, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	sending := cfg.Memory / sendingPart
	return &Cloner{
		cfg: cfg, lsid: mongo.NewSessionID(), batch: replyDocs, memory: semaphore.NewWeighted(cfg.Memory - sending),
		sending: semaphore.NewWeighted(sending), sendingBytes: sending,
	}, nil
}

// took reports to the pacer.
func (c *Cloner) took(side Side, start time.Time, docs, bytes int) {
	if c.cfg.Pacer != nil {
		c.cfg.Pacer.Took(side, time.Since(start), docs, bytes)
	}
}

// Copy copies the rest of a range, through a lane, to the namespace `to` of the target.
// If the source has dropped the collection it returns ErrGone; if a capped one must be
// copied from its beginning, ErrHole. It returns the range as it is then.
func (c *Cloner) Copy(ctx context.Context, lane Lane, coll *progress.Collection, to oplog.Namespace, r progress.Range) (progress.Range, error) {
	r, err := c.copyRange(ctx, lane, coll, to, r)
	if err != nil {
		return r, fmt.Errorf("clone %s (%s) to %s, range %d: %w", coll.NS, coll.UUID, to, r.Index, err)
	}
	return r, nil
}

func (c *Cloner) copyRange(ctx context.Context, lane Lane, coll *progress.Collection, to oplog.Namespace, r progress.Range) (progress.Range, error) {
	if r.Done {
		return r, nil
	}
	sp, err := parseSpec(r.Spec)
	if err != nil {
		return r, err
	}
	at, err := parsePlace(r.At)
	if err != nil {
		return r, err
	}
	rd := newReader(c, coll, sp, at)
	w := &writer{Cloner: c, lane: lane, to: to, r: r, at: at, direct: isDirect(coll, to), capped: isCapped(coll), limit: c.cfg.FlushDocs}
	if w.capped {
		if err := rd.align(ctx, to); err != nil {
			return r, goneAs(err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	pages := make(chan *page)
	g.Go(func() error {
		defer close(pages)
		return rd.run(ctx, pages)
	})
	g.Go(func() error { return w.run(ctx, pages) })
	err = g.Wait()
	return w.r, err
}

// goneAs classifies an error of a read by UUID.
func goneAs(err error) error {
	if servererr.IsNoNamespace(err) {
		return ErrGone
	}
	return err
}

func isCapped(coll *progress.Collection) bool {
	capped, _ := rawbson.Lookup(coll.Options, "capped")
	return capped.Truth()
}

// isClustered reports whether a collection is stored by _id: its record ids are not
// numbers, and its natural order is that of _id.
func isClustered(coll *progress.Collection) bool {
	_, clustered := rawbson.Lookup(coll.Options, "clusteredIndex")
	return clustered
}

// isDirect reports whether transactions cannot write to a collection.
func isDirect(coll *progress.Collection, to oplog.Namespace) bool {
	return oplog.IsServerDB(to.DB()) || isCapped(coll) || strings.HasPrefix(to.Collection(), "system.")
}
