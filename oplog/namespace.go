package oplog

import "strings"

// Namespace is a database and a collection joined by a dot, as in "shop.orders".
// The database's name has no dot, the collection's may. A command's namespace is
// the database followed by ".$cmd", and no-ops may have none.
type Namespace string

// NewNamespace joins a database's and a collection's name.
func NewNamespace(db, collection string) Namespace {
	return Namespace(db + "." + collection)
}

// Clone returns a copy that is not a view: one that may be kept longer than the
// entry.
func (n Namespace) Clone() Namespace { return Namespace(strings.Clone(string(n))) }

// DB returns the part before the first dot.
func (n Namespace) DB() string {
	db, _, _ := strings.Cut(string(n), ".")
	return db
}

// Collection returns the part after the first dot.
func (n Namespace) Collection() string {
	_, coll, _ := strings.Cut(string(n), ".")
	return coll
}

// IsCollection reports whether n names a collection: neither part is empty.
func (n Namespace) IsCollection() bool {
	dot := strings.IndexByte(string(n), '.')
	return dot > 0 && dot+1 < len(n)
}

// IsCommand reports whether n is the namespace of a database's commands.
func (n Namespace) IsCommand() bool { return n.ends(".$cmd") && n[0] != '.' }

// IsServerDB reports whether a database belongs to the server: admin, config or local.
func IsServerDB(db string) bool { return db == "admin" || db == "config" || db == "local" }

// IsSystemViews reports whether n holds a database's view definitions. A write to
// it creates, changes or drops a view.
func (n Namespace) IsSystemViews() bool { return n.ends(".system.views") }

// IsPrivileges reports whether n holds the users or the roles of a replica set.
func (n Namespace) IsPrivileges() bool { return n == "admin.system.users" || n == "admin.system.roles" }

// ends reports whether n ends with a dot and a whole collection name. It is called
// several times per entry, and comparing the end decides nearly all of them.
func (n Namespace) ends(tail string) bool {
	return strings.HasSuffix(string(n), tail) && n.Collection() == tail[1:]
}

const bucketsPrefix = "system.buckets."

// IsBuckets reports whether n holds the buckets of a time-series collection.
func (n Namespace) IsBuckets() bool { return strings.HasPrefix(n.Collection(), bucketsPrefix) }

// Buckets returns the namespace of the buckets of the time-series collection n.
func (n Namespace) Buckets() Namespace {
	return NewNamespace(n.DB(), bucketsPrefix+n.Collection())
}

// Series returns the time-series collection whose buckets n holds, and n itself if
// it holds none.
func (n Namespace) Series() Namespace {
	if name, ok := strings.CutPrefix(n.Collection(), bucketsPrefix); ok {
		return NewNamespace(n.DB(), name)
	}
	return n
}

// IsTemporary reports whether the server generates such names for collections that are renamed when they are complete. It uses
// none of them again.
func IsTemporary(coll string) bool {
	rest, ok := strings.CutPrefix(coll, "tmp")
	if !ok {
		return false
	}
	if strings.HasPrefix(rest, ".agg_out.") || strings.HasPrefix(rest, ".mr.") {
		return true
	}
	const random = 5 // random letters and digits
	if len(rest) <= random || strings.ContainsFunc(rest[:random], isNoAlphanumeric) {
		return false
	}
	switch rest = rest[random:]; rest {
	case ".create", ".rename", ".renameCollection":
		return true
	default:
		return strings.HasPrefix(rest, ".convertToCapped.")
	}
}

func isNoAlphanumeric(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}
