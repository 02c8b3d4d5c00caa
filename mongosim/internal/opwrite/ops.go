package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Ops is the interface of a Batch, where each operation commits by itself, and a
// Txn, where all commit together. All methods may be called only within
// Path.Write. Refusals are *servererr.Error (DuplicateKey, NamespaceExists, …) or
// storage.ErrWriteConflict, and have no effect.
type Ops interface {
	// View returns the data that the next operation works on.
	View() storage.View
	// Insert stores documents in order and returns how many were stored before
	// the error. stmts is nil or has one entry per document.
	Insert(coll *storage.Collection, docs []bson.Raw, stmts []Stmt) (n int, err error)
	// Update replaces a document.
	Update(coll *storage.Collection, old storage.Record, up Update, stmt Stmt) error
	// Delete removes a document. image asks for a retry image of it.
	Delete(coll *storage.Collection, old storage.Record, stmt Stmt, image Image) error
	// Create makes a collection (options as in listCollections; idIndex nil for
	// the default one unless clustered) and returns it.
	Create(ns oplog.Namespace, options, idIndex bson.Raw) (*storage.Collection, error)
	// CreateIndexes builds indexes given by whole specifications. On an empty
	// collection each is logged as createIndexes, else start and commit of a build.
	CreateIndexes(coll *storage.Collection, specs []bson.Raw) error
}

// Stmt is the identity of a retryable statement. The zero Stmt is none.
type Stmt struct {
	Session *Session
	ID      int32
}

// Session identifies a session's writes in the oplog.
type Session struct {
	// LSID is the whole logical session id as logged: {id: UUID, uid: hash}.
	LSID      bson.Raw
	TxnNumber int64
}

// Image says which image of a findAndModify must be kept for a retry.
type Image uint8

// The images.
const (
	NoImage Image = iota
	PreImage
	PostImage
)

// name is the image's name in needsRetryImage and in config.image_collection.
func (i Image) name() string {
	if i == PreImage {
		return "preImage"
	}
	return "postImage"
}

// Update is the outcome of an update statement on one document.
type Update struct {
	// Post is the document afterwards.
	Post bson.Raw
	// Made is the result of a replacement or a pipeline before _id was moved to the
	// front, and kept if missing: the server logs this form. Nil is the same as
	// Post.
	Made bson.Raw
	// Delta is the $v:2 diff without its envelope and Modifiers the $v:1 form
	// ($v in front or not), for updates by operators. Both nil: Post is logged as
	// a replacement, or, with ByPipeline, whichever of the difference and the
	// document is smaller. A pipeline's update that changes nothing does nothing.
	Delta, Modifiers bson.Raw
	ByPipeline       bool
	Image            Image
}
