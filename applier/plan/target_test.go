package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// target is the data of a server: slow, and easy to check.
type target struct {
	docs map[oplog.Namespace][]bson.Raw
}

func newTarget() *target { return &target{docs: map[oplog.Namespace][]bson.Raw{}} }

func (t *target) clone() *target {
	c := newTarget()
	for ns, docs := range t.docs {
		c.docs[ns] = slices.Clone(docs)
	}
	return c
}

// String lists the documents by namespace and _id, with their bytes.
func (t *target) String() string {
	var lines []string
	for ns, docs := range t.docs {
		for _, doc := range docs {
			lines = append(lines, fmt.Sprintf("%s %s %x", ns, doc, []byte(doc)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func idOf(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}

func (t *target) find(ns oplog.Namespace, id bson.RawValue) int {
	return slices.IndexFunc(t.docs[ns], func(doc bson.Raw) bool { return bsonorder.Compare(idOf(doc), id, nil) == 0 })
}

func (t *target) get(ns oplog.Namespace, id bson.RawValue) (bson.Raw, bool) {
	if i := t.find(ns, id); i >= 0 {
		return t.docs[ns][i], true
	}
	return nil, false
}

// put stores a copy: the memory of a plan is reused by the next one.
func (t *target) put(ns oplog.Namespace, doc bson.Raw) {
	doc = slices.Clone(doc)
	if i := t.find(ns, idOf(doc)); i >= 0 {
		t.docs[ns][i] = doc
		return
	}
	t.docs[ns] = append(t.docs[ns], doc)
}

func (t *target) remove(ns oplog.Namespace, id bson.RawValue) {
	if i := t.find(ns, id); i >= 0 {
		t.docs[ns] = slices.Delete(t.docs[ns], i, i+1)
	}
}

// apply applies one operation by the rules of a secondary.
func (t *target) apply(op *plan.Op) error {
	doc, ok := t.get(op.Target, op.ID)
	switch op.Kind {
	case oplog.KindInsert:
		if ok && op.Mode == plan.ModeExact && !op.Grouped {
			return fmt.Errorf("insert of %s, which is there", op.ID)
		}
		t.put(op.Target, op.O)
	case oplog.KindDelete:
		t.remove(op.Target, op.ID)
	case oplog.KindUpdate:
		switch {
		case ok:
		case op.Upsert:
			doc = document(op.ID)
		case op.Mode == plan.ModeExact:
			return fmt.Errorf("update of %s, which is not there", op.ID)
		default:
			return nil
		}
		doc, err := update.Apply(doc, op.O)
		if err != nil {
			return err
		}
		t.put(op.Target, doc)
	default:
		return fmt.Errorf("apply %s", op.Kind)
	}
	return nil
}

// document is {_id: v}.
func document(v bson.RawValue) bson.Raw {
	at, b := bsoncore.ReserveLength(nil)
	b = append(append(b, byte(v.Type)), "_id\x00"...)
	b = append(append(b, v.Value...), 0)
	return bsoncore.UpdateLength(b, at, int32(len(b)))
}

var errDiverged = errors.New("a statement found nothing")

// server replaces zero timestamps by this value, which is never drawn.
var server = serverupdate.Options{Tick: func() bson.Timestamp { return bson.Timestamp{T: 0x7fffffff, I: 0x7fffffff} }}

// run executes a Write as a server in a transaction: the first statement that fails ends
// it.
func (t *target) run(w *plan.Write, ops []plan.Op) error {
	switch w.Kind {
	case plan.Insert:
		for _, doc := range w.Docs {
			if _, ok := t.get(w.NS, idOf(doc)); ok {
				return fmt.Errorf("insert of %s: duplicate key", idOf(doc))
			}
			stored, err := server.CheckInsert(doc)
			if err != nil {
				return err
			}
			t.put(w.NS, stored)
		}
	case plan.Update:
		n := 0
		for _, s := range w.Docs {
			found, err := t.update(w.NS, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			n += found
		}
		if n > w.Documents {
			return fmt.Errorf("statements for %d documents changed %d", w.Documents, n)
		}
		if w.MustMatch && n < w.Documents {
			return errDiverged
		}
	case plan.Delete:
		for _, s := range w.Docs {
			if err := t.delete(w.NS, s); err != nil {
				return err
			}
		}
	case plan.Modify:
		op := &ops[w.Ops[0][0]]
		doc, ok := t.get(op.Target, op.ID)
		switch {
		case !ok && op.Upsert:
			doc = document(op.ID)
		case !ok && w.MustMatch:
			return errDiverged
		case !ok:
			return nil
		}
		doc, err := update.Apply(doc, op.O)
		if err != nil {
			return err
		}
		if _, err := t.update(w.NS, plan.Replace(op.ID, doc, op.Upsert)); err != nil {
			return err
		}
	}
	return nil
}

// match returns the index of the document that a statement's q matches, -1 for none.
func (t *target) match(ns oplog.Namespace, s bson.Raw) (int, error) {
	q, _ := rawbson.Lookup(s, "q")
	m, err := serverquery.Compile(q.Value, serverquery.Options{})
	if err != nil {
		return -1, err
	}
	for i, doc := range t.docs[ns] {
		if ok, err := m.Match(doc); ok || err != nil {
			return i, err
		}
	}
	return -1, nil
}

// delete executes a statement: it deletes one document, or all that match.
func (t *target) delete(ns oplog.Namespace, s bson.Raw) error {
	limit, ok := s.Lookup("limit").Int32OK()
	if !ok || limit != 0 && limit != 1 {
		return fmt.Errorf("%s: the limit has to be 0 or 1", s)
	}
	for {
		i, err := t.match(ns, s)
		if err != nil || i < 0 {
			return err
		}
		t.docs[ns] = slices.Delete(t.docs[ns], i, i+1)
		if limit == 1 {
			return nil
		}
	}
}

// update executes a statement, and returns the number of documents that it has matched or
// created.
func (t *target) update(ns oplog.Namespace, s bson.Raw) (found int, err error) {
	u, _ := rawbson.Lookup(s, "u")
	upsert, _ := rawbson.Lookup(s, "upsert")
	if multi, _ := rawbson.Lookup(s, "multi"); multi.Truth() {
		return t.updateMany(ns, s)
	}
	i, err := t.match(ns, s)
	if err != nil || i < 0 && !upsert.Truth() {
		return 0, err
	}
	if entry, ok := internalApply(u.Raw()); ok {
		doc := document(upsertID(s))
		if i >= 0 {
			doc = t.docs[ns][i]
		}
		if form, err := update.Classify(entry); err != nil || form == update.FormModifiers {
			return 0, fmt.Errorf("the stage takes no %s, %w", form, err)
		}
		if doc, err = update.Apply(doc, entry); err == nil {
			t.put(ns, doc)
		}
		return 1, err
	}
	if err := serverupdate.CheckStatement(u.Raw()); err != nil {
		return 0, err
	}
	st, err := serverupdate.Compile(u.Raw(), server)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		doc, err := st.Upsert([]serverupdate.Equality{{Path: "_id", Value: upsertID(s)}})
		if err == nil {
			t.put(ns, doc)
		}
		return 1, err
	}
	r, err := st.Apply(t.docs[ns][i], serverupdate.NoMatch)
	if err == nil {
		t.docs[ns][i] = slices.Clone(r.Doc)
	}
	return 1, err
}

// updateMany executes a statement with a list of _ids.
func (t *target) updateMany(ns oplog.Namespace, s bson.Raw) (found int, err error) {
	u, _ := rawbson.Lookup(s, "u")
	q, _ := rawbson.Lookup(s, "q")
	if _, is := internalApply(u.Raw()); is {
		return 0, errors.New("a stage of entries for several documents")
	}
	if upsert, _ := rawbson.Lookup(s, "upsert"); upsert.Truth() {
		return 0, errors.New("an upsert for several documents")
	}
	m, err := serverquery.Compile(q.Value, serverquery.Options{})
	if err != nil {
		return 0, err
	}
	options := server
	options.Multi = true
	st, err := serverupdate.Compile(u.Raw(), options)
	if err != nil {
		return 0, err
	}
	for i, doc := range t.docs[ns] {
		ok, err := m.Match(doc)
		if err != nil {
			return found, err
		}
		if !ok {
			continue
		}
		r, err := st.Apply(doc, serverupdate.NoMatch)
		if err != nil {
			return found, err
		}
		t.docs[ns][i] = slices.Clone(r.Doc)
		found++
	}
	return found, nil
}

// upsertID returns the _id in a statement's filter.
func upsertID(s bson.Raw) bson.RawValue {
	q, _ := rawbson.Lookup(s, "q")
	id, _ := rawbson.Lookup(q.Value, "_id")
	if eq, ok := rawbson.Lookup(id.Value, "$eq"); id.Type == bson.TypeEmbeddedDocument && ok {
		return eq.Raw()
	}
	return id.Raw()
}

// internalApply returns the entry of a pipeline that applies one.
func internalApply(u bson.RawValue) (bson.Raw, bool) {
	if u.Type != bson.TypeArray {
		return nil, false
	}
	v, err := bson.Raw(u.Value).LookupErr("0", "$_internalApplyOplogUpdate", "oplogUpdate")
	return v.Value, err == nil
}

// flush executes a plan as a writer does: all of it, or, where a guard fails, one
// operation after the other.
func (t *target) flush(p plan.Plan, ops []plan.Op, opt plan.Options) (slow bool, err error) {
	before := t.clone()
	guarded := false
	for i := range p.Writes {
		guarded = guarded || p.Writes[i].Guarded
		err := t.run(&p.Writes[i], ops)
		if err != nil && guarded {
			slow = true // later statements may not have met their documents
			break
		}
		if err != nil {
			return false, fmt.Errorf("write %d, of %v: %w", i, p.Writes[i].Ops, err)
		}
	}
	if !slow {
		return false, nil
	}
	*t = *before
	for i := range ops {
		w, err := plan.One(ops[i], opt)
		if err != nil {
			return true, err
		}
		if err := t.run(&w, ops[i:i+1]); err != nil {
			return true, fmt.Errorf("operation %d alone: %w", i, err)
		}
	}
	return true, nil
}
