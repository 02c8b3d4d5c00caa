package storage

import (
	"bytes"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// localDB is the database without versions.
const localDB = "local"

// exclusive is table for changes of the catalog: no other open unit may have
// written to the collection, and nothing may have been committed to it after the
// unit's snapshot.
func (u *Unit) exclusive(id oplog.UUID) (*table, *tableMeta, error) {
	t, m, err := u.table(id)
	if err != nil {
		return nil, nil, err
	}
	if u.isLater(t.lastTS, t.lastSeq) {
		return nil, nil, ErrWriteConflict
	}
	for _, o := range u.s.open {
		if _, wrote := o.size(t); wrote && o != u {
			return nil, nil, ErrWriteConflict
		}
	}
	return t, m, nil
}

// setMeta makes m, or the end if it is nil, the state of a collection.
func (u *Unit) setMeta(t *table, m *tableMeta) {
	var before oplog.Namespace
	if t.meta != nil && !t.meta.gone {
		before = t.meta.val.NS
	}
	v, isNew := put(&t.meta, u, m, m == nil)
	if isNew {
		u.metas = append(u.metas, metaChange{t, v})
	}
	if before != "" {
		u.s.refile(t, before)
	}
	if m != nil && m.NS != before {
		u.s.refile(t, m.NS)
	}
}

// free refuses a name that is taken; message is how the server words it.
func (u *Unit) free(ns oplog.Namespace, message string) error {
	tables, _ := u.s.names.Get(string(ns))
	for _, t := range tables {
		for v := t.meta; v != nil; v = v.prev {
			isNow := !v.gone && v.val.NS == ns
			wasBefore := v.prev != nil && !v.prev.gone && v.prev.val.NS == ns
			if isNow != wasBefore && conflict(v, u) {
				return ErrWriteConflict
			}
		}
		if m := seen(t.meta, &u.view); m != nil && m.val.NS == ns {
			return servererr.New(servererr.NamespaceExists, "%s", message)
		}
	}
	return nil
}

// Create makes a collection. options and idIndex as in Meta. It fails with
// NamespaceExists if the name is taken, and on a UUID that is in use; with
// NotImplemented if its collation cannot be followed.
func (u *Unit) Create(ns oplog.Namespace, id oplog.UUID, options, idIndex bson.Raw) error {
	if err := u.writable(); err != nil {
		return err
	}
	switch {
	case !ns.IsCollection():
		return servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	case id.IsZero():
		return servererr.New(servererr.InvalidUUID, "collection %s without a UUID", ns)
	}
	if err := u.free(ns, "Collection already exists. NS: "+string(ns)); err != nil {
		return err
	}
	for _, t := range u.s.uuids[id] {
		switch {
		case conflict(t.meta, u):
			return ErrWriteConflict
		case !t.meta.gone:
			return servererr.New(servererr.NamespaceExists, "collection %s: its UUID %s is that of %s", ns, id, t.meta.val.NS)
		}
	}
	m, err := newMeta(ns, id, options, idIndex)
	if err != nil {
		return err
	}
	t := &table{uuid: id, local: ns.DB() == localDB, lastID: u.s.opts.Records}
	u.setMeta(t, m)
	u.s.uuids[id] = append(slices.Clone(u.s.uuids[id]), t)
	u.s.databases[ns.Clone().DB()] = struct{}{}
	return nil
}

// CheckCase refuses a database while another one is open whose name differs in case only, also if that is empty (DatabaseHolderImpl::openDb in
// database_holder_impl.cpp). A member that applies the log does not ask.
func (u *Unit) CheckCase(db string) error {
	for open := range u.s.databases {
		if open != db && strings.EqualFold(open, db) {
			return servererr.New(differCase, "db already exists with different case already have: [%s] trying to create [%s]", open, db)
		}
	}
	return nil
}

// differCase is DatabaseDifferCase.
const differCase servererr.Code = 13297

// CloseDatabase closes a database that is dropped.
func (u *Unit) CloseDatabase(db string) { delete(u.s.databases, db) }

// Drop removes a collection with its documents and indexes.
func (u *Unit) Drop(coll oplog.UUID) error {
	t, _, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	u.setMeta(t, nil)
	return nil
}

// Rename gives a collection another name, which must be free.
func (u *Unit) Rename(coll oplog.UUID, to oplog.Namespace) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	switch {
	case !to.IsCollection():
		return servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", to)
	case (to.DB() == localDB) != t.local:
		return servererr.New(servererr.IllegalOperation, "Cannot rename collections between a replicated and an unreplicated database")
	}
	if err := u.free(to, "target namespace exists"); err != nil {
		return err
	}
	c := m.clone()
	c.NS = to.Clone()
	u.setMeta(t, c)
	return nil
}

// SetOptions replaces the collection's options (collMod).
func (u *Unit) SetOptions(coll oplog.UUID, options bson.Raw) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	c := m.clone()
	if err := c.setOptions(options); err != nil {
		return err
	}
	u.setMeta(t, c)
	return nil
}

// AddIndex adds an index. With build zero it is ready at once, and the stored
// documents are checked against it (DuplicateKey, CannotIndexParallelArrays);
// else it is listed as being built, and constrains nothing yet.
func (u *Unit) AddIndex(coll oplog.UUID, spec bson.Raw, build oplog.UUID) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	spec = bytes.Clone(spec)
	index := Index{Name: indexName(spec), Spec: spec, Building: !build.IsZero(), BuildUUID: build}
	switch {
	case index.Name == "":
		return servererr.New(servererr.CannotCreateIndex, "index of %s without a name: %s", m.NS, spec)
	case m.find(index.Name) >= 0:
		return servererr.New(servererr.IndexAlreadyExists, "Identical index already exists: %s", index.Name)
	}
	demand, err := newConstraint(spec, &u.s.opts)
	if err != nil {
		return err
	}
	c := m.clone()
	if index.Building {
		demand = nil
	} else if err := t.fill(m, demand, &u.view, u.relaxed); err != nil {
		return err
	}
	if isIDIndex(spec) && c.IDIndex == nil && !c.clustered {
		ids := &constraint{name: index.Name, pattern: idPattern, fields: []string{"_id"}, descending: []bool{false}, unique: true, coll: m.Collator}
		if err := t.fill(m, ids, &u.view, u.relaxed); err != nil {
			return err
		}
		c.IDIndex = spec
		c.Indexes = slices.Insert(c.Indexes, 0, index)
		c.constraints = slices.Insert(c.constraints, 0, nil)
	} else {
		c.Indexes = append(c.Indexes, index)
		c.constraints = append(c.constraints, demand)
	}
	u.setMeta(t, c)
	return nil
}

// isIDIndex reports whether a specification is that of the index on _id.
func isIDIndex(spec bson.Raw) bool {
	key, _ := rawbson.Lookup(spec, "key")
	pattern, _ := key.Document()
	it := rawbson.NewIter(pattern)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	n, _ := it.Int64()
	return n == 1 && !it.Next()
}

// CommitIndexes makes the indexes of a build ready, checking the stored
// documents.
func (u *Unit) CommitIndexes(coll, build oplog.UUID) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	c := m.clone()
	found := false
	for i := range c.Indexes {
		index := &c.Indexes[i]
		if !index.Building || index.BuildUUID != build {
			continue
		}
		found = true
		if c.constraints[i], err = newConstraint(index.Spec, &u.s.opts); err != nil {
			return err
		}
		if err := t.fill(m, c.constraints[i], &u.view, u.relaxed); err != nil {
			return err
		}
		index.Building, index.BuildUUID = false, oplog.UUID{}
	}
	if !found {
		return servererr.New(servererr.IndexNotFound, "no indexes of %s are being built by %s", m.NS, build)
	}
	u.setMeta(t, c)
	return nil
}

// DropIndex removes an index, or one that is being built.
func (u *Unit) DropIndex(coll oplog.UUID, name string) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	i := m.find(name)
	switch {
	case i < 0:
		return servererr.New(servererr.IndexNotFound, "index not found with name [%s]", name)
	case i == 0 && m.IDIndex != nil:
		return servererr.New(servererr.InvalidOptions, "cannot drop _id index")
	}
	c := m.clone()
	c.Indexes = slices.Delete(c.Indexes, i, i+1)
	c.constraints = slices.Delete(c.constraints, i, i+1)
	u.setMeta(t, c)
	return nil
}

// SetIndex replaces the specification of an index (collMod): same name and key.
// If its constraint changes, the stored documents are checked.
func (u *Unit) SetIndex(coll oplog.UUID, name string, spec bson.Raw) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	i := m.find(name)
	if i < 0 {
		return servererr.New(servererr.IndexNotFound, "cannot find index %s for ns %s", name, m.NS)
	}
	was, _ := rawbson.Lookup(m.Indexes[i].Spec, "key")
	is, _ := rawbson.Lookup(spec, "key")
	if indexName(spec) != name || !bytes.Equal(was.Value, is.Value) {
		return servererr.New(servererr.InvalidOptions, "index %s of %s: name and key stay as they are, not %s", name, m.NS, spec)
	}
	spec = bytes.Clone(spec)
	c := m.clone()
	c.Indexes[i].Spec = spec
	if i == 0 && m.IDIndex != nil {
		c.IDIndex = spec
		u.setMeta(t, c)
		return nil
	}
	if !c.Indexes[i].Building {
		demand, err := newConstraint(spec, &u.s.opts)
		if err != nil {
			return err
		}
		if !demand.demandsAs(c.constraints[i]) {
			if err := t.fill(m, demand, &u.view, u.relaxed); err != nil {
				return err
			}
			c.constraints[i] = demand
		}
	}
	u.setMeta(t, c)
	return nil
}
