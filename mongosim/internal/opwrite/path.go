package opwrite

import (
	"errors"
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Config configures a Path. All fields are required unless said otherwise.
type Config struct {
	Store   *storage.Store
	Dialect Dialect
	// Term is the term in which this member is primary; called within Store.Write,
	// when the first entry is about to be written. An error (NotWritablePrimary)
	// refuses the write.
	Term func() (int64, error)
	// Now is the wall clock, NewUUID the source of collection and build UUIDs: it
	// is called once for each, in the order of their entries.
	Now     func() time.Time
	NewUUID func() oplog.UUID
	// Host is this member's host:port in the set, which votes for its own index
	// builds. Optional.
	Host string
	// ClusterTime, if set, is the newest cluster time that this member knows of:
	// new entries come after it.
	ClusterTime func() bson.Timestamp
	// OnWrite, if set, is called with the newest optime and its wall time after
	// a write has been committed, outside of Store.Write.
	OnWrite func(at oplog.OpTime, wall time.Time)
	// MaxApplyOpsBytes is how large one applyOps entry of a transaction may be
	// before a chain is written; default 16 MiB.
	MaxApplyOpsBytes int
}

func (c *Config) setDefaults() {
	if c.MaxApplyOpsBytes == 0 {
		c.MaxApplyOpsBytes = 16 << 20
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Store == nil {
		faults = append(faults, errors.New("no store"))
	}
	if c.Term == nil || c.Now == nil || c.NewUUID == nil {
		faults = append(faults, errors.New("no source of terms, time or UUIDs"))
	}
	if c.MaxApplyOpsBytes < 0 {
		faults = append(faults, fmt.Errorf("entries of at most %d bytes", c.MaxApplyOpsBytes))
	}
	return errors.Join(faults...)
}

// Path writes. It is safe for concurrent use.
type Path struct {
	cfg    Config
	format format

	// What follows is guarded by Store.Write.

	// reserved is the newest timestamp allocated.
	reserved bson.Timestamp
	// scratch is the buffer in which entries are built; the store copies them.
	scratch []byte
	// chains cache the retryable writes of sessions.
	chains map[string]*stmtChain
}

// New checks the configuration.
func New(cfg Config) (*Path, error) {
	cfg.setDefaults()
	f, err := cfg.Dialect.format()
	if err := errors.Join(cfg.validate(), err); err != nil {
		return nil, fmt.Errorf("opwrite: set up the write path: %w", err)
	}
	return &Path{cfg: cfg, format: f, chains: map[string]*stmtChain{}}, nil
}

// Write runs fn with exclusive access to the store. Operations that fn has
// committed stay committed, whatever fn returns.
func (p *Path) Write(fn func(b *Batch) error) error {
	b := Batch{p: p}
	err := p.cfg.Store.Write(func(w *storage.Writer) error {
		b.w = w
		return fn(&b)
	})
	if b.wrote && p.cfg.OnWrite != nil {
		p.cfg.OnWrite(b.last, b.wall)
	}
	return err
}

// reserve takes n successive timestamps, at least one, and returns the optime of
// the first. The wall clock of the entries is that of the call.
func (b *Batch) reserve(n int) (oplog.OpTime, error) {
	p := b.p
	if !b.hasTerm {
		term, err := p.cfg.Term()
		if err != nil {
			return oplog.OpTime{}, err
		}
		b.term, b.hasTerm = term, true
		if last, ok := b.w.Oplog().Last(); ok {
			p.advance(last.At.TS)
		}
		p.advance(b.w.Newest())
	}
	b.wall = p.cfg.Now()
	if p.cfg.ClusterTime != nil {
		p.advance(p.cfg.ClusterTime())
	}
	ts := p.reserved
	if now := uint32(max(b.wall.Unix(), 0)); now > ts.T {
		ts = bson.Timestamp{T: now}
	}
	if uint64(ts.I)+uint64(n) > math.MaxInt32 {
		ts = bson.Timestamp{T: ts.T + 1}
	}
	p.reserved = bson.Timestamp{T: ts.T, I: ts.I + uint32(n)}
	return oplog.OpTime{TS: bson.Timestamp{T: ts.T, I: ts.I + 1}, Term: b.term}, nil
}

// advance makes every timestamp given out from now on later than ts.
func (p *Path) advance(ts bson.Timestamp) {
	if oplog.CompareTimestamps(ts, p.reserved) > 0 {
		p.reserved = ts
	}
}

// slot returns the n-th optime of those reserved with the first.
func slot(first oplog.OpTime, n int) oplog.OpTime {
	first.TS.I += uint32(n)
	return first
}

// NewUUID returns the UUID of the next collection, for operations that are logged
// by Raw.
func (b *Batch) NewUUID() oplog.UUID { return b.p.cfg.NewUUID() }

// Dialect returns the dialect that is written.
func (b *Batch) Dialect() Dialect { return b.p.cfg.Dialect }
