package dispatch

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Needs requires an action on the collection that the command names.
func Needs(action string) func(*Request) error {
	return func(r *Request) error {
		ns, err := r.FirstName()
		if err != nil {
			return err
		}
		return r.Allowed(action, ns.DB(), ns.Collection())
	}
}

// NeedsDB requires an action on the command's database.
func NeedsDB(action string) func(*Request) error {
	return func(r *Request) error { return r.Allowed(action, r.DB, "") }
}

// Allowed asks the Authorizer, if there is one.
func (r *Request) Allowed(action, db, coll string) error {
	if r.Server.Config.Auth == nil || r.Conn.Internal {
		return nil
	}
	return r.Server.Config.Auth.Check(r.Conn, action, db, coll, r.Cmd)
}

// NeedsCluster requires an action on the whole set.
func NeedsCluster(action string) func(*Request) error {
	return func(r *Request) error { return r.Allowed(action, "", "") }
}

// MayOn is the check of commands that name a collection, or its UUID, first.
func MayOn(action string) func(r *Request) error {
	return func(r *Request) error {
		e := FirstElem(r.Cmd)
		if subtype, data, ok := e.Binary(); ok {
			return r.allowedOnUUID(action, subtype, data)
		}
		coll, _ := e.Text()
		return r.Allowed(action, r.DB, coll)
	}
}

// allowedOnUUID requires the use of UUIDs, and the action on the collection that has
// this one.
func (r *Request) allowedOnUUID(action string, subtype byte, data []byte) error {
	if err := r.Allowed("useUUID", "", ""); err != nil {
		return err
	}
	var u oplog.UUID
	if r.Server.Config.Auth == nil || r.Conn.Internal || subtype != bson.TypeBinaryUUID || copy(u[:], data) != len(u) {
		return nil // the command itself reports an unknown one
	}
	var ns oplog.Namespace
	err := r.Server.Config.Store.Read(func(rd *storage.Reader) error {
		if coll, ok := rd.View(bson.Timestamp{}).ByUUID(u); ok {
			ns = coll.NS.Clone()
		}
		return nil
	})
	if err != nil || ns == "" {
		return err
	}
	return r.Allowed(action, ns.DB(), ns.Collection())
}
