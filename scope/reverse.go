package scope

import (
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// backward returns the namespace that the lists send to a given one: the inverse of forward, which
// sends no two to the same.
func (s *Scope) backward(to oplog.Namespace) (oplog.Namespace, bool) {
	if coll, ok := strings.CutPrefix(to.Collection(), bucketsPrefix); ok {
		from, ok := s.backward(oplog.NewNamespace(to.DB(), coll))
		if !ok {
			return "", false
		}
		return from.Buckets(), true
	}
	for _, from := range s.maps.sources(to) {
		if goes, ok := s.forward(from); ok && goes == to {
			return from.Clone(), true
		}
	}
	return "", false
}

// backwardDB returns where a database goes back to, except collections that were renamed individually;
// false if nothing goes back.
func (s *Scope) backwardDB(db string) (string, bool) {
	if from, ok := s.backward(oplog.Namespace(db)); ok {
		return string(from), true
	}
	all := s.backwardDBs(db) // those of its collections
	if len(all) == 0 {
		return "", false
	}
	return all[0], true
}

// backwardDBs returns all databases, in order, from which the lists send collections to a
// database: none if there is none.
func (s *Scope) backwardDBs(to string) []string {
	var all []string
	for _, from := range s.maps.databaseSources(oplog.Namespace(to)) {
		if goes, ok := s.forwardDB(string(from)); ok && goes == to {
			all = append(all, strings.Clone(string(from)))
		}
	}
	for from, goes := range s.maps.collections {
		if goes.DB() == to && s.selected(from) {
			all = append(all, from.DB())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
