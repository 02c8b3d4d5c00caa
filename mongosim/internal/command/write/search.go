package write

import (
	"bytes"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// search finds the documents of one statement.
type search struct {
	filter, collation, sort bson.Raw
	hint                    read.Hint

	// The results of compile.
	match    *serverquery.Matcher
	collator *bsonorder.Collator
	order    *serverquery.Sort
	// ids bounds the _ids, unless the collection orders them by another collation.
	ids serverquery.Bounds
	// byID says that the filter is an _id, the one in id, and match was not needed.
	byID bool
	id   [1]bson.RawValue
}

// compile prepares the search on a collection, nil if there is none yet.
func (q *search) compile(ns oplog.Namespace, coll *storage.Collection) error {
	if q.match != nil || q.byID {
		return nil
	}
	if q.isByID(coll) {
		q.byID, q.ids = true, serverquery.Bounds{Exact: true, Points: q.id[:]}
		return nil
	}
	t := read.Target{NS: ns}
	if coll != nil {
		t = read.TargetOf(coll)
	}
	var err error
	same := true
	if coll != nil && len(q.collation) <= rawbson.MinSize {
		q.collator = coll.Collator
	} else if q.collator, same, err = t.Collator(q.collation); err != nil {
		return err
	}
	match, err := serverquery.Compile(q.filter, serverquery.Options{Collator: q.collator})
	if err != nil {
		return err
	}
	if coll != nil && (q.hint.Name != "" || q.hint.Key != nil) {
		debug := read.DebugQuery(ns, &read.FindArgs{Filter: q.filter, Sort: q.sort, Collation: q.collation, BatchSize: -1})
		if _, err := t.Forced(&read.Query{Filter: q.filter, Hint: q.hint, Debug: func() string { return debug }}); err != nil {
			return err
		}
	}
	if len(q.sort) > rawbson.MinSize {
		if q.order, err = serverquery.CompileSort(q.sort, serverquery.Options{Collator: q.collator}); err != nil {
			return err
		}
	}
	if q.match = match; same {
		q.ids = match.Bounds("_id")
	}
	return nil
}

// isByID reports whether the filter is only {_id: …} with a value that the index alone
// finds. Most statements are, and compiling the filter would be a third of their cost.
func (q *search) isByID(coll *storage.Collection) bool {
	if q.collation != nil || q.sort != nil || q.hint.Given() || coll != nil && coll.Collator != nil {
		return false
	}
	it := rawbson.NewIter(q.filter)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	switch it.Type {
	case bson.TypeObjectID, bson.TypeString, bson.TypeInt32, bson.TypeInt64, bson.TypeBinary, bson.TypeDateTime:
	default:
		return false // it may match more than itself, or be an operator
	}
	q.id[0] = it.Raw()
	return !it.Next() && it.Err() == nil
}

// equalities are the filter's equality conditions.
func (q *search) equalities() ([]serverquery.Equality, error) {
	if q.match == nil {
		var err error
		if q.match, err = serverquery.Compile(q.filter, serverquery.Options{Collator: q.collator}); err != nil {
			return nil, err
		}
	}
	return q.match.Equalities()
}

// candidates yields documents among which are all that match, in the server's
// order: by _id if the filter has a condition on it, else in natural order.
func (q *search) candidates(coll *storage.Collection) iter.Seq[storage.Record] {
	b := &q.ids
	switch {
	case q.order != nil && q.order.Natural() < 0:
		return coll.NaturalBackward(0)
	case q.hint.Natural > 0:
		return coll.Natural(0)
	case q.hint.Natural < 0:
		return coll.NaturalBackward(0)
	case b.Exact && len(b.Points) == 1:
		return func(yield func(storage.Record) bool) {
			if rec, ok := coll.Get(b.Points[0]); ok {
				yield(rec)
			}
		}
	case b.Exact:
		points := slices.Clone(b.Points)
		slices.SortFunc(points, func(a, b bson.RawValue) int { return bsonorder.Compare(a, b, coll.Collator) })
		return func(yield func(storage.Record) bool) {
			last := storage.RecordID(0)
			for _, p := range points {
				if rec, ok := coll.Get(p); ok && rec.ID != last {
					if last = rec.ID; !yield(rec) {
						return
					}
				}
			}
		}
	case b.Low.Type != 0 || b.High.Type != 0:
		return coll.ByID(storage.Bound{Value: b.Low, Inclusive: !b.LowOpen}, storage.Bound{Value: b.High, Inclusive: !b.HighOpen}, false)
	}
	return coll.Natural(0)
}

// matches reports whether a document is found, and through which array element, -1
// if through none.
func (q *search) matches(doc bson.Raw, positional bool) (bool, int, error) {
	if q.byID {
		return true, -1, nil
	}
	if positional {
		return q.match.MatchIndex(doc)
	}
	ok, err := q.match.Match(doc)
	return ok, -1, err
}

// first returns the document for a statement on one document.
func (q *search) first(coll *storage.Collection, positional bool) (rec storage.Record, index int, ok bool, err error) {
	if q.order != nil && !q.order.Empty() {
		return q.firstSorted(coll, positional)
	}
	for rec := range q.candidates(coll) {
		ok, index, err := q.matches(rec.Doc, positional)
		if ok || err != nil {
			return rec, index, ok, err
		}
	}
	return storage.Record{}, -1, false, nil
}

func (q *search) firstSorted(coll *storage.Collection, positional bool) (storage.Record, int, bool, error) {
	var found []storage.Record
	var docs []bson.Raw
	for rec := range q.candidates(coll) {
		ok, _, err := q.matches(rec.Doc, false)
		if err != nil {
			return storage.Record{}, -1, false, err
		}
		if ok {
			found, docs = append(found, rec), append(docs, rec.Doc)
		}
	}
	if len(docs) == 0 {
		return storage.Record{}, -1, false, nil
	}
	if err := q.order.Docs(docs); err != nil {
		return storage.Record{}, -1, false, err
	}
	i := slices.IndexFunc(found, func(rec storage.Record) bool { return bytes.Equal(rec.Doc, docs[0]) })
	_, index, err := q.matches(docs[0], positional)
	return found[i], index, true, err
}

// all returns the places of all documents that match.
func (q *search) all(coll *storage.Collection) ([]storage.RecordID, error) {
	var ids []storage.RecordID
	for rec := range q.candidates(coll) {
		ok, _, err := q.matches(rec.Doc, false)
		if err != nil {
			return nil, err
		}
		if ok {
			ids = append(ids, rec.ID)
		}
	}
	return ids, nil
}

// parseCollation reads a collation argument of a statement.
func parseCollation(structName string, e *rawbson.Elem) (bson.Raw, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, dispatch.WrongType(structName, "collation", e.Type, "object")
	}
	return doc, nil
}

// refuseConstants refuses variables of statements, which are not supported.
func refuseConstants(structName string, e *rawbson.Elem) error {
	if doc, ok := e.Document(); ok && len(doc) <= rawbson.MinSize {
		return nil
	}
	return servererr.New(servererr.NotImplemented, "%s.%s is not implemented here", structName, e.Name())
}
