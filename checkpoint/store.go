package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// Config identifies a link and the target that stores it.
type Config struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// DB is the metadata database. Empty means "replicator".
	DB string
	// Link is the link's name: see ValidLink.
	Link string
	// Of is the link that this one is a part of, empty if it is none. Create records it:
	// see Parts.
	Of string
	// Process identifies this process in leases. Empty means a random text.
	Process string
	// Keeper renews the link's lease, or, for a part, that of the link that it is a part of:
	// nothing is written to lanes or to the link's document once that lease is over. May be
	// nil, for leases that have no end.
	Keeper *lease.Keeper
	// Converts is the ID of the cutover that this process carries out, empty for none: see
	// Link.Convert.
	Converts string
	// Observer receives the link's events. May be nil.
	Observer event.Observer
	// Registry gets the metrics. May be nil.
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	if c.DB == "" {
		c.DB = "replicator"
	}
	if c.Process == "" {
		c.Process = rand.Text()
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Target == nil {
		faults = append(faults, errors.New("no target"))
	}
	if !ValidLink(c.Link) {
		faults = append(faults, fmt.Errorf("link %q: want letters, digits, dot, _ and -, 64 at most", c.Link))
	}
	return errors.Join(append(faults, checkDB(c.DB))...)
}

// Store reads a link and acquires its lease. A process uses one Store for all attempts
// of a link, because the Store recognizes the terms that are its own. It is for one
// goroutine at a time, but Look may be called concurrently with all else.
type Store struct {
	cfg     Config       // its Target retries transient errors
	once    mongo.Caller // the target; it sends each command once
	holder  string       // identifies this Store among those of all processes
	metrics *metrics
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Store, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	s := &Store{cfg: cfg, once: cfg.Target, holder: cfg.Process, metrics: newMetrics(cfg.Registry, cfg.Link)}
	s.cfg.Target = mongo.Patient{Caller: s.once, Retry: s.patience()}
	return s, nil
}

// Target returns the target. It sends each command once.
func (s *Store) Target() mongo.Caller { return s.once }

// DB returns the metadata database.
func (s *Store) DB() string { return s.cfg.DB }

// Link returns the link's name.
func (s *Store) Link() string { return s.cfg.Link }

// patience returns how transient errors are retried.
func (s *Store) patience() mongo.Retry {
	return mongo.Retry{Again: mongo.Passes, Failed: func(error) { s.metrics.retries.Inc() }}
}

// wrap adds the attempted action and the link to an error.
func (s *Store) wrap(err error, format string, args ...any) error {
	return fmt.Errorf("checkpoint: link %q: %s: %w", s.cfg.Link, fmt.Sprintf(format, args...), err)
}

// Config returns the link's Config. Its Target retries transient errors.
func (s *Store) Config() Config { return s.cfg }

// Load reads the link; it returns false if there is none. The target does not roll the result back; that may be older than
// what Acquire returns.
func (s *Store) Load(ctx context.Context) (State, bool, error) {
	return s.load(ctx, metadata.Committed)
}

func (s *Store) load(ctx context.Context, as func(mongo.Command) mongo.Command) (State, bool, error) {
	link, err := s.readLinkBy(ctx, as)
	if errors.Is(err, ErrNoLink) {
		return State{}, false, nil
	}
	if err == nil {
		err = s.readLanesBy(ctx, &link, as)
	}
	if servererr.HasNoMajorityReads(err) {
		return s.load(ctx, newest)
	}
	if err != nil {
		return State{}, false, s.wrap(err, "read it")
	}
	return link.State, true, nil
}

// Find is Load, but waits while the target's primary has the link and does not know yet that a majority has it: Load finds none then, also
// if the link was created long before the primary was elected.
func (s *Store) Find(ctx context.Context) (st State, found bool, err error) {
	err = s.patience().Do(ctx, func() error {
		if st, found, err = s.Load(ctx); err != nil || found {
			return err
		}
		_, newer, err := s.Newest(ctx)
		if err == nil && newer {
			err = s.wrap(&metadata.UnsettledError{What: "it"}, "look for it")
		}
		return err
	})
	return st, found, err
}

// Newest reads the link as the target's primary has it; it returns false if there is none. It has every write that was confirmed before, while
// Load may miss one: a new primary does not know at once that a majority has it. The target may still roll the result back, with
// everything that is written after it.
func (s *Store) Newest(ctx context.Context) (State, bool, error) {
	return s.load(ctx, newest)
}

// View is a link as a process sees it that does not have its lease.
type View struct {
	// Lease is its lease.
	Lease lease.Sighting
	// Copy is its copy, nil if it has none, FetchFrom where its oplog is read from.
	Copy      *Copy
	FetchFrom oplog.OpTime
	Instance  string
	// Over is the end of the link, nil if it continues; Converting the cutover that converts its deferred options.
	Over       *Over
	Converting *Converting
}

// Look reads the link for a process that waits for its lease; it returns false if there is
// no such link. The target does not roll the result back.
func (s *Store) Look(ctx context.Context, watch *lease.Watch) (View, bool, error) {
	link, err := s.readCommitted(ctx)
	if errors.Is(err, ErrNoLink) {
		return View{}, false, nil
	}
	var seen lease.Sighting
	if err == nil {
		seen, err = watch.Look(ctx, s.cfg.Target, link.lease)
	}
	if err != nil {
		watch.Blink()
		return View{}, false, s.wrap(err, "read its lease")
	}
	return View{
		Lease: seen, Copy: link.Copy, FetchFrom: link.FetchFrom, Instance: link.lease.Instance, Over: link.Over, Converting: link.Converting,
	}, true, nil
}

// readLink reads the link's document, without the lanes.
func (s *Store) readLink(ctx context.Context) (linkDoc, error) {
	return s.readLinkBy(ctx, newest)
}

// newest is a command as it is, instead of metadata.Committed.
func newest(cmd mongo.Command) mongo.Command { return cmd }

// readCommitted is readLink with read concern majority, if the target has that: a link that was just created may not exist any more
// after a failover.
func (s *Store) readCommitted(ctx context.Context) (linkDoc, error) {
	link, err := s.readLinkBy(ctx, metadata.Committed)
	if servererr.HasNoMajorityReads(err) {
		return s.readLink(ctx)
	}
	return link, err
}

func (s *Store) readLinkBy(ctx context.Context, as func(mongo.Command) mongo.Command) (linkDoc, error) {
	reply, err := s.cfg.Target.Call(ctx, as(metadata.Find(s.cfg.DB, metadata.Links, 1, metadata.ByID(s.cfg.Link))))
	if err != nil {
		return linkDoc{}, err
	}
	docs, err := metadata.Found(reply)
	switch {
	case err != nil:
		return linkDoc{}, err
	case len(docs) == 0:
		return linkDoc{}, ErrNoLink
	}
	return readLink(s.cfg.Link, docs[0])
}

// readLanes reads the positions of the link's lanes into it.
func (s *Store) readLanes(ctx context.Context, link *linkDoc) error {
	return s.readLanesBy(ctx, link, newest)
}

func (s *Store) readLanesBy(ctx context.Context, link *linkDoc, as func(mongo.Command) mongo.Command) error {
	reply, err := s.cfg.Target.Call(ctx, as(lanesCommand(s.cfg.DB, s.cfg.Link, link.Writers)))
	if err != nil {
		return err
	}
	lanes, err := readLanes(s.cfg.Link, link.Writers, reply)
	if err != nil {
		return err
	}
	link.Lanes, link.LanesAnnounced = make([]Position, link.Writers), make([]Position, link.Writers)
	for i, l := range lanes[:link.Writers] {
		link.Lanes[i], link.LanesAnnounced[i] = l.position, l.announced
	}
	barrier := lanes[link.Writers]
	link.Barrier, link.Announced = barrier.position, barrier.announced
	link.lowest, link.highest = barrier.term, barrier.term
	for _, l := range lanes {
		link.lowest, link.highest = min(link.lowest, l.term), max(link.highest, l.term)
	}
	return nil
}

// Prepare creates missing metadata collections: not every server creates collections
// in transactions. Create calls it.
func (s *Store) Prepare(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return s.wrap(err, "prepare its collections")
	}
	return nil
}

func (s *Store) prepare(ctx context.Context) error {
	for _, name := range []string{
		metadata.Links, metadata.Lanes, metadata.Deferred, metadata.Builds, metadata.Routes, metadata.Copies, metadata.Requests, metadata.Missing, metadata.Cuts,
		metadata.Begins, metadata.Guard,
	} {
		if err := s.createCollection(ctx, name); err != nil {
			return err
		}
	}
	return s.make(ctx)
}

// createCollection creates a collection of the metadata unless it exists.
func (s *Store) createCollection(ctx context.Context, name string) error {
	reply, err := s.cfg.Target.Call(ctx, metadata.Majority(metadata.Write(s.cfg.DB, "create", name, "")))
	if servererr.IsNamespaceThere(err) {
		return nil
	}
	if err == nil {
		if e := mongo.ConcernError(reply); e != nil {
			err = &mongo.UnconfirmedError{Err: e}
		}
	}
	if err != nil {
		return fmt.Errorf("create the collection %s.%s: %w", s.cfg.DB, name, err)
	}
	return nil
}

// Create creates the link in the state first (except Term, Lanes, Barrier and Announced). If
// the link exists, Create returns ErrExists.
func (s *Store) Create(ctx context.Context, first State) error {
	return s.createLink(ctx, first, func(*mongo.Txn) (int64, error) { return 0, nil }, func(mongo.Caller, int64) error { return nil })
}

// createLink creates the link after what instead does in the same transaction. It returns the least
// term.
func (s *Store) createLink(ctx context.Context, first State, instead func(*mongo.Txn) (int64, error), also func(txn mongo.Caller, term int64) error) error {
	session := mongo.NewClockSession(s.once, s.cfg.DB, s.cfg.Link, "create")
	return s.createWithin(ctx, first, func(link *linkDoc) error {
		return s.patience().Do(ctx, func() error {
			return session.InTxn(ctx, func(txn *mongo.Txn) error {
				least, err := instead(txn)
				if err != nil {
					return err
				}
				if err := s.create(ctx, txn, link, least); err != nil {
					return err
				}
				return also(txn, link.Term)
			})
		})
	})
}

// createWithin creates the link by a function that inserts its documents.
func (s *Store) createWithin(ctx context.Context, first State, insert func(link *linkDoc) error) error {
	if err := first.validate(); err != nil {
		return s.wrap(err, "create it")
	}
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	err := insert(&linkDoc{State: first, lease: lease.Record{Instance: rand.Text()}, of: s.cfg.Of})
	if err != nil {
		if servererr.IsDuplicateKey(err) {
			err = fmt.Errorf("%w: %w", ErrExists, err)
		}
		return s.wrap(err, "create it")
	}
	s.cfg.Observer.Log(slog.LevelInfo, "link created in the target", slog.String(keyLink, s.cfg.Link),
		slog.Int(keyWriters, first.Writers), slog.String(keyApplied, first.Applied.String()))
	return nil
}

func (s *Store) create(ctx context.Context, txn *mongo.Txn, link *linkDoc, least int64) error {
	var err error
	if link.Term, err = s.lastTerm(ctx, txn); err != nil {
		return err
	}
	link.Term = max(link.Term, least)
	link.lease.Term = link.Term
	insert := metadata.Write(s.cfg.DB, "insert", metadata.Links, "documents", link.marshal(s.cfg.Link))
	if err := metadata.Run(ctx, txn, insert, 1); err != nil {
		return err
	}
	// Before the link exists, such documents are left over from a removed link.
	for _, left := range metadata.DocumentsOf(s.cfg.Link) {
		if err := metadata.Run(ctx, txn, metadata.Delete(s.cfg.DB, left.Collection, left.Filter), -1); err != nil {
			return err
		}
	}
	start := Position{OpTime: link.Applied, Op: AllOps}
	lanes := laneDocs(s.cfg.Link, 0, link.Writers, link.Term, start)
	barrier := laneDoc{id: barrierID(s.cfg.Link), term: link.Term, position: start}
	lanes = append(lanes, barrier.marshal())
	return metadata.Run(ctx, txn, metadata.Write(s.cfg.DB, "insert", metadata.Lanes, "documents", lanes...), int64(len(lanes)))
}
