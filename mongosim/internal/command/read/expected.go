package read

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

// expected reads the argument collectionUUID of a find. It came with 6.0; that of an earlier time is the collection that had the name
// then. See uuidField in package ddl.
func (a *FindArgs) expected(e *rawbson.Elem) error {
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || copy(a.uuid[:], data) != len(oplog.UUID{}) {
		return dispatch.WrongType("FindCommandRequest", e.Name(), e.Type, "binData")
	}
	return nil
}

// target finds what a find names, and refuses a collection of another UUID than it expects.
func (a *FindArgs) target(r *dispatch.Request, look dispatch.Looker) (t Target, err error) {
	if !a.uuid.IsZero() && !r.Server.AtLeast(6, 0) {
		return t, dispatch.UnknownField(r.Spec.StructName, "collectionUUID")
	}
	err = look(func(s dispatch.Sight) (err error) {
		if t, err = namedTarget(r, s); err == nil && !a.uuid.IsZero() && t.uuid != a.uuid {
			err = dispatch.UUIDMismatch(s.View, t.NS, a.uuid)
		}
		return err
	})
	return t, err
}
