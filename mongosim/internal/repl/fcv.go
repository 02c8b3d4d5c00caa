package repl

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// versionNS holds the feature compatibility version.
const versionNS = oplog.Namespace("admin.system.version")

// saveVersion writes the feature compatibility version of a new set. The server
// does that when it first starts, before there is a log, so that there is no
// entry: other members get it with their first copy.
func (n *Node) saveVersion(at bson.Timestamp) error {
	id := n.newUUID("admin.system.version")
	doc := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", "featureCompatibilityVersion")
		return bsoncore.AppendStringElement(dst, "version", n.cfg.Dialect.FCV)
	})
	return n.cfg.Store.Write(func(w *storage.Writer) error {
		if _, ok := w.View(bson.Timestamp{}).Collection(versionNS); ok {
			return nil
		}
		u := w.Begin(bson.Timestamp{})
		if err := u.Create(versionNS, id, emptyDocument(), storage.IDIndex(2, nil)); err != nil {
			return err
		}
		if _, err := u.Insert(id, doc); err != nil {
			return err
		}
		u.Commit(at)
		return nil
	})
}
