package scope

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// renames maps source names to different names on the target.
type renames struct {
	databases   map[string]string
	collections map[oplog.Namespace]oplog.Namespace
	// The inverses of the two.
	fromDatabases   map[string]string
	fromCollections map[oplog.Namespace]oplog.Namespace
}

// parseRenames parses the values of --map. check returns an error for an invalid name; its
// coll is "" for a database.
func parseRenames(values []string, check func(db, coll string) error) (renames, error) {
	m := renames{
		databases: map[string]string{}, fromDatabases: map[string]string{},
		collections: map[oplog.Namespace]oplog.Namespace{}, fromCollections: map[oplog.Namespace]oplog.Namespace{},
	}
	var faults []error
	for _, text := range values {
		if err := m.add(text, check); err != nil {
			faults = append(faults, fmt.Errorf("--map %q: %w", text, err))
		}
	}
	return m, errors.Join(faults...)
}

func (m *renames) add(text string, check func(db, coll string) error) error {
	left, right, ok := strings.Cut(text, "=")
	if !ok || strings.Contains(right, "=") {
		return errors.New("want DB=DB or DB.COLLECTION=DB.COLLECTION, with one equals sign")
	}
	fromDB, fromColl, err := renamed(left, check)
	if err != nil {
		return fmt.Errorf("%q: %w", left, err)
	}
	toDB, toColl, err := renamed(right, check)
	if err != nil {
		return fmt.Errorf("%q: %w", right, err)
	}
	if (fromColl == "") != (toColl == "") {
		return errors.New("a database can be mapped to a database only, a collection to a collection")
	}
	if fromColl == "" {
		return enter(m.databases, m.fromDatabases, fromDB, toDB)
	}
	return enter(m.collections, m.fromCollections,
		oplog.NewNamespace(fromDB, fromColl), oplog.NewNamespace(toDB, toColl))
}

// renamed parses one side of a renaming.
func renamed(text string, check func(db, coll string) error) (db, coll string, err error) {
	if strings.HasPrefix(text, "/") {
		return "", "", errors.New("a regular expression cannot be renamed")
	}
	db, coll, dotted := strings.Cut(text, ".")
	switch {
	case dotted && coll == "":
		return "", "", errors.New("no collection after the dot")
	case coll == "*":
		coll = ""
	}
	if hasWildcard(db) || hasWildcard(coll) {
		return "", "", errors.New("wildcards are supported only as in shop.*=store.*")
	}
	return db, coll, check(db, coll)
}

// enter adds a renaming to a map and its inverse.
func enter[K ~string](to, from map[K]K, source, target K) error {
	if before, ok := to[source]; ok && before != target {
		return fmt.Errorf("%s is mapped to %s already", source, before)
	}
	if before, ok := from[target]; ok && before != source {
		return fmt.Errorf("%s is mapped from %s already", target, before)
	}
	to[source], from[target] = target, source
	return nil
}

// database returns where a database goes.
func (m *renames) database(db string) string {
	if to, ok := m.databases[db]; ok {
		return to
	}
	return db
}

// target returns where a collection goes: ns itself if its name does not change.
func (m *renames) target(ns oplog.Namespace) oplog.Namespace {
	if to, ok := m.collections[ns]; ok {
		return to
	}
	if to, ok := m.databases[ns.DB()]; ok {
		return oplog.NewNamespace(to, ns.Collection())
	}
	return ns
}

// sources returns the namespaces that may go to a namespace.
func (m *renames) sources(target oplog.Namespace) []oplog.Namespace {
	var all []oplog.Namespace
	if from, ok := m.fromCollections[target]; ok {
		all = append(all, from)
	}
	return append(all, m.databaseSources(target)...)
}

// databaseSources returns the namespaces that may go to a namespace because their
// database does.
func (m *renames) databaseSources(target oplog.Namespace) []oplog.Namespace {
	db, coll, _ := strings.Cut(string(target), ".")
	in := func(db string) oplog.Namespace {
		if coll == "" {
			return oplog.Namespace(db)
		}
		return oplog.NewNamespace(db, coll)
	}
	var all []oplog.Namespace
	if from, ok := m.fromDatabases[db]; ok {
		all = append(all, in(from))
	}
	if _, away := m.databases[db]; !away {
		all = append(all, in(db))
	}
	return all
}

// checkInjective finds renamings that merge two namespaces, and renamings of namespaces
// that are not mirrored.
func (s *Scope) checkInjective() error {
	var faults []error
	for _, from := range slices.Sorted(maps.Keys(s.maps.databases)) {
		to := s.maps.databases[from]
		_, away := s.maps.databases[to]
		switch {
		case !s.mayHold(from):
			faults = append(faults, fmt.Errorf("--map %s=%s: no collection of %s is mirrored", from, to, from))
		case !away && s.mayHold(to):
			faults = append(faults, fmt.Errorf("--map %s=%s: collections of %s would be mixed with those of %s, which is mirrored too; "+
				"give that another name, or exclude it (--exclude %s)", from, to, from, to, to))
		}
	}
	for _, from := range slices.Sorted(maps.Keys(s.maps.collections)) {
		to := s.maps.collections[from]
		if !s.selected(from) {
			faults = append(faults, fmt.Errorf("--map %s=%s: %s is not mirrored", from, to, from))
			continue
		}
		for _, other := range s.maps.databaseSources(to) {
			_, away := s.maps.collections[other]
			if other != from && !away && !s.isNever(other.DB()) && s.selected(other) {
				faults = append(faults, fmt.Errorf("--map %s=%s: %s is mapped there too; rename that one, or exclude it (--exclude %s)",
					from, to, other, other))
			}
		}
	}
	return errors.Join(append(faults, s.checkCase())...)
}

// checkCase finds databases of the target whose names differ in case only: a server
// refuses to create the second one.
func (s *Scope) checkCase() error {
	targets := slices.Collect(maps.Values(s.maps.databases))
	for to := range s.maps.fromCollections {
		targets = append(targets, to.DB())
	}
	slices.Sort(targets)
	targets = slices.Compact(targets)
	var faults []error
	lower := map[string]string{}
	for _, db := range targets {
		if other, ok := lower[strings.ToLower(db)]; ok {
			faults = append(faults, fmt.Errorf("--map: the target's databases %s and %s differ in case only, which servers reject", other, db))
		}
		lower[strings.ToLower(db)] = db
	}
	return errors.Join(faults...)
}

// texts returns the renamings that change a name, as in --map, in order.
func (m *renames) texts() []string {
	var all []string
	for from, to := range m.databases {
		if from != to {
			all = append(all, from+"="+to)
		}
	}
	for from, to := range m.collections {
		if to != oplog.NewNamespace(m.database(from.DB()), from.Collection()) {
			all = append(all, string(from)+"="+string(to))
		}
	}
	slices.Sort(all)
	return all
}
