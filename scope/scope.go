package scope

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// DefaultMetaDB is the metadata database if Config names none.
const DefaultMetaDB = "replicator"

// Config selects the namespaces to mirror; see the package's documentation for the forms.
type Config struct {
	// Include lists the namespaces to mirror. Empty means all that can be.
	Include []string
	// Exclude lists the namespaces that are not mirrored, even if Include lists them.
	Exclude []string
	// Map renames databases and collections on the target.
	Map []string
	// UsersAndRoles adds admin.system.users and admin.system.roles.
	UsersAndRoles bool
	// Reversed means that the lists are those of a link the other way: what they call the source is the
	// target, and the other way round.
	Reversed bool
	// MetaDB is the metadata database, which is mirrored neither from nor to.
	// Empty means DefaultMetaDB.
	MetaDB string
}

func (c *Config) setDefaults() {
	if c.MetaDB == "" {
		c.MetaDB = DefaultMetaDB
	}
}

// validate checks each field by itself. New checks how they combine.
func (c *Config) validate() error {
	if isSystemDB(c.MetaDB) {
		return fmt.Errorf("metadata database %q: it is one of the server's own", c.MetaDB)
	}
	if err := checkDB(c.MetaDB); err != nil {
		return fmt.Errorf("metadata database %q: %w", c.MetaDB, err)
	}
	return nil
}

// Scope decides which namespaces are mirrored, and under which name. It is safe for concurrent use.
// Create one with New.
type Scope struct {
	cfg     Config
	include patterns // empty: everything
	exclude patterns
	maps    renames
	cache   cache
}

// New parses the lists. The error contains all faults, each with its flag and text.
func New(cfg Config) (*Scope, error) {
	cfg.setDefaults()
	s := &Scope{cfg: cfg}
	faults := []error{cfg.validate()}
	var err error
	if s.include, err = parsePatterns("--include", cfg.Include, s.checkIncluded); err != nil {
		faults = append(faults, err)
	}
	if s.exclude, err = parsePatterns("--exclude", cfg.Exclude, s.checkExcluded); err != nil {
		faults = append(faults, err)
	}
	if s.exclude.all() {
		faults = append(faults, errors.New("--exclude: no namespace is left to mirror"))
	}
	if s.include.all() {
		s.include = patterns{}
	}
	if s.maps, err = parseRenames(cfg.Map, s.checkRenamed); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("parse the filters and renames: %w", err)
	}
	// The lists can be checked against each other only if each is valid.
	if err := s.checkInjective(); err != nil {
		return nil, fmt.Errorf("parse the filters and renames: %w", err)
	}
	return s, nil
}

// Target returns where ns goes, false if it is not mirrored. A namespace DB.$cmd, or a
// database name alone, goes where the database goes; see TargetDB. The result is not a
// view of ns, and ns is not retained.
func (s *Scope) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	if s.cfg.Reversed {
		return s.backward(ns)
	}
	return s.forward(ns)
}

// forward returns where the lists send a namespace.
func (s *Scope) forward(ns oplog.Namespace) (oplog.Namespace, bool) {
	if a, ok := s.cache.get(ns); ok {
		return a.target, a.mirrored
	}
	a := answer{source: ns.Clone()}
	a.target, a.mirrored = s.decide(a.source)
	s.cache.put(a)
	return a.target, a.mirrored
}

// TargetDB returns where a database goes, except collections that are renamed
// individually. It returns false if nothing of the database is mirrored.
func (s *Scope) TargetDB(db string) (string, bool) {
	if s.cfg.Reversed {
		return s.backwardDB(db)
	}
	return s.forwardDB(db)
}

func (s *Scope) forwardDB(db string) (string, bool) {
	if !s.mayHold(db) {
		return "", false
	}
	return strings.Clone(s.maps.database(db)), true
}

// TargetDBs returns all databases, in order, that collections of a source database can
// go to: none if nothing of it is mirrored.
func (s *Scope) TargetDBs(db string) []string {
	if s.cfg.Reversed {
		return s.backwardDBs(db)
	}
	return s.forwardDBs(db)
}

// SourceDBs returns all databases, in order, of which collections can go to a database of the target: the inverse of TargetDBs.
func (s *Scope) SourceDBs(target string) []string {
	if s.cfg.Reversed {
		return s.forwardDBs(target)
	}
	return s.backwardDBs(target)
}

func (s *Scope) forwardDBs(db string) []string {
	first, ok := s.forwardDB(db)
	if !ok {
		return nil
	}
	all := []string{first}
	for from, to := range s.maps.collections {
		if from.DB() == db && s.selected(from) {
			all = append(all, to.DB())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Source returns the namespace that goes to a namespace of the target, false if none
// does: the inverse of Target.
func (s *Scope) Source(target oplog.Namespace) (oplog.Namespace, bool) {
	if s.cfg.Reversed {
		return s.forward(target)
	}
	return s.backward(target)
}

// decide is forward without the cache. Its argument is not a view.
func (s *Scope) decide(ns oplog.Namespace) (oplog.Namespace, bool) {
	db, coll, dotted := strings.Cut(string(ns), ".")
	buckets, isBuckets := strings.CutPrefix(coll, bucketsPrefix)
	switch {
	case ns.IsPrivileges() && s.cfg.UsersAndRoles:
		return ns, true
	case db == "" || s.isNever(db) || coll == systemProfile:
		return "", false
	case !dotted:
		to, ok := s.forwardDB(db)
		return oplog.Namespace(to), ok
	case coll == "" || isBuckets && buckets == "":
		return "", false
	case isBuckets:
		to, ok := s.decide(oplog.NewNamespace(db, buckets))
		if !ok {
			return "", false
		}
		return to.Buckets(), true
	case followsDB(coll):
		to, ok := s.forwardDB(db)
		if !ok {
			return "", false
		}
		return oplog.NewNamespace(to, coll), true
	case !s.selected(ns):
		return "", false
	default:
		return s.maps.target(ns), true
	}
}

// selected reports whether the lists select a collection.
func (s *Scope) selected(ns oplog.Namespace) bool {
	return (s.include.empty() || s.include.match(ns)) && !s.exclude.match(ns)
}

// mayHold reports whether any collection of a database can be mirrored. If that is
// undecided it returns true.
func (s *Scope) mayHold(db string) bool {
	switch {
	case db == "" || s.isNever(db) || s.exclude.cover(db):
		return false
	case s.include.empty():
		return true
	default:
		return s.include.mayMatchIn(db, s.exclude.match)
	}
}

func (s *Scope) isNever(db string) bool { return isSystemDB(db) || db == s.cfg.MetaDB }
