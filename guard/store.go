package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// ErrSuperseded reports that a leader of a later term has written the state.
var ErrSuperseded = errors.New("a later leader of the link has written it")

// Store has the state of a link in the metadata.
type Store struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// DB is the metadata database.
	DB, Link string
}

// clearedID returns the _id of the document that says up to when an operator has cleared foreign
// writes. It is separate, because the leader writes the other one.
func (s *Store) clearedID() string { return s.Link + "/cleared" }

// Read returns the stored state, nil if there is none.
func (s *Store) Read(ctx context.Context) (*State, error) {
	doc, err := metadata.FindOne(ctx, s.Target, s.DB, metadata.Guard, metadata.ByID(s.Link))
	if err != nil {
		return nil, s.wrap(err, "read")
	}
	if doc == nil {
		return nil, nil //nolint:nilnil // there is none, and that is not an error
	}
	return s.stateOf(doc)
}

// stateOf reads a state.
func (s *Store) stateOf(doc bson.Raw) (*State, error) {
	st, err := readState(doc)
	if err != nil {
		return nil, s.wrap(&metadata.DamagedError{Link: s.Link, What: fmt.Sprintf("a document of %s: %v", metadata.Guard, err)}, "read")
	}
	return &st, nil
}

// Survey returns the states of all links of a metadata database, without the writes that were cleared, by the names of the links.
func Survey(ctx context.Context, target mongo.Caller, db string) (map[string]*State, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{For: time.Minute}, target, nil, db, metadata.Guard, "local", func(dst []byte) []byte { return dst })
	if err != nil {
		return nil, fmt.Errorf("read the foreign writes in %s.%s of the target: %w", db, metadata.Guard, err)
	}
	all, cleared := make(map[string]*State, len(docs)), map[string]bson.Timestamp{}
	var faults []error
	for _, doc := range docs {
		id, _ := doc.Lookup("_id").StringValueOK()
		link, mark, _ := strings.Cut(id, "/")
		s := &Store{Target: target, DB: db, Link: strings.Clone(link)}
		if mark != "" {
			upTo, err := s.clearedUpTo(doc)
			cleared[s.Link], faults = upTo, append(faults, err)
			continue
		}
		st, err := s.stateOf(doc)
		all[s.Link], faults = st, append(faults, err)
	}
	for link, upTo := range cleared {
		if st := all[link]; st != nil {
			st.Clear(upTo)
		}
	}
	return all, errors.Join(faults...)
}

func (s *Store) wrap(err error, what string) error {
	return fmt.Errorf("%s the foreign writes to the target of link %q: %w", what, s.Link, err)
}

// Write stores a state in its term, with write concern majority if it must not be lost. It
// replaces one of an earlier term, or of none, and returns [ErrSuperseded] for one of a later
// term.
func (s *Store) Write(ctx context.Context, st *State, majority bool) error {
	if majority {
		return s.write(ctx, s.Target, metadata.Majority(s.update(st)))
	}
	return s.write(ctx, s.Target, metadata.PrimaryOnly(s.update(st)))
}

// WriteWithin stores a state as Write does, in a transaction.
func (s *Store) WriteWithin(ctx context.Context, txn mongo.Caller, st *State) error {
	return s.write(ctx, txn, s.update(st))
}

func (s *Store) update(st *State) mongo.Command {
	return metadata.Update(s.DB, metadata.Guard, metadata.Statement{
		Upsert: true,
		Filter: func(dst []byte) []byte {
			return metadata.AppendDoc(metadata.ByID(s.Link)(dst), "term", func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$gt", st.Term) })
			})
		},
		Change: st.append,
	})
}

func (s *Store) write(ctx context.Context, by mongo.Caller, cmd mongo.Command) error {
	err := metadata.Run(ctx, by, cmd, -1)
	switch {
	case err != nil && servererr.IsDuplicateKey(err): // The document exists, and the filter does not match it.
		return s.wrap(ErrSuperseded, "store")
	case err != nil:
		return s.wrap(err, "store")
	}
	return nil
}

// Cleared returns the timestamp of the target's oplog up to which an operator has cleared foreign
// writes, zero if none has.
func (s *Store) Cleared(ctx context.Context) (bson.Timestamp, error) {
	doc, err := metadata.FindOne(ctx, s.Target, s.DB, metadata.Guard, metadata.ByID(s.clearedID()))
	if err != nil || doc == nil {
		return bson.Timestamp{}, err
	}
	return s.clearedUpTo(doc)
}

// clearedUpTo reads the document with clearedID.
func (s *Store) clearedUpTo(doc bson.Raw) (bson.Timestamp, error) {
	r := metadata.NewReader(doc)
	upTo := until(r, fieldUntil, fieldAt)
	if at := r.Date(fieldAt); at > endOf(upTo).UnixMilli() { // moved by an earlier release
		upTo = wholeSecond(at)
	}
	if err := r.Err(); err != nil {
		return bson.Timestamp{}, s.wrap(err, "read")
	}
	return upTo, nil
}

// Clear records that the foreign writes up to a timestamp of the target's oplog have been dealt with. The
// leader reads that within seconds, or at its start.
func (s *Store) Clear(ctx context.Context, upTo bson.Timestamp) error {
	err := metadata.Run(ctx, s.Target, metadata.Majority(metadata.Update(s.DB, metadata.Guard, metadata.Statement{
		Upsert: true, Filter: metadata.ByID(s.clearedID()),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$max", func(dst []byte) []byte {
				dst = appendTime(dst, fieldAt, endOf(upTo))
				return bsoncore.AppendTimestampElement(dst, fieldUntil, upTo.T, upTo.I)
			})
		},
	})), -1)
	if err != nil {
		return s.wrap(err, "clear")
	}
	return nil
}

// Announced returns the commands that are announced now, and the link's parts.
func (s *Store) Announced(ctx context.Context) (open []Announced, parts []Part, err error) {
	ours := func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id."+fieldLink, s.Link) }
	docs, err := metadata.FindAll(ctx, mongo.Retry{}, s.Target, nil, s.DB, metadata.Commands, "local", ours)
	if err != nil {
		return nil, nil, s.wrap(err, "read")
	}
	for _, doc := range docs {
		if a, ok := readAnnounced(doc, s.Link); ok {
			open = append(open, a)
		}
	}
	of := func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, fieldOf, s.Link) }
	if docs, err = metadata.FindAll(ctx, mongo.Retry{}, s.Target, nil, s.DB, metadata.Links, "local", of); err != nil {
		return nil, nil, s.wrap(err, "read")
	}
	for _, doc := range docs {
		r := metadata.NewReader(doc)
		parts = append(parts, Part{r.Text("_id"), r.Text("instance")})
		if r.Err() != nil {
			return nil, nil, s.wrap(r.Err(), "read")
		}
	}
	return open, parts, nil
}

// forgetAfter is how long a command stays announced whose outcome is not known. A build of an
// index may take days.
const forgetAfter = 7 * 24 * time.Hour

// Forget deletes announcements that are so old that nothing executes their commands.
func (s *Store) Forget(ctx context.Context, now time.Time) error {
	err := metadata.Run(ctx, s.Target, metadata.PrimaryOnly(metadata.Delete(s.DB, metadata.Commands, func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id."+fieldLink, s.Link)
		return metadata.AppendDoc(dst, fieldAt, func(dst []byte) []byte {
			return bsoncore.AppendDateTimeElement(dst, "$lt", now.Add(-forgetAfter).UnixMilli())
		})
	})), -1)
	if err != nil {
		return s.wrap(err, "forget")
	}
	return nil
}

// Fields of the state's document.
const (
	fieldOf           = "of"
	fieldTerm         = "term"
	fieldWall         = "wall"
	fieldOpTime       = "optime"
	fieldCommandsFrom = "commandsFrom"
	fieldOpen         = "open"
	fieldParts        = "parts"
	fieldInstance     = "instance"
	fieldCounts       = "counts"
	fieldWrites       = "writes"
	fieldKind         = "kind"
	fieldID           = "id"
	fieldSession      = "session"
	fieldTxn          = "txn"
	fieldTouched      = "namespaces"
	fieldSource       = "source"
	fieldCount        = "count"
	fieldTwice        = "twice"
	fieldNow          = "now"
	fieldNowTo        = "nowTo"
	fieldGone         = "gone"
	fieldGoneTo       = "goneTo"
	fieldMade         = "made"
	fieldFirst        = "first"
	fieldLast         = "last"
	fieldCopying      = "copying"
	fieldDuring       = "during"
	fieldMore         = "more"
	fieldMoreLast     = "moreLast"
	fieldUntil        = "until"
	fieldMoreUntil    = "moreUntil"
	fieldGaps         = "gaps"
	fieldFrom         = "from"
	fieldWhy          = "why"
	fieldCleared      = "clearedUntil"
	// fieldClearedWall is what earlier releases read in its place.
	fieldClearedWall = "cleared"
)

func appendList(dst []byte, name string, n int, each func(dst []byte, i int) []byte) []byte {
	at, dst := bsoncore.AppendArrayElementStart(dst, name)
	for i := range n {
		dst = metadata.AppendDoc(dst, strconv.Itoa(i), func(dst []byte) []byte { return each(dst, i) })
	}
	return metadata.CloseDoc(dst, at)
}

func appendTime(dst []byte, name string, t time.Time) []byte {
	return bsoncore.AppendDateTimeElement(dst, name, t.UnixMilli())
}

// appendUntil appends a timestamp, but not the null one: a server makes the present time of that in a
// field of a document.
func appendUntil(dst []byte, name string, ts bson.Timestamp) []byte {
	if ts.IsZero() {
		return dst
	}
	return bsoncore.AppendTimestampElement(dst, name, ts.T, ts.I)
}

// append appends the fields of the document, but for the _id.
func (s *State) append(dst []byte) []byte {
	dst = bsoncore.AppendInt64Element(dst, fieldTerm, s.Term)
	dst = metadata.AppendOpTime(dst, fieldOpTime, s.At)
	dst = bsoncore.AppendDateTimeElement(dst, fieldWall, s.Wall)
	dst = metadata.AppendOpTime(dst, fieldCommandsFrom, s.CommandsFrom)
	dst = appendList(dst, fieldOpen, len(s.Open), func(dst []byte, i int) []byte {
		a := &s.Open[i]
		dst = bsoncore.AppendValueElement(dst, fieldID, bsoncore.Value{Type: bsoncore.Type(a.ID.Type), Data: a.ID.Value})
		return appendCommand(dst, a.Command, a.NS, a.To)
	})
	dst = appendList(dst, fieldParts, len(s.Parts), func(dst []byte, i int) []byte {
		dst = bsoncore.AppendStringElement(dst, fieldLink, s.Parts[i].Link)
		return bsoncore.AppendStringElement(dst, fieldInstance, s.Parts[i].Instance)
	})
	dst = metadata.AppendDoc(dst, fieldCounts, func(dst []byte) []byte {
		for _, kind := range slices.Sorted(maps.Keys(s.Counts)) {
			dst = bsoncore.AppendInt64Element(dst, kind, s.Counts[kind])
		}
		return dst
	})
	dst = appendList(dst, fieldWrites, len(s.Writes), func(dst []byte, i int) []byte { return s.Writes[i].append(dst) })
	dst = appendList(dst, fieldTouched, len(s.Touched), func(dst []byte, i int) []byte {
		t := &s.Touched[i]
		dst = bsoncore.AppendStringElement(dst, fieldNS, string(t.NS))
		dst = bsoncore.AppendStringElement(dst, fieldSource, string(t.Source))
		dst = bsoncore.AppendInt64Element(dst, fieldCount, t.Count)
		if t.Twice > 0 {
			dst = bsoncore.AppendInt64Element(dst, fieldTwice, t.Twice)
		}
		if t.Made {
			dst = bsoncore.AppendBooleanElement(dst, fieldMade, true)
		}
		dst = appendTime(appendTime(dst, fieldFirst, t.First), fieldLast, t.Last)
		dst = bsoncore.AppendTimestampElement(dst, fieldUntil, t.Until.T, t.Until.I)
		if !t.During.IsZero() {
			dst = appendTime(dst, fieldDuring, t.During)
		}
		return bsoncore.AppendBooleanElement(dst, fieldCopying, t.Copying)
	})
	dst = bsoncore.AppendInt64Element(dst, fieldMore, s.More)
	if !s.MoreLast.IsZero() {
		dst = appendTime(dst, fieldMoreLast, s.MoreLast)
		dst = appendUntil(dst, fieldMoreUntil, s.MoreUntil)
	}
	dst = appendList(dst, fieldGaps, len(s.Gaps), func(dst []byte, i int) []byte {
		dst = appendTime(appendTime(dst, fieldFrom, s.Gaps[i].From), fieldTo, s.Gaps[i].To)
		return bsoncore.AppendStringElement(dst, fieldWhy, s.Gaps[i].Why)
	})
	wall := time.Time{}
	if !s.Cleared.IsZero() {
		wall = endOf(s.Cleared)
	}
	dst = appendTime(dst, fieldClearedWall, wall)
	return appendUntil(dst, fieldCleared, s.Cleared)
}

// endOf returns the last millisecond of the second of an entry: an earlier release must take for cleared
// what this one does.
func endOf(ts bson.Timestamp) time.Time { return time.UnixMilli(int64(ts.T)*1000 + 999) }

func (w *Write) append(dst []byte) []byte {
	dst = metadata.AppendOpTime(dst, fieldOpTime, w.OpTime)
	dst = appendTime(dst, fieldWall, w.Wall)
	dst = bsoncore.AppendStringElement(dst, fieldKind, w.Kind)
	dst = bsoncore.AppendStringElement(dst, fieldNS, string(w.NS))
	dst = bsoncore.AppendStringElement(dst, fieldTo, string(w.To))
	dst = bsoncore.AppendStringElement(dst, fieldID, w.ID)
	for _, name := range []struct {
		field string
		is    oplog.Namespace
	}{{fieldNow, w.Now}, {fieldNowTo, w.NowTo}} {
		if name.is != "" {
			dst = bsoncore.AppendStringElement(dst, name.field, string(name.is))
		}
	}
	for _, gone := range []struct {
		field string
		is    bool
	}{{fieldGone, w.Gone}, {fieldGoneTo, w.GoneTo}} {
		if gone.is {
			dst = bsoncore.AppendBooleanElement(dst, gone.field, true)
		}
	}
	dst = bsoncore.AppendStringElement(dst, fieldSession, w.Session)
	return bsoncore.AppendInt64Element(dst, fieldTxn, w.Txn)
}

func timeOf(r *metadata.Reader, name string) time.Time { return time.UnixMilli(r.Date(name)).UTC() }

// until reads the timestamp of an entry; without one it is the end of the second of a wall: what an earlier
// release has written has none.
func until(r *metadata.Reader, name, wall string) bson.Timestamp {
	if r.Has(name) {
		return r.Timestamp(name)
	}
	return wholeSecond(r.Date(wall))
}

// wholeSecond returns the last timestamp of a second, of which millis is one.
func wholeSecond(millis int64) bson.Timestamp {
	return bson.Timestamp{T: uint32(millis / 1000), I: math.MaxUint32} //nolint:gosec // Until 2106, as all timestamps.
}

// found reads the timestamp of a foreign write; one that an earlier release has found is not later than
// the last entry that it has examined.
func (s *State) found(r *metadata.Reader, name, wall string) bson.Timestamp {
	ts := until(r, name, wall)
	if !r.Has(name) && !s.At.IsNull() && ts.After(s.At.TS) {
		ts = s.At.TS
	}
	return s.after(ts)
}

func readState(doc bson.Raw) (State, error) {
	if err := doc.Validate(); err != nil {
		return State{}, err
	}
	r := metadata.NewReader(doc)
	s := State{
		Term: r.Int64(fieldTerm), At: r.OpTime(fieldOpTime, false), Wall: r.Date(fieldWall),
		CommandsFrom: r.OpTime(fieldCommandsFrom, false), More: r.Int64(fieldMore), Counts: map[string]int64{},
	}
	if r.Has(fieldCleared) || r.Has(fieldClearedWall) && r.Date(fieldClearedWall) > 0 {
		s.Cleared = until(r, fieldCleared, fieldClearedWall)
	}
	if r.Has(fieldMoreLast) {
		s.MoreLast = timeOf(r, fieldMoreLast)
		s.MoreUntil = s.found(r, fieldMoreUntil, fieldMoreLast)
	}
	r.Docs(fieldOpen, func(sub *metadata.Reader) {
		s.Open = append(s.Open, Announced{
			ID: sub.Value(fieldID), Command: sub.Text(fieldCommand),
			NS: oplog.Namespace(sub.Text(fieldNS)), To: oplog.Namespace(sub.Text(fieldTo)),
		})
	})
	r.Docs(fieldParts, func(sub *metadata.Reader) {
		s.Parts = append(s.Parts, Part{sub.Text(fieldLink), sub.Text(fieldInstance)})
	})
	counts, _ := rawbson.Lookup(doc, fieldCounts)
	if kinds, ok := counts.Document(); ok {
		for it := rawbson.NewIter(kinds); it.Next(); {
			n, _ := it.Int64()
			s.Counts[string(bytes.Clone(it.Key))] = n
		}
	}
	r.Docs(fieldWrites, func(sub *metadata.Reader) {
		w := Write{
			OpTime: sub.OpTime(fieldOpTime, false), Wall: timeOf(sub, fieldWall), Kind: sub.Text(fieldKind),
			NS: oplog.Namespace(sub.Text(fieldNS)), To: oplog.Namespace(sub.Text(fieldTo)),
			ID: sub.Text(fieldID), Session: sub.Text(fieldSession), Txn: sub.Int64(fieldTxn), Gone: sub.Has(fieldGone), GoneTo: sub.Has(fieldGoneTo),
		}
		if sub.Has(fieldNow) {
			w.Now = oplog.Namespace(sub.Text(fieldNow))
		}
		if sub.Has(fieldNowTo) {
			w.NowTo = oplog.Namespace(sub.Text(fieldNowTo))
		}
		s.Writes = append(s.Writes, w)
	})
	r.Docs(fieldTouched, func(sub *metadata.Reader) {
		t := Touched{
			NS: oplog.Namespace(sub.Text(fieldNS)), Source: oplog.Namespace(sub.Text(fieldSource)), Count: sub.Int64(fieldCount),
			First: timeOf(sub, fieldFirst), Last: timeOf(sub, fieldLast), Copying: sub.Bool(fieldCopying),
			Made: sub.Has(fieldMade) && sub.Bool(fieldMade),
		}
		if sub.Has(fieldTwice) {
			t.Twice = sub.Int64(fieldTwice)
		}
		t.Until = s.found(sub, fieldUntil, fieldLast)
		if sub.Has(fieldDuring) {
			t.During = timeOf(sub, fieldDuring)
		}
		s.Touched = append(s.Touched, t)
	})
	r.Docs(fieldGaps, func(sub *metadata.Reader) {
		s.Gaps = append(s.Gaps, Gap{From: timeOf(sub, fieldFrom), To: timeOf(sub, fieldTo), Why: sub.Text(fieldWhy)})
	})
	return s, r.Err()
}
