package storage

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tidwall/btree"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Options are the limits of a Store. Zero values mean the defaults.
type Options struct {
	// OplogBytes is how much of the oplog is kept; the oldest entries go first,
	// but never those after the stable timestamp, or that are held
	// (Writer.HoldOplog). Default 256 MiB.
	OplogBytes int64
	// HistorySeconds is for how long a snapshot older than the stable timestamp
	// can still be read, in seconds of the data's own timestamps. Default 5.
	HistorySeconds uint32
	// Full, if set, is asked before each write; true refuses it with
	// OutOfDiskSpace. It must not call into the Store.
	Full func() bool
	// Records is added to the record ids of each collection: those of two members of a
	// set differ.
	Records RecordID
	// Filter compiles the partialFilterExpression of an index, to be matched by
	// the index's collation. Without it unique partial indexes are refused.
	Filter func(expr bson.Raw, coll *bsonorder.Collator) (func(doc bson.Raw) bool, error)
}

func (o *Options) setDefaults() {
	if o.OplogBytes <= 0 {
		o.OplogBytes = 256 << 20
	}
	if o.HistorySeconds == 0 {
		o.HistorySeconds = 5
	}
}

// Store is the data of one member: collections, their catalog, and the oplog. It
// is safe for concurrent use.
//
// Everything has versions. A write that commits at a timestamp is seen by views
// at that timestamp and later; earlier versions stay readable until they are
// older than the stable timestamp, outside of the history window and not pinned.
// Databases called local have no versions: their newest state is seen at every
// time, and a rollback leaves them alone.
type Store struct {
	opts Options

	// mu guards everything below it: Read shares it, Write has it alone.
	mu sync.RWMutex
	// names and uuids have a collection under all names that it has at times that
	// can still be read.
	names btree.Map[string, []*table]
	uuids map[oplog.UUID][]*table
	// databases are those that are open: each that has had a collection, until it is dropped itself.
	databases map[string]struct{}
	// seq counts commits. newest is the highest commit timestamp.
	seq, newest, stable uint64
	open                []*Unit
	journal             deque[commit]
	log                 oplogEntries
	// dirty requests a signal at the end of the present Write.
	dirty bool

	// pinMu guards pins and oldest, and is taken after mu.
	pinMu sync.Mutex
	pins  map[uint64]int
	// oldest is the lowest timestamp that can be read.
	oldest uint64

	// signalMu guards changed.
	signalMu sync.Mutex
	changed  chan struct{}
}

// New makes an empty Store.
func New(opts Options) *Store {
	opts.setDefaults()
	return &Store{
		opts:      opts,
		uuids:     map[oplog.UUID][]*table{},
		databases: map[string]struct{}{},
		pins:      map[uint64]int{},
		changed:   make(chan struct{}),
	}
}

// Write runs fn with exclusive access. Units that fn began and neither
// committed, prepared nor kept (Unit.Keep) are aborted when it returns. fn must
// not call Read or Write.
func (s *Store) Write(fn func(w *Writer) error) error {
	s.mu.Lock()
	defer s.finishWrite()
	return fn(&Writer{Reader{s}})
}

func (s *Store) finishWrite() {
	// Backward, as ending a unit moves the last open unit into its place.
	for _, u := range slices.Backward(s.open) {
		if !u.kept {
			u.Abort()
		}
	}
	s.prune()
	dirty := s.dirty
	s.dirty = false
	s.mu.Unlock()
	if dirty {
		s.signal()
	}
}

// Read runs fn with shared access. Values obtained from the Reader must not be
// used after fn has returned, except documents, which are immutable. fn must not
// call Read or Write.
func (s *Store) Read(fn func(r *Reader) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(&Reader{s})
}

// Changed returns a channel that is closed by the next commit, append, rollback
// or move of the stable timestamp. Get it before looking, then look, then wait.
// It may be called within Read and Write.
func (s *Store) Changed() <-chan struct{} {
	s.signalMu.Lock()
	defer s.signalMu.Unlock()
	return s.changed
}

func (s *Store) signal() {
	s.signalMu.Lock()
	defer s.signalMu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Pin keeps everything that a view at the timestamp sees readable until release
// is called; the zero timestamp pins everything readable now. It fails with
// SnapshotTooOld if that can no longer be read. Pin and release may be called
// within Read and Write; calling release again does nothing.
func (s *Store) Pin(at bson.Timestamp) (release func(), err error) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	ts := packed(at)
	switch {
	case ts == 0:
		ts = s.oldest
	case ts < s.oldest:
		return nil, servererr.New(servererr.SnapshotTooOld,
			"Read timestamp %s is older than the oldest available timestamp.", shown(at))
	}
	s.pins[ts]++
	return sync.OnceFunc(func() { s.unpin(ts) }), nil
}

func (s *Store) unpin(ts uint64) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	if s.pins[ts]--; s.pins[ts] == 0 {
		delete(s.pins, ts)
	}
}

// shown returns a timestamp as the server writes it in messages.
func shown(ts bson.Timestamp) string { return fmt.Sprintf("Timestamp(%d, %d)", ts.T, ts.I) }

// Reader is shared access to a Store, within Store.Read or Store.Write.
type Reader struct{ s *Store }

// View shows the data at a timestamp; the zero timestamp means the newest.
// Uncommitted and prepared changes are not seen. Times before the oldest one that is kept are not
// readable any more: the contents of such a view are undefined.
func (r *Reader) View(at bson.Timestamp) View {
	ts := packed(at)
	if ts == 0 {
		ts = none
	}
	return View{&view{s: r.s, ts: ts, seq: none}}
}

// Oplog shows the oplog.
func (r *Reader) Oplog() OplogView { return OplogView{r.s} }

// Stable returns the stable timestamp: commits at or before it are never
// undone.
func (r *Reader) Stable() bson.Timestamp { return unpacked(r.s.stable) }

// Newest returns the highest timestamp that anything was committed at.
func (r *Reader) Newest() bson.Timestamp { return unpacked(r.s.newest) }

// Writer is exclusive access to a Store, within Store.Write.
type Writer struct{ Reader }

// Begin starts a unit of work. With at zero it reads the newest state (an
// ordinary statement), else the snapshot at that time (a transaction), which must
// not be before the oldest one that is kept. Either way it does not see later commits of others.
func (w *Writer) Begin(at bson.Timestamp) *Unit {
	s := w.s
	u := &Unit{s: s, place: len(s.open), readTS: packed(at)}
	u.view = view{s: s, ts: u.readTS, seq: s.seq, u: u}
	if u.readTS == 0 {
		u.readTS = s.newest
		u.view.ts = none
	}
	s.open = append(s.open, u)
	return u
}

// Append adds an entry to the oplog, copying it. Its optime must be after the
// newest one; else it panics: an oplog out of order is a broken invariant.
func (w *Writer) Append(raw bson.Raw, at oplog.OpTime) {
	w.s.log.add(raw, at)
	w.s.dirty = true
}

// SetStable moves the stable timestamp forward; going back is ignored.
func (w *Writer) SetStable(at bson.Timestamp) {
	if ts := packed(at); ts > w.s.stable {
		w.s.stable = ts
		w.s.dirty = true
	}
}
