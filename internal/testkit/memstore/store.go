package memstore

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// Config says how a store differs from the usual one.
type Config struct {
	// Ignore reports whether operations on a namespace are ignored. It is
	// called with DB.$cmd for commands. Nil means ignoreSystemDatabases.
	Ignore func(ns oplog.Namespace) bool
	// TrimCapped makes capped collections drop their oldest documents
	// themselves, as members do up to feature compatibility version 4.4. From
	// 5.0 on those deletes are in the log. Zero means that they are.
	TrimCapped bool
	// OnUpdate, if not nil, is called for each update of an existing document:
	// its former state, the operation, and its new state.
	OnUpdate func(pre bson.Raw, op *oplog.Op, post bson.Raw)
}

func (c *Config) setDefaults() {
	if c.Ignore == nil {
		c.Ignore = ignoreSystemDatabases
	}
}

// ignoreSystemDatabases reports whether ns is in local, admin or config, which
// belong to the replica set that wrote the log.
func ignoreSystemDatabases(ns oplog.Namespace) bool {
	switch ns.DB() {
	case "local", "admin", "config":
		return true
	}
	return false
}

// Counters count tolerated errors.
type Counters struct {
	// InsertOnExistingDoc are inserts that replaced a document.
	InsertOnExistingDoc int
	// UpdateOnMissingDoc are updates that found no document. In Steady mode they
	// made one.
	UpdateOnMissingDoc int
	// DeleteWasEmpty are deletes that found no document or no collection.
	DeleteWasEmpty int
	// MissingNamespace are inserts and updates that found no collection, in
	// InitialSync mode.
	MissingNamespace int
	// CreateOnExisting are creates that found their collection there already.
	CreateOnExisting int
	// AcceptableErrors are commands that failed in a way that the server
	// tolerates.
	AcceptableErrors int
}

// String names the counters that are not zero: "updates of missing documents: 2".
func (c Counters) String() string {
	var parts []string
	for _, part := range []struct {
		what string
		n    int
	}{
		{"inserts of existing documents", c.InsertOnExistingDoc},
		{"updates of missing documents", c.UpdateOnMissingDoc},
		{"deletes of missing documents", c.DeleteWasEmpty},
		{"writes to missing collections", c.MissingNamespace},
		{"creates of existing collections", c.CreateOnExisting},
		{"commands with an error that is accepted", c.AcceptableErrors},
	} {
		if part.n != 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", part.what, part.n))
		}
	}
	return strings.Join(parts, ", ")
}

// Store is a catalog and its collections.
type Store struct {
	cfg      Config
	counters Counters
	byName   map[oplog.Namespace]*Collection
	byUUID   map[oplog.UUID]*Collection
	// made counts names and UUIDs that the store made up.
	made uint64
	// uncollated are the collections with _ids of text, and a collation that
	// cannot be followed.
	uncollated map[oplog.Namespace]error
}

// New returns an empty store.
func New(cfg Config) *Store {
	cfg.setDefaults()
	return &Store{
		cfg:    cfg,
		byName: make(map[oplog.Namespace]*Collection),
		byUUID: make(map[oplog.UUID]*Collection),

		uncollated: make(map[oplog.Namespace]error),
	}
}

// Clone returns a copy of the store that changes independently.
func (s *Store) Clone() *Store {
	c := New(s.cfg)
	c.counters, c.made = s.counters, s.made
	c.uncollated = maps.Clone(s.uncollated)
	for _, coll := range s.byName {
		c.add(coll.clone())
	}
	return c
}

// Counters returns the tolerated errors so far.
func (s *Store) Counters() Counters { return s.counters }

// Uncollated returns the collections, by the names that they had then, in which
// an _id with text was met under a collation that cannot be followed here, and
// why it cannot: a [*bsonorder.CollationError]. Their _ids are compared by bytes,
// so that two may be different that the server takes for one.
func (s *Store) Uncollated() map[oplog.Namespace]error { return maps.Clone(s.uncollated) }

// noteID keeps in mind that an _id is compared without the collation.
func (s *Store) noteID(c *Collection, id bson.RawValue) {
	if c.collationErr != nil && s.uncollated[c.ns] == nil && hasText(id) {
		s.uncollated[c.ns] = c.collationErr
	}
}

// Collection returns the collection of that name. There is none for a view.
func (s *Store) Collection(ns oplog.Namespace) (*Collection, bool) {
	c, ok := s.byName[ns]
	return c, ok
}

// CollectionByUUID returns the collection of that UUID.
func (s *Store) CollectionByUUID(u oplog.UUID) (*Collection, bool) {
	c, ok := s.byUUID[u]
	return c, ok
}

// Collections returns all collections by name.
func (s *Store) Collections() []*Collection {
	all := make([]*Collection, 0, len(s.byName))
	for _, c := range s.byName {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *Collection) int { return strings.Compare(string(a.ns), string(b.ns)) })
	return all
}

func (s *Store) add(c *Collection) {
	s.byName[c.ns] = c
	s.byUUID[c.uuid] = c
}

func (s *Store) remove(c *Collection) {
	delete(s.byName, c.ns)
	delete(s.byUUID, c.uuid)
}

// move gives a collection a name that nothing holds.
func (s *Store) move(c *Collection, ns oplog.Namespace) {
	delete(s.byName, c.ns)
	c.ns = ns
	s.byName[ns] = c
}

// moveAway gives a collection a temporary name, as the server's applier does
// with a collection that is in the way of an older operation.
func (s *Store) moveAway(c *Collection, why string) {
	for {
		s.made++
		ns := oplog.NewNamespace(c.ns.DB(), fmt.Sprintf("tmp%05d.%s", s.made, why))
		if _, taken := s.byName[ns]; !taken {
			s.move(c, ns)
			return
		}
	}
}

// newUUID makes up a UUID that no server gives out.
func (s *Store) newUUID() oplog.UUID {
	s.made++
	u := oplog.UUID{0: 0xff}
	binary.BigEndian.PutUint64(u[8:], s.made)
	return u
}
