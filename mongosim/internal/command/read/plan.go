package read

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/indexspec"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// Target is the collection or view of a read.
type Target struct {
	// NS is the collection's name, also if it was given as UUID.
	NS     oplog.Namespace
	uuid   oplog.UUID
	exists bool
	// capped is true for the oplog too.
	capped bool
	// hasID is true if there is an index on _id; collation is the default one, as
	// stored, and indexes are those that a hint can name.
	hasID     bool
	collation bson.Raw
	indexes   []storage.Index
	// clustered is the spec that a hint names as it does an index, nil where the
	// collection is not clustered.
	clustered bson.Raw
	// view is set if ns is a view: it is the resolved one.
	view *viewdef.Resolved
}

// namedTarget finds what the first argument names: a collection or view by name, or a
// collection by UUID.
func namedTarget(r *dispatch.Request, s dispatch.Sight) (Target, error) {
	e := dispatch.FirstElem(r.Cmd)
	if subtype, data, ok := e.Binary(); ok {
		var u oplog.UUID
		if subtype != bson.TypeBinaryUUID || copy(u[:], data) != len(u) {
			return Target{}, servererr.New(servererr.InvalidNamespace, "Failed to parse namespace element")
		}
		coll, ok := s.ByUUID(u)
		if !ok || coll.NS.DB() != r.DB {
			return Target{}, servererr.New(servererr.NamespaceNotFound, "Unable to resolve %s", u)
		}
		return TargetOf(coll), nil
	}
	if r.InTxn() && (r.DB == "local" || r.DB == "config") {
		return Target{}, servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot run command against the '%s' database in a transaction", r.DB)
	}
	name, ok := e.Text()
	if !ok {
		return Target{}, servererr.New(servererr.InvalidNamespace, "collection name has invalid type %s", bsontext.TypeName(e.Type))
	}
	ns := oplog.NewNamespace(r.DB, name)
	if name == "" || name[0] == '.' || strings.ContainsRune(name, 0) {
		return Target{}, servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	if t, passed, err := snapshotTarget(r, s, ns); passed || err != nil {
		return t, err
	}
	return targetAt(s, ns)
}

// snapshotTarget resolves a name for a read at an earlier time, outside of transactions, where
// that differs from a read of the newest data (passed, or an error). Before 7.0 a server looks
// names up in its newest catalog, so that a collection that was dropped since reads as empty, and
// one that has had its name only since then cannot be read. A capped collection has no earlier
// times.
func snapshotTarget(r *dispatch.Request, s dispatch.Sight, ns oplog.Namespace) (t Target, passed bool, err error) {
	if r.InTxn() || r.ReadConcern.Level != "snapshot" || ns == dispatch.OplogNamespace {
		return t, false, nil
	}
	was, ok := s.Collection(ns)
	if !r.Server.AtLeast(7, 0) {
		since, now := s.NamedNow(ns)
		switch {
		case now && oplog.CompareTimestamps(since, s.UpTo) > 0:
			return t, false, servererr.New(servererr.SnapshotUnavailable,
				"Unable to read from a snapshot due to pending collection catalog changes; please retry the operation. Snapshot timestamp is Timestamp(%d, %d). Collection minimum is Timestamp(%d, %d)",
				s.UpTo.T, s.UpTo.I, since.T, since.I)
		case ok && !now:
			return Target{NS: ns}, true, nil
		}
	}
	if ok && was.CappedBytes > 0 {
		return t, false, servererr.New(servererr.SnapshotUnavailable, "Reading from capped collections with readConcern snapshot is not supported")
	}
	return t, false, nil
}

// targetAt resolves a name.
func targetAt(s dispatch.Sight, ns oplog.Namespace) (Target, error) {
	if ns == dispatch.OplogNamespace {
		return Target{NS: ns, exists: true, capped: true}, nil
	}
	if coll, ok := s.Collection(ns); ok {
		return TargetOf(coll), nil
	}
	res, err := viewdef.Resolve(s.View, ns)
	if err != nil {
		return Target{}, err
	}
	t := Target{NS: ns}
	if res.IsView {
		t.view, t.collation = &res, res.Collation
	}
	return t, nil
}

// TargetOf returns a collection as the target of a read.
func TargetOf(coll *storage.Collection) Target {
	t := Target{
		NS: coll.NS, uuid: coll.UUID, exists: true, capped: coll.CappedBytes > 0,
		hasID: coll.IDIndex != nil, indexes: coll.Indexes,
	}
	if e, ok := rawbson.Lookup(coll.Options, "collation"); ok {
		t.collation, _ = e.Document()
	}
	if e, ok := rawbson.Lookup(coll.Options, "clusteredIndex"); ok {
		t.clustered, _ = e.Document()
	}
	return t
}

// overrides reports whether a query's collation differs from that of its view.
func (t *Target) overrides(own bson.Raw) (bool, error) {
	if len(own) <= rawbson.MinSize {
		return false, nil
	}
	full, err := indexspec.Collation(own)
	return string(full) != string(t.collation), err
}

// Collator returns the collation of a query: its own, or the default of its
// target. same reports whether the index on _id has the same one.
func (t *Target) Collator(own bson.Raw) (c *bsonorder.Collator, same bool, err error) {
	spec := t.collation
	if len(own) > rawbson.MinSize {
		if spec, err = indexspec.Collation(own); err != nil {
			return nil, false, err
		}
	}
	if c, err = bsonorder.NewCollator(spec); err != nil {
		return nil, false, servererr.New(servererr.NotImplemented, "%s", err)
	}
	return c, string(spec) == string(t.collation), nil
}

// Query has the arguments that determine a scan.
type Query struct {
	Filter bson.Raw
	match  *serverquery.Matcher
	// same is true if the query's collation is that of the collection.
	same bool
	// sort may be nil; sortSpec is its text.
	sort     *serverquery.Sort
	sortSpec bson.Raw
	Hint     Hint
	// Debug prints the query as faults of the planner do.
	Debug func() string
}

// plan makes the scan for a query. sorted reports that it gives the documents in
// the order of the sort.
func (t *Target) plan(q *Query) (sc *scan, sorted bool, err error) {
	sc = &scan{ns: t.NS, uuid: t.uuid, none: !t.exists, match: q.match}
	if len(q.Filter) <= rawbson.MinSize {
		sc.match = nil
	}
	if !t.exists {
		return sc, false, nil
	}
	forced, err := t.Forced(q)
	if err != nil {
		return nil, false, err
	}
	natural := q.Hint.Natural
	if q.sort != nil && q.sort.Natural() != 0 {
		natural, sorted = q.sort.Natural(), true
	}
	sc.back = natural < 0
	if t.NS == dispatch.OplogNamespace {
		sc.boundTimes(q.match)
		if isFromTime(q.Filter) {
			sc.match = nil // the bound is exact
		}
		if direction := uniqueSort(q.sortSpec, "ts"); direction != 0 {
			sc.back, sorted = direction < 0, true
		}
		return sc, sorted, nil
	}
	if natural != 0 || !t.hasID || !q.same || forced != nil && !isIDKey(forced) {
		return sc, sorted, nil
	}
	direction := uniqueSort(q.sortSpec, "_id")
	b := q.match.Bounds("_id")
	switch {
	case b.Exact:
		sc.order, sc.points = byPoints, distinctPoints(b.Points, direction)
		sorted = sorted || direction != 0
	case b.Low.Type != 0 || b.High.Type != 0 || direction != 0 || forced != nil:
		sc.order, sc.back, sc.types = byID, direction < 0, b.Types
		sc.lo = storage.Bound{Value: b.Low, Inclusive: !b.LowOpen}
		sc.hi = storage.Bound{Value: b.High, Inclusive: !b.HighOpen}
		sorted = sorted || direction != 0
	}
	return sc, sorted, nil
}

// Forced returns the key of the index that a hint names; nil without one.
func (t *Target) Forced(q *Query) (bson.Raw, error) {
	if !q.Hint.Given() {
		return nil, nil
	}
	for _, index := range t.indexes {
		e, _ := rawbson.Lookup(index.Spec, "key")
		key, _ := e.Document()
		hidden, _ := rawbson.Lookup(index.Spec, "hidden")
		off, _ := hidden.Bool()
		if index.Building || off || q.Hint.Name != index.Name && !sameKey(key, q.Hint.Key) {
			continue
		}
		for _, partial := range []string{"sparse", "partialFilterExpression"} {
			if _, ok := rawbson.Lookup(index.Spec, partial); ok {
				return nil, servererr.New(servererr.NotImplemented, "hint at an index that is %s is not implemented here", partial)
			}
		}
		return key, nil
	}
	if t.clustered != nil {
		e, _ := rawbson.Lookup(t.clustered, "key")
		key, _ := e.Document()
		e, _ = rawbson.Lookup(t.clustered, "name")
		if name, _ := e.Text(); sameKey(key, q.Hint.Key) || name != "" && name == q.Hint.Name {
			return key, nil
		}
	}
	return nil, planFault(q, "planner returned error :: caused by :: hint provided does not correspond to an existing index")
}

func planFault(q *Query, what string) error {
	return servererr.New(servererr.BadValue, "error processing query: %s %s", q.Debug(), what)
}

// sameKey compares key patterns: names, order and numbers.
func sameKey(a, b bson.Raw) bool {
	if a == nil || b == nil {
		return false
	}
	return bsonorder.Compare(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: a},
		bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: b}, nil) == 0
}

func isIDKey(key bson.Raw) bool {
	e := rawbson.NewIter(key)
	return e.Next() && e.Is("_id") && !e.Next()
}

// uniqueSort returns the direction of a sort whose first key is the given one,
// of which no two are equal, so that the others do not matter; 0 for any other.
func uniqueSort(spec bson.Raw, key string) int {
	it := rawbson.NewIter(spec)
	if !it.Next() || !it.Is(key) {
		return 0
	}
	n, _ := dispatch.NumberArg(&it.Elem)
	return int(n)
}

// distinctPoints puts values into the order of the index on _id.
func distinctPoints(points []bson.RawValue, direction int) []bson.RawValue {
	compare := func(a, b bson.RawValue) int { return bsonorder.Compare(a, b, nil) }
	points = slices.Clone(points)
	slices.SortFunc(points, compare)
	points = slices.CompactFunc(points, func(a, b bson.RawValue) bool { return compare(a, b) == 0 })
	if direction < 0 {
		slices.Reverse(points)
	}
	return points
}

// boundTimes narrows a scan of the oplog to the timestamps that the filter
// allows.
func (sc *scan) boundTimes(m *serverquery.Matcher) {
	b := m.Bounds("ts")
	if b.Exact {
		var lo, hi bson.Timestamp
		for i, v := range b.Points {
			t, n, ok := v.TimestampOK()
			ts := bson.Timestamp{T: t, I: n}
			if !ok {
				return
			}
			if i == 0 || oplog.CompareTimestamps(ts, lo) < 0 {
				lo = ts
			}
			if oplog.CompareTimestamps(ts, hi) > 0 {
				hi = ts
			}
		}
		sc.none = len(b.Points) == 0
		sc.from, sc.to = lo, hi
		return
	}
	if t, n, ok := b.Low.TimestampOK(); ok {
		sc.from = bson.Timestamp{T: t, I: n}
	}
	if t, n, ok := b.High.TimestampOK(); ok {
		sc.to = bson.Timestamp{T: t, I: n}
	}
}

// isFromTime reports whether a filter is {ts: {$gte: …}} with a timestamp, as used
// by oplog readers.
func isFromTime(filter bson.Raw) bool {
	it := rawbson.NewIter(filter)
	if !it.Next() || !it.Is("ts") {
		return false
	}
	doc, ok := it.Document()
	if !ok || it.Next() {
		return false
	}
	cond := rawbson.NewIter(doc)
	return cond.Next() && cond.Is("$gte") && cond.Type == bson.TypeTimestamp && !cond.Next()
}
