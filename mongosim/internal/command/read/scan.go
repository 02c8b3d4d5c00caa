package read

import (
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// scanPiece is the number of documents that a scan reads before it releases the
// lock for writers.
const scanPiece = 1024

// scan walks a collection, or the oplog, and keeps its place while others write.
type scan struct {
	// ns and uuid are the collection as it was found. A zero uuid is the oplog, or
	// with none set a collection that does not exist.
	ns   oplog.Namespace
	uuid oplog.UUID
	none bool

	order scanOrder
	back  bool
	// lo and hi bound byID, points are the only values of byPoints, from and to
	// bound the oplog, both included (zero means no bound).
	lo, hi storage.Bound
	points []bson.RawValue
	// types are the only ones of the _ids that byID has to read, nil for all.
	types    []bson.Type
	from, to bson.Timestamp
	match    *serverquery.Matcher

	// at, atID and atEntry are the place: the last document read.
	begun   bool
	at      storage.RecordID
	atID    bson.RawValue
	atEntry oplog.OpTime
}

type scanOrder uint8

const (
	inNaturalOrder scanOrder = iota
	byID
	byPoints
)

type scanState uint8

const (
	// scanPaused: there may be more, call again.
	scanPaused scanState = iota
	// scanStopped: the visitor returned false.
	scanStopped
	// scanEnded: there is nothing more at present.
	scanEnded
)

// found is one document of a scan.
type found struct {
	doc bson.Raw
	id  storage.RecordID
}

// run visits the documents after the scan's place that match, until visit
// returns false or a piece is done.
func (sc *scan) run(s dispatch.Sight, visit func(f found) bool) (scanState, error) {
	if sc.none {
		return scanEnded, nil
	}
	if sc.ns == dispatch.OplogNamespace {
		return sc.runOplog(s, visit)
	}
	coll, err := sc.collection(s)
	if err != nil {
		return scanEnded, err
	}
	if sc.order == byPoints {
		return sc.runPoints(coll, visit)
	}
	looked := 0
	for rec := range sc.records(coll) {
		if looked == scanPiece {
			return scanPaused, nil
		}
		looked++
		sc.begun, sc.at = true, rec.ID
		if sc.order == byID {
			sc.atID = rec.Doc.Lookup("_id")
		}
		if state, err := sc.offer(found{rec.Doc, rec.ID}, visit); state != scanPaused || err != nil {
			return state, err
		}
	}
	return scanEnded, nil
}

// offer visits a document if it matches.
func (sc *scan) offer(f found, visit func(f found) bool) (scanState, error) {
	if sc.match != nil {
		ok, err := sc.match.Match(f.doc)
		if err != nil || !ok {
			return scanPaused, err
		}
	}
	if !visit(f) {
		return scanStopped, nil
	}
	return scanPaused, nil
}

// collection finds the scan's collection again. A cursor does not survive a
// drop or rename, nor, in a capped collection, the deletion of its place.
func (sc *scan) collection(s dispatch.Sight) (*storage.Collection, error) {
	coll, ok := s.ByUUID(sc.uuid)
	if !ok {
		return nil, servererr.New(servererr.QueryPlanKilled, "collection dropped. UUID %s", sc.uuid)
	}
	if coll.NS != sc.ns {
		return nil, servererr.New(servererr.QueryPlanKilled,
			"collection renamed from '%s' to '%s'. UUID %s", sc.ns, coll.NS, sc.uuid)
	}
	if sc.begun && sc.order == inNaturalOrder && coll.CappedBytes > 0 {
		if _, ok := coll.Record(sc.at); !ok {
			return nil, positionLost(int64(sc.at))
		}
	}
	return coll, nil
}

func positionLost(record int64) error {
	return servererr.New(servererr.CappedPositionLost,
		"CollectionScan died due to position in capped collection being deleted. Last seen record id: RecordId(%d)", record)
}

// records yields the documents after the scan's place.
func (sc *scan) records(coll *storage.Collection) iter.Seq[storage.Record] {
	switch {
	case sc.order == byID:
		lo, hi := sc.lo, sc.hi
		if sc.begun && sc.back {
			hi = storage.Bound{Value: sc.atID}
		} else if sc.begun {
			lo = storage.Bound{Value: sc.atID}
		}
		if len(sc.types) > 0 && !sc.back {
			return ofTypes(coll, lo, hi, sc.types)
		}
		return coll.ByID(lo, hi, sc.back)
	case sc.back && sc.begun && sc.at == 1:
		return func(func(storage.Record) bool) {} // 0 would mean from the end
	case sc.back:
		return coll.NaturalBackward(sc.at)
	default:
		return coll.Natural(sc.at)
	}
}

// runPoints visits the documents with the given _ids.
func (sc *scan) runPoints(coll *storage.Collection, visit func(f found) bool) (scanState, error) {
	for looked := 0; len(sc.points) > 0; looked++ {
		if looked == scanPiece {
			return scanPaused, nil
		}
		id := sc.points[0]
		sc.points = sc.points[1:]
		sc.begun = true
		rec, ok := coll.Get(id)
		if !ok {
			continue
		}
		if state, err := sc.offer(found{rec.Doc, rec.ID}, visit); state != scanPaused || err != nil {
			return state, err
		}
	}
	return scanEnded, nil
}

func (sc *scan) runOplog(s dispatch.Sight, visit func(f found) bool) (scanState, error) {
	if sc.begun {
		if e, ok := s.Log.At(sc.atEntry.TS); !ok || e.At != sc.atEntry {
			return scanEnded, positionLost(entryRecord(sc.atEntry.TS))
		}
	}
	looked := 0
	for e := range sc.entries(s) {
		if sc.begun && e.At == sc.atEntry {
			continue
		}
		if !sc.back && (beyond(e.At.TS, s.UpTo) || beyond(e.At.TS, sc.to)) {
			break
		}
		if sc.back && oplog.CompareTimestamps(e.At.TS, sc.from) < 0 {
			break
		}
		if looked == scanPiece {
			return scanPaused, nil
		}
		looked++
		sc.begun, sc.atEntry = true, e.At
		state, err := sc.offer(found{e.Raw, storage.RecordID(entryRecord(e.At.TS))}, visit)
		if state != scanPaused || err != nil {
			return state, err
		}
	}
	return scanEnded, nil
}

// entries yields the oplog from the scan's place, which may come first again.
func (sc *scan) entries(s dispatch.Sight) iter.Seq[storage.OplogEntry] {
	if !sc.back {
		start := sc.from
		// A resumed scan may be before it.
		if sc.begun && oplog.CompareTimestamps(sc.atEntry.TS, start) > 0 {
			start = sc.atEntry.TS
		}
		return s.Log.From(start)
	}
	start := sc.to
	switch {
	case sc.begun:
		start = sc.atEntry.TS
	case start == (bson.Timestamp{}) || beyond(start, s.UpTo):
		start = s.UpTo
	}
	return s.Log.Backward(start)
}

// beyond reports whether ts is after limit; the zero limit is none.
func beyond(ts, limit bson.Timestamp) bool {
	return limit != (bson.Timestamp{}) && oplog.CompareTimestamps(ts, limit) > 0
}

// entryRecord is the record id that the server gives an entry of the oplog.
func entryRecord(ts bson.Timestamp) int64 { return int64(ts.T)<<32 | int64(ts.I) }

// token is the postBatchResumeToken of a scan in natural order.
func (sc *scan) token() bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	switch {
	case !sc.begun:
		doc = bsoncore.AppendNullElement(doc, "$recordId")
	case sc.ns == dispatch.OplogNamespace:
		doc = bsoncore.AppendInt64Element(doc, "$recordId", entryRecord(sc.atEntry.TS))
	default:
		doc = bsoncore.AppendInt64Element(doc, "$recordId", int64(sc.at))
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// resumeAfter puts the scan after a record that must exist.
func (sc *scan) resumeAfter(s dispatch.Sight, record int64) error {
	gone := servererr.New(servererr.KeyNotFound, "Failed to resume collection scan: the recordId from which we are "+
		"attempting to resume no longer exists in the collection. recordId: RecordId(%d)", record)
	if sc.ns == dispatch.OplogNamespace {
		e, ok := s.Log.At(bson.Timestamp{T: uint32(record >> 32), I: uint32(record)}) //nolint:gosec // as entryRecord packed it
		if !ok {
			return gone
		}
		sc.begun, sc.atEntry = true, e.At
		return nil
	}
	coll, ok := s.ByUUID(sc.uuid)
	if !ok {
		return gone
	}
	if _, ok := coll.Record(storage.RecordID(record)); !ok {
		return gone
	}
	sc.begun, sc.at = true, storage.RecordID(record)
	return nil
}
