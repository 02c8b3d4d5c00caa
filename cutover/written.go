package cutover

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// counted says what counts as a write of a user, besides writes to databases of users.
type counted struct {
	// expires means that the server expires documents: deletes without a session do not count, as
	// those are its own.
	expires bool
	// users means that users and roles are mirrored. A write block does not cover them.
	users bool
}

// writesAfter returns the last namespace to which the source's oplog has a write of a user after a
// time, empty for none, and the time of its last entry.
func writesAfter(ctx context.Context, source mongo.Caller, after bson.Timestamp, c counted) (ns string, end bson.Timestamp, err error) {
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: after}}}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "op", Value: 1}, {Key: "ns", Value: 1}, {Key: "lsid", Value: 1}, {Key: "o.applyOps.op", Value: 1}, {Key: "o.applyOps.ns", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "local"}}},
	})
	if err != nil {
		return "", after, err
	}
	docs, err := mongo.Retry{For: askFor}.ReadAll(ctx, source, nil, "local", body)
	if err != nil {
		return "", after, fmt.Errorf("read the source's oplog: %w", err)
	}
	end = after
	for _, doc := range docs {
		e, _ := rawbson.Lookup(doc, "ts")
		if at, ok := e.Timestamp(); ok {
			end = at
		}
		if name := c.writtenBy(doc); name != "" {
			ns = strings.Clone(name)
		}
	}
	return ns, end, nil
}

// writtenBy returns the last namespace that an entry writes to and that counts, empty for none.
func (c counted) writtenBy(doc bson.Raw) (name string) {
	_, session := rawbson.Lookup(doc, "lsid")
	add := func(doc bson.Raw) {
		op, _ := rawbson.Lookup(doc, "op")
		e, _ := rawbson.Lookup(doc, "ns")
		ns, _ := e.Text()
		kind, _ := op.Text()
		switch {
		case kind == "n":
		case c.users && ofUsersAndRoles(ns), ofUsers(ns) && (kind != "d" || session || !c.expires):
			name = ns
		}
	}
	add(doc)
	o, _ := rawbson.Lookup(doc, "o")
	inner, ok := o.Document()
	if !ok {
		return name
	}
	list, _ := rawbson.Lookup(inner, "applyOps")
	ops, ok := list.Array()
	if !ok {
		return name
	}
	for it := rawbson.NewIter(ops); it.Next(); {
		if op, ok := it.Document(); ok {
			add(op)
		}
	}
	return name
}

// ofUsers reports whether a namespace is one that a write block covers.
func ofUsers(ns string) bool {
	switch oplog.Namespace(ns).DB() {
	case "", "admin", "config", "local":
		return false
	}
	return true
}

// ofUsersAndRoles reports whether a namespace is one of those that users and roles are in.
func ofUsersAndRoles(ns string) bool { return ns == "admin.system.users" || ns == "admin.system.roles" }
