package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// How much of an insert statement the server writes at once (since 8.0 as one
// entry): documents, and bytes.
const (
	groupDocuments = 500
	groupBytes     = 256 << 10
)

// Insert stores documents; see Ops. Each has an entry and a timestamp of its own,
// or, since 8.0, each group of documents.
func (b *Batch) Insert(coll *storage.Collection, docs []bson.Raw, stmts []Stmt) (n int, err error) {
	if stmts != nil && len(stmts) != len(docs) {
		return 0, servererr.New(servererr.InternalError, "%d statements for %d documents", len(stmts), len(docs))
	}
	if err := b.allowed(coll.NS); err != nil {
		return 0, err
	}
	var session *Session
	prev := nullOpTime
	if len(stmts) > 0 && stmts[0].Session != nil {
		session = stmts[0].Session
		if prev, err = b.link(session); err != nil {
			return 0, err
		}
	}
	for n < len(docs) {
		if size := groupOf(docs[n:]); b.p.format.groupInserts && coll.CappedBytes == 0 && size > 1 {
			var ids []Stmt
			if session != nil {
				ids = stmts[n : n+size]
			}
			if prev, err = b.insertGroup(coll, docs[n:n+size], session, ids, prev); err == nil {
				n += size
				continue
			}
			// The server tries the documents one by one then.
		}
		for range groupOf(docs[n:]) {
			e := entry{op: "i", ns: coll.NS, ui: coll.UUID, o: docs[n], session: session}
			if session != nil {
				e.stmts, e.prev = []int32{stmts[n].ID}, prev
			}
			if prev, err = b.insertOne(coll, &e); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// groupOf returns how many of the documents are written at once, at least one.
func groupOf(docs []bson.Raw) int {
	n, size := 0, 0
	for n < len(docs) && n < groupDocuments {
		if size += len(docs[n]); n > 0 && size > groupBytes {
			break
		}
		n++
	}
	return n
}

// insertOne inserts and logs one document. It returns the optime that the next
// entry of the session links to.
func (b *Batch) insertOne(coll *storage.Collection, e *entry) (oplog.OpTime, error) {
	id, err := documentID(e.o)
	if err != nil {
		return e.prev, err
	}
	if b.p.format.modern {
		e.o2 = storage.IDDocument(id)
	}
	at, err := b.reserve(1)
	if err != nil {
		return e.prev, err
	}
	u := b.w.Begin(bson.Timestamp{})
	if _, err = u.Insert(coll.UUID, e.o); err == nil && e.session != nil {
		err = b.record(u, e.session, at)
	}
	var excess []pushedOut
	if err == nil && coll.CappedBytes > 0 {
		if b.p.format.trimsCapped {
			err = Trim(u, coll.UUID)
		} else {
			excess, err = b.deleteExcess(u, coll)
		}
	}
	if err != nil {
		u.Abort()
		return e.prev, err
	}
	u.Commit(at.TS)
	b.log(e, at)
	if e.session != nil {
		b.p.executed(e.session, e.prev, at, e.stmts...)
	}
	for i := range excess {
		excess[i].unit.Commit(excess[i].at.TS)
		b.log(&excess[i].entry, excess[i].at)
	}
	return at, nil
}

// pushedOut is the deletion of a document beyond a capped collection's limits.
type pushedOut struct {
	unit  *storage.Unit
	entry entry
	at    oplog.OpTime
}

// deleteExcess deletes the documents that u's insert pushes out of a capped
// collection, each by a unit and an entry of its own: from 5.0 on the primary
// logs these deletes. If one cannot be deleted, none is.
func (b *Batch) deleteExcess(u *storage.Unit, coll *storage.Collection) (all []pushedOut, err error) {
	now, ok := u.View().ByUUID(coll.UUID)
	if !ok {
		return nil, nil
	}
	wall := b.wall
	for _, old := range now.Excess() {
		d := pushedOut{unit: b.w.Begin(bson.Timestamp{})}
		var id bson.RawValue
		if id, err = documentID(old.Doc); err == nil {
			err = d.unit.Delete(coll.UUID, old.ID)
		}
		if err == nil {
			d.at, err = b.reserve(1)
			b.wall = wall // the insert is still to be logged
		}
		all = append(all, d)
		if err != nil {
			break
		}
		all[len(all)-1].entry = entry{op: "d", ns: coll.NS, ui: coll.UUID, o: storage.IDDocument(id)}
	}
	if err != nil {
		for _, d := range all {
			d.unit.Abort()
		}
		return nil, err
	}
	return all, nil
}

// Trim deletes the excess documents of a capped collection, as part of a unit.
func Trim(u *storage.Unit, id oplog.UUID) error {
	coll, ok := u.View().ByUUID(id)
	if !ok {
		return nil
	}
	for _, old := range coll.Excess() {
		if err := u.Delete(id, old.ID); err != nil {
			return err
		}
	}
	return nil
}

// insertGroup inserts documents at one timestamp, by one entry: all or none.
func (b *Batch) insertGroup(coll *storage.Collection, docs []bson.Raw, session *Session, stmts []Stmt, prev oplog.OpTime) (oplog.OpTime, error) {
	at, err := b.reserve(len(docs))
	if err != nil {
		return prev, err
	}
	u := b.w.Begin(bson.Timestamp{})
	ops := make([][]byte, len(docs))
	ids := make([]int32, len(stmts))
	for i, doc := range docs {
		e := entry{op: "i", ns: coll.NS, ui: coll.UUID, o: doc}
		var id bson.RawValue
		if id, err = documentID(doc); err != nil {
			break
		}
		e.o2 = storage.IDDocument(id)
		if stmts != nil {
			ids[i] = stmts[i].ID
			e.stmts = ids[i : i+1]
		}
		if _, err = u.Insert(coll.UUID, doc); err != nil {
			break
		}
		ops[i] = b.p.format.inner(&e)
	}
	if err == nil && session != nil {
		err = b.record(u, session, at)
	}
	if err != nil {
		u.Abort()
		return prev, err
	}
	u.Commit(at.TS)
	e := entry{op: "c", ns: adminCommands, o: applyOpsDocument(ops, nil)}
	if session != nil {
		e.session, e.prev, e.multiOp = session, prev, true
	}
	b.log(&e, at)
	if session != nil {
		b.p.executed(session, prev, at, ids...)
	}
	return at, nil
}
