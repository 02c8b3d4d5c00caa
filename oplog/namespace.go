package oplog

import "strings"

// Namespace is a database and a collection with a dot in between, as in
// "shop.orders". The database's name holds no dot, the collection's may. For a
// command it is the database with "$cmd" after it, and no-ops may have none.
type Namespace string

// NewNamespace joins a database's and a collection's name.
func NewNamespace(db, collection string) Namespace {
	return Namespace(db + "." + collection)
}

// Clone returns a namespace that is no view: one to keep after the entry that it
// came with.
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

// IsCollection reports whether n names a collection: both parts are there.
func (n Namespace) IsCollection() bool {
	dot := strings.IndexByte(string(n), '.')
	return dot > 0 && dot+1 < len(n)
}

// IsCommand reports whether n is where a database's commands are logged.
func (n Namespace) IsCommand() bool { return n.ends(".$cmd") && n[0] != '.' }

// IsSystemViews reports whether n holds a database's view definitions. A write to
// it creates, changes or drops a view.
func (n Namespace) IsSystemViews() bool { return n.ends(".system.views") }

// IsPrivileges reports whether n holds the users or the roles of a replica set.
func (n Namespace) IsPrivileges() bool { return n == "admin.system.users" || n == "admin.system.roles" }

// ends reports whether n ends with a dot and a collection's whole name. Every entry is
// asked more than once, and nearly all are told by a look at their end.
func (n Namespace) ends(tail string) bool {
	return strings.HasSuffix(string(n), tail) && n.Collection() == tail[1:]
}

const bucketsPrefix = "system.buckets."

// IsBuckets reports whether n holds the buckets of a time-series collection.
func (n Namespace) IsBuckets() bool { return strings.HasPrefix(n.Collection(), bucketsPrefix) }

// Buckets returns where the buckets of the time-series collection n are.
func (n Namespace) Buckets() Namespace {
	return NewNamespace(n.DB(), bucketsPrefix+n.Collection())
}

// Series returns the time-series collection that n holds the buckets of, and n
// itself where it holds none.
func (n Namespace) Series() Namespace {
	if name, ok := strings.CutPrefix(n.Collection(), bucketsPrefix); ok {
		return NewNamespace(n.DB(), name)
	}
	return n
}
