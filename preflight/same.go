package preflight

import (
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// literals returns the databases that Config.Include names, and its elements, each with
// wildcards in the collection as its whole database; false if an element does not name
// its database.
func (c *checker) literals() (dbs []string, all []oplog.Namespace, ok bool) {
	if len(c.cfg.Include) == 0 {
		return nil, nil, false
	}
	for _, text := range c.cfg.Include {
		db, coll, _ := strings.Cut(text, ".")
		if strings.HasPrefix(text, "/") || strings.ContainsAny(db, "*?") {
			return nil, nil, false
		}
		dbs = append(dbs, db)
		if coll == "" || strings.ContainsAny(coll, "*?") {
			all = append(all, oplog.Namespace(db))
			continue
		}
		all = append(all, oplog.NewNamespace(db, coll))
	}
	return dbs, all, true
}

// disjoint reports whether, with source and target in one cluster, nothing that is
// written can be mirrored again. A Scope ensures that the target of a rename is not
// mirrored itself, so it is sufficient that everything is renamed. That can be decided
// only if everything is named explicitly.
func (c *checker) disjoint() bool {
	dbs, all, ok := c.literals()
	if !ok || c.cfg.UsersAndRoles {
		return false
	}
	for _, db := range dbs {
		to, mirrored := c.cfg.Scope.TargetDB(db)
		if mirrored && to == db {
			return false
		}
	}
	for _, ns := range all {
		to, mirrored := c.cfg.Scope.Target(ns)
		if mirrored && to == ns {
			return false
		}
	}
	return true
}

// targetDBs returns the databases of the target that are written to; false if they
// cannot be determined.
func (c *checker) targetDBs() ([]string, bool) {
	dbs, _, ok := c.literals()
	if !ok {
		return nil, false
	}
	var all []string
	for _, db := range dbs {
		all = append(all, c.cfg.Scope.TargetDBs(db)...)
	}
	return all, true
}
