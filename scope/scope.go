package scope

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// DefaultMetaDB is the metadata database where Config names none.
const DefaultMetaDB = "replicator"

// Config says what is mirrored; see the package's documentation for the forms.
type Config struct {
	// Include is what is mirrored. Empty means everything that can be.
	Include []string
	// Exclude is what is not, whatever Include says.
	Exclude []string
	// Map gives databases and collections another name on the target.
	Map []string
	// UsersAndRoles adds admin.system.users and admin.system.roles.
	UsersAndRoles bool
	// MetaDB is the metadata database, which is mirrored neither from nor to.
	// Empty means DefaultMetaDB.
	MetaDB string
}

func (c *Config) setDefaults() {
	if c.MetaDB == "" {
		c.MetaDB = DefaultMetaDB
	}
}

// validate checks what concerns the fields one by one. What they mean together
// is checked by New.
func (c *Config) validate() error {
	if isSystemDB(c.MetaDB) {
		return fmt.Errorf("metadata database %q: it is one of the server's own", c.MetaDB)
	}
	if err := checkDB(c.MetaDB); err != nil {
		return fmt.Errorf("metadata database %q: %w", c.MetaDB, err)
	}
	return nil
}

// Scope answers what is mirrored, and under which name. It is safe for concurrent
// use. Make one with New.
type Scope struct {
	cfg     Config
	include patterns // empty: everything
	exclude patterns
	maps    renames
	cache   cache
}

// New reads the lists. The error has all faults, each with the flag and the text
// that it is about.
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
		faults = append(faults, errors.New("--exclude: nothing is left to be mirrored"))
	}
	if s.include.all() {
		s.include = patterns{}
	}
	if s.maps, err = parseRenames(cfg.Map, s.checkRenamed); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("choose what is mirrored: %w", err)
	}
	// Only lists that are right by themselves can be asked how they go together.
	if err := s.checkInjective(); err != nil {
		return nil, fmt.Errorf("choose what is mirrored: %w", err)
	}
	return s, nil
}

// Target returns where ns goes, false where it is not mirrored. A namespace
// DB.$cmd, or a database alone, goes where the database goes; see TargetDB. The
// answer is no view of ns, and ns is not kept.
func (s *Scope) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	if a, ok := s.cache.get(ns); ok {
		return a.target, a.mirrored
	}
	a := answer{source: ns.Clone()}
	a.target, a.mirrored = s.decide(a.source)
	s.cache.put(a)
	return a.target, a.mirrored
}

// TargetDB returns where a database goes, apart from collections with a name of
// their own on the target. It is false where nothing of the database is mirrored.
func (s *Scope) TargetDB(db string) (string, bool) {
	if !s.mayHold(db) {
		return "", false
	}
	return strings.Clone(s.maps.database(db)), true
}

// TargetDBs returns all databases, in order, that collections of a database of
// the source can go to: none where nothing of it is mirrored.
func (s *Scope) TargetDBs(db string) []string {
	first, ok := s.TargetDB(db)
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

// Source returns what goes to a namespace of the target, false where nothing
// does: the inverse of Target.
func (s *Scope) Source(target oplog.Namespace) (oplog.Namespace, bool) {
	if coll, ok := strings.CutPrefix(target.Collection(), bucketsPrefix); ok {
		from, ok := s.Source(oplog.NewNamespace(target.DB(), coll))
		if !ok {
			return "", false
		}
		return from.Buckets(), true
	}
	for _, from := range s.maps.sources(target) {
		if to, ok := s.Target(from); ok && to == target {
			return from, true
		}
	}
	return "", false
}

// decide is Target without the cache. Its argument is no view.
func (s *Scope) decide(ns oplog.Namespace) (oplog.Namespace, bool) {
	db, coll, dotted := strings.Cut(string(ns), ".")
	buckets, isBuckets := strings.CutPrefix(coll, bucketsPrefix)
	switch {
	case ns.IsPrivileges() && s.cfg.UsersAndRoles:
		return ns, true
	case db == "" || s.isNever(db) || coll == systemProfile:
		return "", false
	case !dotted:
		to, ok := s.TargetDB(db)
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
		to, ok := s.TargetDB(db)
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

// selected tells what the lists say of a collection.
func (s *Scope) selected(ns oplog.Namespace) bool {
	return (s.include.empty() || s.include.match(ns)) && !s.exclude.match(ns)
}

// mayHold reports whether any collection of a database can be mirrored. Where that
// is not decided it is true.
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
