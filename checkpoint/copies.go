package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// openNames is how many are named of what is not done.
	openNames = 3
	// goneLimit is how many collections may be gone while they are copied: their
	// UUIDs are in one reply, and in one command.
	goneLimit = 100_000
)

// number returns that of the link's copy.
func (h *Link) number() (int64, error) {
	// It does not change while the Link can be used.
	if h.state.Copy == nil {
		return 0, errNoCopy
	}
	return h.state.Copy.Number, nil
}

// Copies returns the collections and ranges of the link's copy, in no order. What
// an older number had is left out. It reads as a majority has it.
func (h *Link) Copies(ctx context.Context) ([]CopyCollection, []CopyRange, error) {
	number, err := h.number()
	if err != nil {
		return nil, nil, h.store.wrap(err, "read its copy")
	}
	var collections []CopyCollection
	var ranges []CopyRange
	cfg := &h.store.cfg
	filter := metadata.Below(copyPrefix(cfg.Link, number))
	// The link's session outlives its transactions, and is kept alive by Touch.
	err = h.store.readAll(ctx, h.txns.ID(), metadata.Copies, "majority", filter, func(doc bson.Raw) error {
		d, err := readCopyDoc(cfg.Link, number, doc)
		switch {
		case err != nil:
			return err
		case d.collection != nil:
			collections = append(collections, *d.collection)
		default:
			ranges = append(ranges, *d.part)
		}
		return nil
	})
	if err != nil {
		return nil, nil, h.store.wrap(err, "read its copy %d", number)
	}
	return collections, ranges, nil
}

// CopyCounts returns how many collections of the link's present copy are
// CollectionDone, and how many are in the metadata; 0 of 0 where it has none. Who
// does not have the lease may ask, and what it says may be rolled back.
func (s *Store) CopyCounts(ctx context.Context) (done, total int64, err error) {
	link, err := s.readLink(ctx)
	if err != nil {
		return 0, 0, s.wrap(err, "count what is copied")
	}
	if link.Copy == nil {
		return 0, 0, nil
	}
	all := metadata.Below(copyPrefix(s.cfg.Link, link.Copy.Number, kindCollection))
	// Done first: of those that are added meanwhile none is counted but in the
	// total.
	done, err = s.count(ctx, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(all(dst), "state", string(CollectionDone))
	})
	if err == nil {
		total, err = s.count(ctx, all)
	}
	if err != nil {
		return 0, 0, s.wrap(err, "count what is copied")
	}
	return done, total, nil
}

// count counts documents of copies.
func (s *Store) count(ctx context.Context, filter func(dst []byte) []byte) (int64, error) {
	reply, err := s.cfg.Target.Call(ctx, mongo.Command{DB: s.cfg.DB, Body: metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "count", metadata.Copies)
		return metadata.AppendDoc(dst, "query", filter)
	})})
	if err != nil {
		return 0, err
	}
	e, _ := rawbson.Lookup(reply, "n")
	n, ok := e.Int64()
	if !ok {
		return 0, errors.New("the reply of a count has no n")
	}
	return n, nil
}

// DropCopies removes the documents of collections and ranges of all copies of
// the link with a number below the given one, which is that of its copy at most.
func (h *Link) DropCopies(ctx context.Context, below int64) error {
	return h.locked(ctx, func() error {
		if h.copy != nil && below > h.copy.Number {
			return fmt.Errorf("the link is at copy %d", h.copy.Number)
		}
		for more := true; more; {
			var err error
			if more, err = h.dropSome(ctx, below); err != nil {
				return err
			}
		}
		return nil
	}, "drop the copies before %d", below)
}

// dropSome drops a batch of void documents, and tells whether there may be more.
func (h *Link) dropSome(ctx context.Context, below int64) (bool, error) {
	cfg := &h.store.cfg
	void := func(dst []byte) []byte {
		dst = metadata.Below(cfg.Link)(dst)
		return metadata.AppendDoc(dst, "number", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$lt", below) })
	}
	reply, err := cfg.Target.Call(ctx, metadata.Find(cfg.DB, metadata.Copies, metadata.ChunkDocs, void, "_id"))
	if err != nil {
		return false, err
	}
	docs, err := metadata.Found(reply)
	if err != nil || len(docs) == 0 {
		return false, err
	}
	ids := make([]string, len(docs))
	for i, doc := range docs {
		r := metadata.NewReader(doc)
		if ids[i] = r.Text("_id"); r.Err() != nil {
			return false, &metadata.DamagedError{Link: cfg.Link, What: "a copy: field " + r.Err().Error()}
		}
	}
	err = h.update(ctx, nothing, func(txn *mongo.Txn) error {
		return metadata.Run(ctx, txn, metadata.Delete(cfg.DB, metadata.Copies, metadata.AnyOf(ids)), int64(len(ids)))
	})
	return len(docs) == metadata.ChunkDocs, err
}

// AddCollections adds collections to the link's copy; one that is there already
// is left as it is. It is committed by a majority when it returns. Thousands at a
// time are fine.
func (h *Link) AddCollections(ctx context.Context, list []CopyCollection) error {
	return h.locked(ctx, func() error { return h.addCollections(ctx, list) }, "add %d collections to its copy", len(list))
}

func (h *Link) addCollections(ctx context.Context, list []CopyCollection) error {
	number, err := h.number()
	if err != nil {
		return err
	}
	cfg := &h.store.cfg
	updates := func(yield func(bson.Raw) bool) {
		for i := range list {
			c := &list[i]
			s := metadata.Insertion(collectionID(cfg.Link, number, c.UUID), func(dst []byte) []byte { return appendCollection(dst, number, c) })
			if !yield(s) {
				return
			}
		}
	}
	for docs := range metadata.Chunks(updates) {
		// Each commit waits for the majority: one that only the last of them waited
		// for could follow a failover that lost the others.
		err := h.update(ctx, nothing, func(txn *mongo.Txn) error {
			return metadata.Run(ctx, txn, metadata.Write(cfg.DB, "update", metadata.Copies, "updates", docs...), int64(len(docs)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// findNoneOpen finds, in a transaction, that all of the copy is done.
func (h *Link) findNoneOpen(ctx context.Context, txn *mongo.Txn) error {
	number, err := h.number()
	if err != nil {
		return err
	}
	cfg := &h.store.cfg
	collections := metadata.Below(copyPrefix(cfg.Link, number, kindCollection))
	err = h.findNone(ctx, txn, "collection", func(dst []byte) []byte {
		dst = collections(dst)
		return metadata.AppendDoc(dst, "state", func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "$ne", string(CollectionDone))
		})
	})
	if err != nil {
		return err
	}
	reply, err := txn.Call(ctx, metadata.Find(cfg.DB, metadata.Copies, goneLimit, func(dst []byte) []byte {
		return bsoncore.AppendBooleanElement(collections(dst), "gone", true)
	}, "uuid"))
	if err != nil {
		return err
	}
	docs, err := metadata.Found(reply)
	if err != nil {
		return err
	}
	gone := make([]oplog.UUID, len(docs))
	for i, doc := range docs {
		r := metadata.NewReader(doc)
		if gone[i] = r.UUID("uuid"); r.Err() != nil {
			return &metadata.DamagedError{Link: cfg.Link, What: "a copy: field " + r.Err().Error()}
		}
	}
	return h.findNone(ctx, txn, "range", func(dst []byte) []byte {
		dst = openRanges(metadata.Below(copyPrefix(cfg.Link, number, kindRange)))(dst)
		return metadata.AppendDoc(dst, "uuid", func(dst []byte) []byte {
			i, dst := bsoncore.AppendArrayElementStart(dst, "$nin")
			for j, u := range gone {
				dst = bsoncore.AppendBinaryElement(dst, strconv.Itoa(j), bson.TypeBinaryUUID, u[:])
			}
			return metadata.CloseDoc(dst, i)
		})
	})
}

// openRanges is a filter on ranges that are not done.
func openRanges(of func(dst []byte) []byte) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendBooleanElement(of(dst), "done", false) }
}

// findNone finds nothing of the copy that a filter for what is open matches.
func (h *Link) findNone(ctx context.Context, txn *mongo.Txn, what string, open func(dst []byte) []byte) error {
	reply, err := txn.Call(ctx, metadata.Find(h.store.cfg.DB, metadata.Copies, openNames, open, "_id"))
	if err != nil {
		return err
	}
	docs, err := metadata.Found(reply)
	if err != nil || len(docs) == 0 {
		return err
	}
	var names []string
	for _, doc := range docs {
		id, _ := rawbson.Lookup(doc, "_id")
		name, _ := id.Text()
		names = append(names, name)
	}
	return fmt.Errorf("the %s is not done, or not any more, of %q: %w", what, names, lease.ErrRewound)
}
