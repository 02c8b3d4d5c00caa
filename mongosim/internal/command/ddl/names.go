package ddl

import (
	"strings"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// maxNamespace is how long a namespace may be, in bytes.
const maxNamespace = 255

// CheckCreateName refuses names that no new collection or view may have.
func CheckCreateName(ns oplog.Namespace) error {
	coll := ns.Collection()
	switch {
	case coll == "" || strings.HasPrefix(coll, ".") || strings.ContainsRune(coll, 0):
		return servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	case strings.ContainsRune(coll, '$') && ns != "local.oplog.$main":
		return servererr.New(servererr.InvalidNamespace, "Invalid collection name: %s", coll)
	case len(ns) > maxNamespace:
		return servererr.New(servererr.InvalidNamespace,
			"Fully qualified namespace is too long. Namespace: %s Max: %d", ns, maxNamespace)
	case strings.HasPrefix(coll, "system.") && !systemCollection(ns):
		return servererr.New(servererr.InvalidNamespace, "Invalid system namespace: %s", ns)
	}
	return nil
}

// systemCollection reports whether a name that begins with system. is known to
// the server.
func systemCollection(ns oplog.Namespace) bool {
	coll := ns.Collection()
	switch coll {
	case "system.views", "system.js", "system.profile":
		return true
	case "system.users", "system.roles", "system.version", "system.new_users", "system.backup_users", "system.keys":
		return ns.DB() == "admin"
	case "system.replset", "system.rollback.id", "system.healthlog", "system.tenantMigration.oplogView":
		return ns.DB() == "local"
	}
	return strings.HasPrefix(coll, "system.buckets.") || ns.DB() == "config"
}
