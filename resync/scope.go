package resync

import (
	"slices"

	"github.com/oplogrep/replicator/oplog"
)

// Scope decides which collections are mirrored, and under which names.
type Scope interface {
	// Target returns the target's name of ns, false if ns is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// Source is the inverse of Target.
	Source(target oplog.Namespace) (oplog.Namespace, bool)
	// TargetDBs returns the databases of the target to which collections of db go.
	TargetDBs(db string) []string
	// Fingerprint is equal for Scopes that decide the same.
	Fingerprint() string
}

// Scope returns the link's scope without the collections that are left out.
func (m *Manager) Scope() Scope {
	if len(m.leftOut) == 0 {
		return m.cfg.Scope
	}
	leftOut := m.leftOut
	return subset{Scope: m.cfg.Scope, has: func(ns oplog.Namespace) bool {
		_, out := leftOut[ns]
		return !out
	}}
}

// Without returns the subset of all without these collections.
func Without(all Scope, out []oplog.Namespace) Scope {
	if len(out) == 0 {
		return all
	}
	return subset{Scope: all, has: func(ns oplog.Namespace) bool { return !slices.Contains(out, ns) }}
}

// ScopeOf returns the subset of all that belongs to a part.
func ScopeOf(all Scope, part Part) Scope {
	return subset{Scope: all, has: func(ns oplog.Namespace) bool { return ns == part.NS }, db: part.NS.DB()}
}

// subset is a subset of a Scope.
type subset struct {
	Scope
	has func(ns oplog.Namespace) bool
	// db, if not empty, is the only database with collections of the subset.
	db string
}

// Target implements Scope.
func (s subset) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	if !s.has(ns.Series()) {
		return "", false
	}
	return s.Scope.Target(ns)
}

// Source implements Scope.
func (s subset) Source(target oplog.Namespace) (oplog.Namespace, bool) {
	ns, ok := s.Scope.Source(target)
	if !ok || !s.has(ns.Series()) {
		return "", false
	}
	return ns, true
}

// TargetDBs implements Scope.
func (s subset) TargetDBs(db string) []string {
	if s.db != "" && db != s.db {
		return nil
	}
	return s.Scope.TargetDBs(db)
}
