package cutover

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// counted says what counts as a write of a user, besides writes to databases of users.
type counted struct {
	// deletes reports whether the server itself deletes documents from a collection: such deletes have no
	// session, and do not count. Neither have those of a client that deletes many documents at once. If it
	// is nil, all deletes count.
	deletes func(ns oplog.Namespace) (bool, error)
	// users means that users and roles are mirrored. A write block does not cover them.
	users bool
}

// each is a set of which each reply, not all of those together, has to come in time: the oplog that is read may be long.
type each struct{ mongo.Caller }

// Call implements mongo.Caller.
func (e each) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	limited, cancel := answering(ctx)
	defer cancel()
	reply, err := e.Caller.Call(limited, cmd)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return nil, context.Cause(limited)
	}
	return reply, err
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
	docs, err := mongo.Retry{For: askFor}.ReadAll(ctx, each{source}, nil, "local", body)
	if err != nil {
		return "", after, fmt.Errorf("read the source's oplog: %w", err)
	}
	end = after
	for _, doc := range docs {
		e, _ := rawbson.Lookup(doc, "ts")
		if at, ok := e.Timestamp(); ok {
			end = at
		}
		name, err := c.writtenBy(doc)
		if err != nil {
			return "", after, err
		}
		if name != "" {
			ns = strings.Clone(name)
		}
	}
	return ns, end, nil
}

// writtenBy returns the last namespace that an entry writes to and that counts, empty for none.
func (c counted) writtenBy(doc bson.Raw) (name string, err error) {
	_, session := rawbson.Lookup(doc, "lsid")
	add := func(doc bson.Raw) {
		op, _ := rawbson.Lookup(doc, "op")
		e, _ := rawbson.Lookup(doc, "ns")
		ns, _ := e.Text()
		kind, _ := op.Text()
		switch {
		case kind == "n":
		case c.users && ofUsersAndRoles(ns):
			name = ns
		case ofUsers(ns):
			own := false
			if kind == "d" && !session && c.deletes != nil && err == nil {
				own, err = c.deletes(oplog.Namespace(ns))
			}
			if !own {
				name = ns
			}
		}
	}
	add(doc)
	o, _ := rawbson.Lookup(doc, "o")
	inner, ok := o.Document()
	if !ok {
		return name, err
	}
	list, _ := rawbson.Lookup(inner, "applyOps")
	ops, ok := list.Array()
	if !ok {
		return name, err
	}
	for it := rawbson.NewIter(ops); it.Next(); {
		if op, ok := it.Document(); ok {
			add(op)
		}
	}
	return name, err
}

// deletesOf returns counted.deletes for a source that does not block writes. It asks once for each collection.
func deletesOf(ctx context.Context, source mongo.Caller) func(ns oplog.Namespace) (bool, error) {
	known := map[oplog.Namespace]bool{}
	return func(ns oplog.Namespace) (bool, error) {
		if own, ok := known[ns]; ok {
			return own, nil
		}
		own, err := guard.Deletes(ctx, each{source}, ns, oplog.UUID{})
		if err != nil {
			return false, fmt.Errorf("ask whether the source itself deletes from %s: %w", ns, err)
		}
		ns = oplog.Namespace(strings.Clone(string(ns)))
		known[ns] = own
		return own, nil
	}
}

// ofUsers reports whether a namespace is one that a write block covers.
func ofUsers(ns string) bool {
	db := oplog.Namespace(ns).DB()
	return db != "" && !oplog.IsServerDB(db)
}

// ofUsersAndRoles reports whether a namespace is one of those that users and roles are in.
func ofUsersAndRoles(ns string) bool { return ns == "admin.system.users" || ns == "admin.system.roles" }
