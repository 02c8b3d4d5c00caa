package mongosim

import (
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Recording makes a set of one member play an oplog that another set wrote. The member's
// oplog begins with a no-op entry at First, and Member.Play appends the recorded entries.
// Clients cannot write: they get IllegalOperation.
type Recording struct {
	// First is the optime before the first recorded entry, at which a follower of the
	// oplog can start. Its term is the term of the entry after it.
	First oplog.OpTime
	// Collections are the member's data at First. They must include the collections of
	// config and admin that recorded entries write to and do not create. Views are
	// documents of system.views.
	Collections []StoredCollection
	// Moving is true if the documents were copied during writes, so that entries may
	// find data newer than themselves.
	Moving bool
}

// StoredCollection is a collection with its documents.
type StoredCollection struct {
	NS   oplog.Namespace
	UUID oplog.UUID
	// Options are those that listCollections returns.
	Options bson.Raw
	// Indexes are those that listIndexes returns. If the one on _id is missing it is added,
	// unless the collection is clustered or its options say otherwise.
	Indexes []bson.Raw
	// Documents are in natural order. Of two with the same _id the last one wins.
	Documents []bson.Raw
}

// errRecorded is the error of operations that a member with a recording
// refuses.
var errRecorded = errors.New("its data is a recording")

func (r *Recording) validate(members int) error {
	var faults []error
	if members != 1 {
		faults = append(faults, fmt.Errorf("mongosim: a recording is played by a set of one member, not %d", members))
	}
	if r.First.TS.T == 0 || r.First.Term < 0 {
		faults = append(faults, fmt.Errorf("mongosim: recording: a log cannot begin at %s", r.First))
	}
	return errors.Join(faults...)
}

// fill loads the recording's initial data into an empty store.
func (r *Recording) fill(store *storage.Store) error {
	return store.Write(func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		u.Relax() // a moving copy may violate unique indexes
		made := map[oplog.Namespace]bool{}
		for i := range r.Collections {
			c := &r.Collections[i]
			made[c.NS] = true
			if err := c.fill(u); err != nil {
				u.Abort()
				return fmt.Errorf("mongosim: recording: fill %s: %w", c.NS, err)
			}
		}
		if ns := opwrite.TransactionsNS; !made[ns] {
			// Collections that every primary creates, and the applier writes
			// to.
			if err := u.Create(ns, oplog.UUID{0x72, 0x65, 0x63}, emptyDocument, storage.IDIndex(2, nil)); err != nil {
				u.Abort()
				return fmt.Errorf("mongosim: recording: make %s: %w", ns, err)
			}
		}
		u.Commit(r.First.TS)
		w.Append(r.noop(), r.First)
		return nil
	})
}

var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

// noop returns the first entry of the log.
func (r *Recording) noop() bson.Raw {
	return marshal(bson.D{
		{Key: "op", Value: "n"},
		{Key: "ns", Value: ""},
		{Key: "o", Value: bson.D{{Key: "msg", Value: "a recorded log begins"}}},
		{Key: "ts", Value: r.First.TS},
		{Key: "t", Value: r.First.Term},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.NewDateTimeFromTime(time.Unix(int64(r.First.TS.T), 0))},
	})
}

func (c *StoredCollection) fill(u *storage.Unit) error {
	id, clustered := c.idIndex()
	if err := u.Create(c.NS, c.UUID, c.Options, id); err != nil {
		return err
	}
	for _, doc := range c.Documents {
		key, _ := rawbson.Lookup(doc, "_id")
		coll, _ := u.View().ByUUID(c.UUID)
		var err error
		if old, ok := coll.Get(key.Raw()); ok {
			err = u.Update(c.UUID, old.ID, doc)
		} else {
			_, err = u.Insert(c.UUID, doc)
		}
		if err != nil {
			return err
		}
	}
	for _, spec := range c.Indexes {
		if name := indexName(spec); name == "_id_" || name == clustered {
			continue
		}
		if err := u.AddIndex(c.UUID, spec, oplog.UUID{}); err != nil {
			return err
		}
	}
	return nil
}

// idIndex returns the spec of the index on _id, nil if there must be none, and
// the name of the clustered index, which comes from the options.
func (c *StoredCollection) idIndex() (id bson.Raw, clustered string) {
	for _, spec := range c.Indexes {
		if e, ok := rawbson.Lookup(spec, "clustered"); ok && e.Truth() {
			return nil, indexName(spec)
		}
		if indexName(spec) == "_id_" {
			return spec, ""
		}
	}
	if e, ok := rawbson.Lookup(c.Options, "clusteredIndex"); ok {
		return nil, indexName(bson.Raw(e.Value))
	}
	if e, ok := rawbson.Lookup(c.Options, "autoIndexId"); ok && !e.Truth() {
		return nil, ""
	}
	var collation bson.Raw
	if e, ok := rawbson.Lookup(c.Options, "collation"); ok {
		collation, _ = e.Document()
	}
	return storage.IDIndex(2, collation), ""
}

func indexName(spec bson.Raw) string {
	e, _ := rawbson.Lookup(spec, "name")
	name, _ := e.Text()
	return name
}

// played returns the options for applying the recording; nil without one.
func (o *Options) played() *replay.Options {
	if o.Recording == nil {
		return nil
	}
	return &replay.Options{Tolerant: o.Recording.Moving, TrimCapped: o.dialect().TrimsCapped()}
}

// Play applies recorded entries and appends them unchanged to the member's oplog; they are
// committed at once. It needs Options.Recording, and the entries in log order, in one call
// or several. If an entry cannot be applied, Play returns an error, and the entries before
// it remain. The entries are copied.
func (m *Member) Play(entries []bson.Raw) error {
	p := m.enter()
	if p == nil {
		return fmt.Errorf("mongosim: play entries on %s: %w", m.Host(), ErrDown)
	}
	defer p.done.Done()
	if err := p.node.Play(entries); err != nil {
		return fmt.Errorf("mongosim: play entries on %s: %w", m.Host(), err)
	}
	return nil
}
