package repl

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Collections of the database local that the server keeps its own state in. Each
// holds one document.
const (
	collConfig     = "system.replset"
	collElection   = "replset.election"
	collRollbackID = "system.rollback.id"
	collSyncID     = "replset.initialSyncId"
	collMinValid   = "replset.minvalid"
)

// restore reads the state that an earlier Node left in the store.
func (n *Node) restore() error {
	var confDoc, voteDoc, rbidDoc bson.Raw
	var last moment
	err := n.cfg.Store.Read(func(r *storage.Reader) error {
		view := r.View(bson.Timestamp{})
		confDoc = localDocument(view, collConfig)
		voteDoc = localDocument(view, collElection)
		rbidDoc = localDocument(view, collRollbackID)
		var err error
		last, err = newest(r)
		return err
	})
	if err != nil {
		return err
	}
	// The commit point is learned again, as by the server: stable entries need not be
	// committed, for instance after an initial sync.
	n.applied, n.durable, n.committed, n.hint = last, last, nullMoment, nullMoment
	n.term = oplog.InitialTerm
	n.rbid = 1
	if rbidDoc != nil {
		f := fields{doc: rbidDoc}
		n.rbid = int(f.int64("rollbackId"))
		if f.err != nil {
			return fmt.Errorf("local.%s: %w", collRollbackID, f.err)
		}
		if n.cfg.Unclean {
			n.rbid++
			if err := n.saveRollbackID(n.rbid); err != nil {
				return err
			}
		}
	} else if err := n.saveRollbackID(n.rbid); err != nil {
		return err
	}
	if voteDoc != nil {
		f := fields{doc: voteDoc}
		n.vote = vote{f.int64("term"), f.int64("candidateIndex")}
		if f.err != nil {
			return fmt.Errorf("local.%s: %w", collElection, f.err)
		}
	}
	if confDoc == nil {
		return nil
	}
	c, err := parseConfig(confDoc)
	if err != nil {
		return fmt.Errorf("local.%s: %w", collConfig, err)
	}
	n.term = max(n.term, n.vote.term, c.term, last.at.Term)
	n.install(c.with(c.version, c.term, n.cfg.Dialect.Version))
	return nil
}

// newest reads the optime of the newest entry.
func newest(r *storage.Reader) (moment, error) {
	e, ok := r.Oplog().Last()
	if !ok {
		return nullMoment, nil
	}
	m, err := entryMoment(e.Raw)
	if err != nil {
		return m, fmt.Errorf("newest entry of the oplog: %w", err)
	}
	return m, nil
}

func localNamespace(coll string) oplog.Namespace {
	return oplog.NewNamespace("local", coll)
}

func localDocument(view storage.View, name string) bson.Raw {
	coll, ok := view.Collection(localNamespace(name))
	if !ok {
		return nil
	}
	for rec := range coll.Natural(0) {
		return rec.Doc
	}
	return nil
}

// saveLocal replaces the document of a local collection. build gets the _id of the
// present one, if there is one.
func (n *Node) saveLocal(w *storage.Writer, name string, build func(id bson.RawValue) bson.Raw) error {
	u := w.Begin(bson.Timestamp{})
	ns := localNamespace(name)
	coll, ok := u.View().Collection(ns)
	if !ok {
		id := n.newUUID(string(ns))
		if err := u.Create(ns, id, emptyDocument(), storage.IDIndex(2, nil)); err != nil {
			return err
		}
		coll, ok = u.View().Collection(ns)
		if !ok {
			return fmt.Errorf("%s: not there after it was created", ns)
		}
	}
	for rec := range coll.Natural(0) {
		id, err := rec.Doc.LookupErr("_id")
		if err != nil {
			return err
		}
		doc := build(id)
		if doc.Lookup("_id").Equal(id) {
			err = u.Update(coll.UUID, rec.ID, doc)
		} else if err = u.Delete(coll.UUID, rec.ID); err == nil {
			_, err = u.Insert(coll.UUID, doc)
		}
		if err != nil {
			return err
		}
		u.Commit(bson.Timestamp{})
		return nil
	}
	if _, err := u.Insert(coll.UUID, build(bson.RawValue{})); err != nil {
		return err
	}
	u.Commit(bson.Timestamp{})
	return nil
}

func emptyDocument() bson.Raw { return document(func(dst []byte) []byte { return dst }) }

// identified builds a document whose _id is the given one, or a new ObjectId.
func (n *Node) identified(fill func(dst []byte) []byte) func(id bson.RawValue) bson.Raw {
	return func(id bson.RawValue) bson.Raw {
		return document(func(dst []byte) []byte {
			if id.IsZero() {
				dst = bsoncore.AppendObjectIDElement(dst, "_id", n.newObjectID("local document"))
			} else {
				dst = bsoncore.AppendValueElement(dst, "_id", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
			}
			return fill(dst)
		})
	}
}

// save writes one document of the database local.
func (n *Node) save(name string, build func(id bson.RawValue) bson.Raw) error {
	err := n.cfg.Store.Write(func(w *storage.Writer) error { return n.saveLocal(w, name, build) })
	if err != nil {
		return fmt.Errorf("save local.%s: %w", name, err)
	}
	return nil
}

// saveVote stores the newest vote; it returns when a vote at least as new as that
// at the time of the call is stored.
func (n *Node) saveVote() error {
	n.saving.Lock()
	defer n.saving.Unlock()
	n.mu.Lock()
	v, closed := n.vote, n.closed
	n.mu.Unlock()
	if closed {
		return errShutdown()
	}
	return n.save(collElection, n.identified(func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "term", v.term)
		return bsoncore.AppendInt64Element(dst, "candidateIndex", v.candidate)
	}))
}

// saveConfig stores the newest configuration.
func (n *Node) saveConfig() error {
	n.saving.Lock()
	defer n.saving.Unlock()
	n.mu.Lock()
	c, closed := n.conf, n.closed
	n.mu.Unlock()
	if closed {
		return errShutdown()
	}
	return n.save(collConfig, func(bson.RawValue) bson.Raw { return c.doc })
}

func (n *Node) saveRollbackID(id int) error {
	return n.save(collRollbackID, rollbackIDDocument(id))
}

// saveOrigin stores where this member's data began: a new initial sync id, and
// that the data is consistent from the start.
func (n *Node) saveOrigin() error {
	now, id := n.cfg.Now(), n.newUUID("initial sync")
	err := n.save(collSyncID, func(bson.RawValue) bson.Raw {
		return document(func(dst []byte) []byte {
			dst = bsoncore.AppendBinaryElement(dst, "_id", bson.TypeBinaryUUID, id[:])
			return appendWall(dst, "wallTime", now)
		})
	})
	if err != nil {
		return err
	}
	return n.save(collMinValid, n.identified(func(dst []byte) []byte {
		dst = bsoncore.AppendTimestampElement(dst, "ts", 0, 1)
		return bsoncore.AppendInt64Element(dst, "t", oplog.UninitializedTerm)
	}))
}
