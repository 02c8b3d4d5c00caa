package ddl

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// send runs a command, adding write concern majority. While the target refuses it because
// of other work, send retries, until ctx is done or the lease is lost.
func (s *step) send(ctx context.Context, d change) (bson.Raw, error) {
	eased := false
	for tries := s.retry(d.again).Start(); ; {
		reply, err := s.run(ctx, &d)
		if err == nil {
			return reply, nil
		}
		if says(err, servererr.IsBuilding) && d.coll != nil && !eased {
			eased = true
			if err := s.ease(ctx, d.coll); err != nil {
				return nil, err
			}
		}
		if err := tries.Wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

// retry retries until ctx is done, and logs the first refusal.
func (s *step) retry(again func(error) bool) mongo.Retry {
	logged := false
	return mongo.Retry{For: mongo.Forever, Again: again, Failed: func(err error) {
		if !logged {
			logged = true
			s.logWaiting(err)
		}
	}}
}

// busyTxn reports whether a failed transaction had no effect and may be retried. The
// outcome of a failed commit may be unknown, whatever the reason of the failure.
func busyTxn(err error) bool {
	_, stuck := errors.AsType[*mongo.StuckError](err) // the fence has retried for a while
	disposition := mongo.DispositionOf(err)
	return stuck || disposition == mongo.Again || disposition == mongo.Smaller
}

// busy reports whether the target refused a command because of other work, or for lack of
// resources: the command had no effect. A command that was executed and lacks only the
// majority's acknowledgement was not refused.
func busy(err error) bool {
	if errors.Is(err, mongo.ErrTooLate) {
		return true
	}
	k := servererr.Classify(err)
	return k == servererr.Transient || k == servererr.Split
}

// says reports whether what, a predicate, is true of the target's refusal. For a late command the
// fence's error does not count.
func says(err error, what func(error) bool) bool {
	_, late := errors.AsType[*LateError](err)
	return !late && what(err)
}

// command begins a command on a collection.
func command(name, collection string) *bsoncore.DocumentBuilder {
	return bsoncore.NewDocumentBuilder().AppendString(name, collection)
}

// filter appends the elements of a filter, or of a document.
type filter = func(dst []byte) []byte

// put stores a document in a collection of the metadata, in place of an earlier one with
// its _id.
func (s *step) put(ctx context.Context, collection string, id, rest filter) error {
	return s.within(ctx, metadata.Update(s.cfg.MetaDB, collection, metadata.Statement{
		Filter: id, Change: func(dst []byte) []byte { return rest(id(dst)) }, Upsert: true,
	}))
}

// remove deletes documents from a collection of the metadata.
func (s *step) remove(ctx context.Context, collection string, which filter) error {
	return s.within(ctx, metadata.Delete(s.cfg.MetaDB, collection, which))
}

// readMetadata returns the documents of a collection of the metadata, by _id.
func readMetadata(ctx context.Context, target mongo.Caller, metaDB, collection string, which filter) ([]bson.Raw, error) {
	return catalog.ReadAll(ctx, target, metaDB, metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = metadata.AppendDoc(dst, "filter", which)
		return metadata.AppendDoc(dst, "sort", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "_id", 1) })
	}))
}
