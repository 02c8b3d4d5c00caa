package scope

import (
	"errors"
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

const (
	bucketsPrefix = "system.buckets."
	systemPrefix  = "system."
	systemViews   = "system.views"
	systemProfile = "system.profile"
	systemJS      = "system.js"
	commands      = "$cmd"
)

// maxDB and maxNamespace are the maximum lengths of names on a server, in bytes.
const (
	maxDB        = 63
	maxNamespace = 255
)

// isSystemDB reports whether a database belongs to the server.
func isSystemDB(db string) bool { return db == "local" || db == "config" || db == "admin" }

// followsDB reports whether a collection is in scope if its database is.
func followsDB(coll string) bool {
	return coll == commands || coll == systemViews || oplog.IsTemporary(coll)
}

// checkDB checks the name of a database.
func checkDB(db string) error {
	switch {
	case db == "":
		return errors.New("the database has no name")
	case len(db) > maxDB:
		return fmt.Errorf("the database's name has %d bytes, the limit is %d", len(db), maxDB)
	}
	if i := strings.IndexAny(db, "/\\. \"$\x00"); i >= 0 {
		return fmt.Errorf("the name of a database cannot contain %q", db[i])
	}
	return nil
}

// checkCollection checks the name of a collection.
func checkCollection(coll string) error {
	switch {
	case coll == "":
		return errors.New("the collection has no name")
	case coll[0] == '.':
		return errors.New("the name of a collection cannot begin with a dot")
	case strings.Contains(coll, "\x00"):
		return errors.New("the name of a collection cannot contain a zero byte")
	case strings.Contains(coll, "$"):
		return errors.New("the name of a collection cannot contain a $")
	default:
		return nil
	}
}

// checkIncluded refuses to include namespaces that the lists do not decide.
func (s *Scope) checkIncluded(p *pattern) error {
	db, coll, ok := p.names()
	switch {
	case !ok:
		return nil
	case oplog.NewNamespace(db, coll).IsPrivileges():
		return errors.New("use --users-and-roles: users and roles are mirrored all together or not at all")
	case isSystemDB(db):
		return fmt.Errorf("the database %s is never mirrored", db)
	case db == s.cfg.MetaDB:
		return fmt.Errorf("the database %s is for metadata and is never mirrored", db)
	case coll == systemProfile:
		return errors.New("profiles are never mirrored")
	default:
		return checkFollowing(coll)
	}
}

// checkExcluded refuses exclusions that would have no effect.
func (s *Scope) checkExcluded(p *pattern) error {
	_, coll, ok := p.names()
	if !ok {
		return nil
	}
	return checkFollowing(coll)
}

// checkFollowing refuses a collection that is decided by another namespace or flag.
func checkFollowing(coll string) error {
	switch {
	case coll == systemViews:
		return errors.New("name the views themselves")
	case coll == commands:
		return errors.New("name the collections themselves")
	case strings.HasPrefix(coll, bucketsPrefix):
		return fmt.Errorf("name the time-series collection, %s, not its buckets", coll[len(bucketsPrefix):])
	case oplog.IsTemporary(coll):
		return errors.New("a temporary collection of the server is mirrored with its database")
	default:
		return nil
	}
}

// checkRenamed checks either side of a renaming. Coll is "" for a database.
func (s *Scope) checkRenamed(db, coll string) error {
	if err := checkDB(db); err != nil {
		return err
	}
	switch {
	case isSystemDB(db):
		return fmt.Errorf("the database %s is the server's own", db)
	case db == s.cfg.MetaDB:
		return fmt.Errorf("the database %s is for metadata", db)
	case coll == "":
		return nil
	case len(db)+len(".")+len(coll) > maxNamespace:
		return fmt.Errorf("the name has %d bytes, the limit is %d", len(db)+len(".")+len(coll), maxNamespace)
	case coll == systemJS:
		return fmt.Errorf("%s follows its database", coll)
	}
	if err := checkFollowing(coll); err != nil {
		return err
	}
	if strings.HasPrefix(coll, systemPrefix) {
		return errors.New("it is a system collection")
	}
	return checkCollection(coll)
}
