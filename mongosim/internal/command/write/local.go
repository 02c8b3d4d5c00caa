package write

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// localOps writes to the database local, without logging.
type localOps struct{ b *opwrite.Batch }

// View shows the newest data: see opwrite.Ops.
func (l localOps) View() storage.View { return l.b.View() }

// Insert stores documents: see opwrite.Ops.
func (l localOps) Insert(coll *storage.Collection, docs []bson.Raw, _ []opwrite.Stmt) (n int, err error) {
	for _, doc := range docs {
		err := l.b.Local(func(u *storage.Unit) error {
			_, err := u.Insert(coll.UUID, doc)
			return err
		})
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Update replaces a document: see opwrite.Ops.
func (l localOps) Update(coll *storage.Collection, old storage.Record, up opwrite.Update, _ opwrite.Stmt) error {
	return l.b.Local(func(u *storage.Unit) error { return u.Update(coll.UUID, old.ID, up.Post) })
}

// Delete removes a document: see opwrite.Ops.
func (l localOps) Delete(coll *storage.Collection, old storage.Record, _ opwrite.Stmt, _ opwrite.Image) error {
	return l.b.Local(func(u *storage.Unit) error { return u.Delete(coll.UUID, old.ID) })
}

// Create makes a collection: see opwrite.Ops.
func (l localOps) Create(ns oplog.Namespace, options, idIndex bson.Raw) (*storage.Collection, error) {
	return l.b.Create(ns, options, idIndex)
}

// CreateIndexes is refused: see opwrite.Ops.
func (l localOps) CreateIndexes(*storage.Collection, []bson.Raw) error {
	return servererr.New(servererr.NotImplemented, "indexes of the database local are not implemented here")
}
