package progress

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// openNames is how many unfinished documents an error names.
	openNames = 3
	// goneLimit is how many collections may be gone while they are copied: their UUIDs
	// must fit into one reply, and one command.
	goneLimit = 100_000
)

// Link is a link with the collections and ranges of its copy.
type Link struct {
	*checkpoint.Link
	cfg    checkpoint.Config
	number int64 // of the copy, 0 for none
}

// Of returns a link with the documents of its copy.
func Of(link *checkpoint.Link) *Link {
	h := &Link{Link: link, cfg: link.Config()}
	if c := link.Copy(); c != nil {
		h.number = c.Number
	}
	return h
}

// Lane returns writer i's lane.
func (h *Link) Lane(i int) *Lane { return &Lane{Lane: h.Link.Lane(i), link: h} }

// wrap adds the attempted action and the link to an error.
func (h *Link) wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("progress: link %q: %s: %w", h.cfg.Link, fmt.Sprintf(format, args...), err)
}

// UpdateCopy is [checkpoint.Link.UpdateCopy]. A change to Replaying needs all
// collections Done and all ranges done, except those of collections that are Gone, which
// is checked in the same transaction (lease.ErrRewound if the target lost some).
func (h *Link) UpdateCopy(ctx context.Context, c checkpoint.Copy) error {
	var also func(txn *mongo.Txn) error
	if now := h.Copy(); c.Phase == checkpoint.Replaying && now != nil && now.Phase != c.Phase {
		also = func(txn *mongo.Txn) error { return h.findNoneOpen(ctx, txn) }
	}
	return h.Link.UpdateCopy(ctx, c, also)
}

// Copies returns the collections and ranges of the link's copy, in any order. Those of
// an older number are left out. It reads with read concern majority.
func (h *Link) Copies(ctx context.Context) ([]Collection, []Range, error) {
	var collections []Collection
	var ranges []Range
	err := h.read(ctx, func(d copyDoc) {
		if d.collection != nil {
			collections = append(collections, *d.collection)
		} else {
			ranges = append(ranges, *d.part)
		}
	})
	return collections, ranges, h.wrap(err, "read its copy %d", h.number)
}

func (h *Link) read(ctx context.Context, yield func(d copyDoc)) error {
	if h.number == 0 {
		return checkpoint.ErrNoCopy
	}
	docs, err := metadata.FindAll(ctx, mongo.Retry{Again: mongo.Passes}, h.cfg.Target, mongo.NewSessionID(), h.cfg.DB, metadata.Copies,
		"majority", metadata.Below(copyPrefix(h.cfg.Link, h.number)))
	if err != nil {
		return err
	}
	for _, doc := range docs {
		d, err := readCopyDoc(h.cfg.Link, h.number, doc)
		if err != nil {
			return err
		}
		yield(d)
	}
	return nil
}

// Counts returns how many collections of a link's present copy are Done, and how many
// there are in the metadata; 0 of 0 if it has none. It needs no lease, and its result
// may be rolled back.
func Counts(ctx context.Context, store *checkpoint.Store) (done, total int64, err error) {
	st, _, err := store.Load(ctx)
	if err != nil || st.Copy == nil {
		return 0, 0, err
	}
	cfg := store.Config()
	all := metadata.Below(copyPrefix(cfg.Link, st.Copy.Number, kindCollection))
	// Done first, so that collections added meanwhile count in the total only.
	done, err = count(ctx, &cfg, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(all(dst), "state", string(Done))
	})
	if err == nil {
		total, err = count(ctx, &cfg, all)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("progress: link %q: count the copied documents: %w", cfg.Link, err)
	}
	return done, total, nil
}

// count counts documents of copies.
func count(ctx context.Context, cfg *checkpoint.Config, filter func(dst []byte) []byte) (int64, error) {
	reply, err := cfg.Target.Call(ctx, mongo.Command{DB: cfg.DB, Body: metadata.Document(func(dst []byte) []byte {
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

// DropCopies removes the documents of collections and ranges of all copies of the link
// with a number below the given one, which is at most the number of its copy.
func (h *Link) DropCopies(ctx context.Context, below int64) error {
	var err error
	if below > h.number && h.number > 0 {
		err = fmt.Errorf("the link is at copy %d", h.number)
	}
	for more := true; more && err == nil; {
		more, err = h.dropSome(ctx, below)
	}
	return h.wrap(err, "drop the copies before %d", below)
}

// dropSome drops a batch of void documents, and reports whether there may be more.
func (h *Link) dropSome(ctx context.Context, below int64) (bool, error) {
	cfg := &h.cfg
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
	err = h.Within(ctx, func(txn mongo.Caller) error {
		return metadata.Run(ctx, txn, metadata.Delete(cfg.DB, metadata.Copies, metadata.AnyOf(ids)), int64(len(ids)))
	})
	return len(docs) == metadata.ChunkDocs, err
}

// AddCollections adds collections to the link's copy; existing ones remain unchanged.
// It is committed by a majority when it returns. It accepts thousands at a time.
func (h *Link) AddCollections(ctx context.Context, list []Collection) error {
	return h.wrap(h.addCollections(ctx, list), "add %d collections to its copy", len(list))
}

func (h *Link) addCollections(ctx context.Context, list []Collection) error {
	if h.number == 0 {
		return checkpoint.ErrNoCopy
	}
	cfg, number := &h.cfg, h.number
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
		// Each commit waits for a majority. If only the last one did, it could succeed
		// after a failover that lost the earlier ones.
		err := h.Within(ctx, func(txn mongo.Caller) error {
			return metadata.Run(ctx, txn, metadata.Write(cfg.DB, "update", metadata.Copies, "updates", docs...), int64(len(docs)))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Replan makes a collection Planned again, without its ranges: another member has its
// documents at other places. It is committed by a majority when it returns.
func (h *Link) Replan(ctx context.Context, c Collection) error {
	if h.number == 0 {
		return checkpoint.ErrNoCopy
	}
	err := h.Within(ctx, func(txn mongo.Caller) error { return h.replan(ctx, txn, c) })
	return h.wrap(err, "plan the copy of %s (%s) again", c.NS, c.UUID)
}

func (h *Link) replan(ctx context.Context, txn mongo.Caller, c Collection) error {
	c.State = Planned
	cfg, number := &h.cfg, h.number
	err := metadata.Run(ctx, txn, metadata.Update(cfg.DB, metadata.Copies, metadata.Statement{
		Filter: metadata.ByID(collectionID(cfg.Link, number, c.UUID)),
		Change: func(dst []byte) []byte { return appendCollection(dst, number, &c) },
	}), 1)
	if err != nil {
		return err
	}
	ranges := metadata.Below(copyPrefix(cfg.Link, number, kindRange, hexUUID(c.UUID)))
	return metadata.Run(ctx, txn, metadata.Delete(cfg.DB, metadata.Copies, ranges), -1)
}

// MoveCopy is [checkpoint.Link.MoveCopy]. The same transaction makes collections Planned
// again, as Replan does.
func (h *Link) MoveCopy(ctx context.Context, c checkpoint.Copy, again []Collection) error {
	return h.Link.MoveCopy(ctx, c, func(txn *mongo.Txn) error {
		for i := range again {
			if err := h.replan(ctx, txn, again[i]); err != nil {
				return h.wrap(err, "plan the copy of %s (%s) again", again[i].NS, again[i].UUID)
			}
		}
		return nil
	})
}

// findNoneOpen checks, in a transaction, that all of the copy is done.
func (h *Link) findNoneOpen(ctx context.Context, txn *mongo.Txn) error {
	if h.number == 0 {
		return checkpoint.ErrNoCopy
	}
	cfg, number := &h.cfg, h.number
	collections := metadata.Below(copyPrefix(cfg.Link, number, kindCollection))
	err := h.findNone(ctx, txn, "collection", func(dst []byte) []byte {
		dst = collections(dst)
		return metadata.AppendDoc(dst, "state", func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "$ne", string(Done))
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

// openRanges is a filter for ranges that are not done.
func openRanges(of func(dst []byte) []byte) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendBooleanElement(of(dst), "done", false) }
}

// findNone checks that no document of the copy matches a filter.
func (h *Link) findNone(ctx context.Context, txn *mongo.Txn, what string, open func(dst []byte) []byte) error {
	reply, err := txn.Call(ctx, metadata.Find(h.cfg.DB, metadata.Copies, openNames, open, "_id"))
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
