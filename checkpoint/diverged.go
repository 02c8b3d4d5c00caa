package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Diverged are the operations on one collection that met what they cannot have met at the source, and after which
// the link has continued: the collection may differ from the source's since.
//
//	{_id: LINK/WRITER/SOURCE, of, ns, source, ops, first, last, op, since, until, what, renamed, addedBy}
//
// There is one document for each writer, so that writers do not wait for each other. It is written in the
// transaction that moves the writer past the operations, or before the checkpoint can pass them.
type Diverged struct {
	// NS is the collection's name on the target, Source at the source; of a time series that of the series.
	NS, Source oplog.Namespace
	// Ops counts the operations.
	Ops int64
	// First and Last are the timestamps of the oldest and the newest of their entries, or of a later rename; Op is the operation of
	// Last within its entry.
	First, Last bson.Timestamp
	Op          int64
	// Since and Until are when the first and the last of them were met, by the clock of the process.
	Since, Until time.Time
	// What describes what the newest of them met.
	What string
	// AddedBy, if not zero, identifies the transaction that adds the operations, for IsAdded.
	AddedBy bson.ObjectID
}

// Add adds operations on the same collection that were met later.
func (d *Diverged) Add(more *Diverged) {
	if d.Ops == 0 {
		*d = *more
		return
	}
	d.Ops += more.Ops
	if more.First.Before(d.First) {
		d.First = more.First
	}
	if c := oplog.CompareTimestamps(more.Last, d.Last); c > 0 || c == 0 && more.Op > d.Op {
		d.NS, d.Last, d.Op, d.What = more.NS, more.Last, more.Op, more.What
	}
	if more.Since.Before(d.Since) {
		d.Since = more.Since
	}
	if more.Until.After(d.Until) {
		d.Until = more.Until
	}
}

// Fields of the documents.
const (
	divergedOf     = "of"
	divergedSource = "source"
	divergedLast   = "last"
	// divergedRenamed is the entry of the rename that has given the document its names.
	divergedRenamed = "renamed"
	divergedAddedBy = "addedBy"
)

func divergedID(link, writer string, source oplog.Namespace) string {
	return link + "/" + writer + "/" + string(source)
}

// Statement returns the statement that adds the operations to those that a writer of a link has met. Of is the link that the link
// is a part of, empty for none.
func (d *Diverged) Statement(link, of, writer string) metadata.Statement {
	stamp := func(dst []byte, name string, ts bson.Timestamp) []byte {
		return bsoncore.AppendTimestampElement(dst, name, ts.T, ts.I)
	}
	return metadata.Statement{Upsert: true, Filter: metadata.ByID(divergedID(link, writer, d.Source)), Change: func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			if of != "" {
				dst = bsoncore.AppendStringElement(dst, divergedOf, of)
			}
			dst = bsoncore.AppendStringElement(dst, "ns", string(d.NS))
			dst = bsoncore.AppendStringElement(dst, divergedSource, string(d.Source))
			if !d.AddedBy.IsZero() {
				dst = bsoncore.AppendObjectIDElement(dst, divergedAddedBy, d.AddedBy)
			}
			dst = bsoncore.AppendInt64Element(dst, "op", d.Op)
			return bsoncore.AppendStringElement(dst, "what", d.What)
		})
		dst = metadata.AppendDoc(dst, "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "ops", d.Ops) })
		dst = metadata.AppendDoc(dst, "$min", func(dst []byte) []byte {
			return bsoncore.AppendDateTimeElement(stamp(dst, "first", d.First), "since", d.Since.UnixMilli())
		})
		return metadata.AppendDoc(dst, "$max", func(dst []byte) []byte {
			return bsoncore.AppendDateTimeElement(stamp(dst, divergedLast, d.Last), "until", d.Until.UnixMilli())
		})
	}}
}

// IsAdded reports, in a transaction, whether an earlier one, whose outcome is not known, has added to the operations on a collection that a
// writer of a link has met. That writer must not have added others since.
func IsAdded(ctx context.Context, txn mongo.Caller, db, link, writer string, source oplog.Namespace, addedBy bson.ObjectID) (bool, error) {
	doc, err := metadata.FindOne(ctx, txn, db, metadata.Diverged, func(dst []byte) []byte {
		return bsoncore.AppendObjectIDElement(metadata.ByID(divergedID(link, writer, source))(dst), divergedAddedBy, addedBy)
	}, "_id")
	return doc != nil, err
}

// readDiverged reads a document. One that is damaged counts as one operation whose time is not known: no comparison is later.
func readDiverged(doc bson.Raw) (d Diverged, writer string) {
	r := metadata.NewReader(doc)
	d = Diverged{
		NS: oplog.Namespace(r.Text("ns")), Source: oplog.Namespace(r.Text(divergedSource)), Ops: r.Int64("ops"), Op: r.Int64("op"),
		First: r.Timestamp("first"), Last: r.Timestamp(divergedLast), Since: time.UnixMilli(r.Date("since")).UTC(), Until: time.UnixMilli(r.Date("until")).UTC(), What: r.Text("what"),
	}
	id, _ := doc.Lookup("_id").StringValueOK()
	_, rest, _ := strings.Cut(id, "/")
	writer, source, _ := strings.Cut(rest, "/")
	if r.Err() != nil {
		const never = 1<<32 - 1
		d.Ops, d.Last, d.What = max(1, d.Ops), bson.Timestamp{T: never, I: never}, "a document of the metadata that is damaged"
		d.Source = cmp.Or(d.Source, oplog.Namespace(source))
		d.NS = cmp.Or(d.NS, d.Source)
	}
	return d, strings.Clone(writer)
}

// findDiverged reads documents as the target's primary has them: all confirmed ones are among them. Read concern majority could leave out the newest
// ones after an election.
func findDiverged(ctx context.Context, target mongo.Caller, db string, filter func([]byte) []byte) ([]bson.Raw, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{For: time.Minute}, target, nil, db, metadata.Diverged, "local", filter)
	if err != nil {
		return nil, fmt.Errorf("read the divergences in %s.%s of the target: %w", db, metadata.Diverged, err)
	}
	return docs, nil
}

// ReadDiverged returns the divergences of a link, one for each collection, sorted by their names at the source.
func ReadDiverged(ctx context.Context, target mongo.Caller, db, link string) ([]Diverged, error) {
	docs, err := findDiverged(ctx, target, db, metadata.Below(link))
	if err != nil {
		return nil, err
	}
	return sumDiverged(docs), nil
}

// SurveyDiverged returns those of all links of a metadata database, by the names of the links.
func SurveyDiverged(ctx context.Context, target mongo.Caller, db string) (map[string][]Diverged, error) {
	docs, err := findDiverged(ctx, target, db, func(dst []byte) []byte { return dst })
	if err != nil {
		return nil, err
	}
	of := map[string][]bson.Raw{}
	for _, doc := range docs {
		id, _ := doc.Lookup("_id").StringValueOK()
		link, _, _ := strings.Cut(id, "/")
		of[link] = append(of[link], doc)
	}
	all := make(map[string][]Diverged, len(of))
	for link, docs := range of {
		all[strings.Clone(link)] = sumDiverged(docs)
	}
	return all, nil
}

// sumDiverged sums up the documents of a link.
func sumDiverged(docs []bson.Raw) []Diverged {
	sums := map[oplog.Namespace]*Diverged{}
	for _, doc := range docs {
		d, _ := readDiverged(doc)
		if sums[d.Source] == nil {
			sums[d.Source] = &Diverged{}
		}
		sums[d.Source].Add(&d)
	}
	all := make([]Diverged, 0, len(sums))
	for _, ns := range slices.Sorted(maps.Keys(sums)) {
		all = append(all, *sums[ns])
	}
	return all
}

// DivergedBy returns those of one writer of a link, and the names at the source of all collections that have any.
func DivergedBy(ctx context.Context, target mongo.Caller, db, link, writer string) (of map[oplog.Namespace]Diverged, all []oplog.Namespace, err error) {
	docs, err := findDiverged(ctx, target, db, metadata.Below(link))
	of = map[oplog.Namespace]Diverged{}
	for _, doc := range docs {
		d, by := readDiverged(doc)
		if all = append(all, d.Source); by == writer {
			of[d.Source] = d
		}
	}
	return of, all, err
}

// ForgetDiverged returns the commands that forget divergences, each up to its Last: one that was met since stays.
func ForgetDiverged(db, link string, settled []Diverged) iter.Seq[mongo.Command] {
	return func(yield func(mongo.Command) bool) {
		for statements := range metadata.Chunks(forgotten(link, settled)) {
			if !yield(metadata.Write(db, "delete", metadata.Diverged, "deletes", statements...)) {
				return
			}
		}
	}
}

// forgotten returns the statements of ForgetDiverged.
func forgotten(link string, settled []Diverged) iter.Seq[bson.Raw] {
	return func(yield func(bson.Raw) bool) {
		for i := range settled {
			d := &settled[i]
			statement := metadata.Document(func(dst []byte) []byte {
				dst = metadata.AppendDoc(dst, "q", func(dst []byte) []byte {
					dst = bsoncore.AppendStringElement(metadata.Below(link)(dst), divergedSource, string(d.Source))
					return metadata.AppendDoc(dst, divergedLast, func(dst []byte) []byte { return bsoncore.AppendTimestampElement(dst, "$lte", d.Last.T, d.Last.I) })
				})
				return bsoncore.AppendInt32Element(dst, "limit", 0)
			})
			if !yield(statement) {
				return
			}
		}
	}
}

// DropDiverged forgets, in a transaction, the divergences of collections that are dropped, or have been copied again.
func DropDiverged(ctx context.Context, txn mongo.Caller, db, link string, sources ...oplog.Namespace) error {
	names := make([]string, len(sources))
	for i, ns := range sources {
		names[i] = string(ns)
	}
	return metadata.Run(ctx, txn, metadata.Delete(db, metadata.Diverged, func(dst []byte) []byte {
		return metadata.AppendDoc(metadata.Below(link)(dst), divergedSource, func(dst []byte) []byte { return metadata.AppendIn(dst, names...) })
	}), -1)
}

// MoveDiverged gives, in a transaction, the divergences of a collection that was renamed at an entry its new names, and forgets those
// of the collection that has had these names. Their Last is not before the entry since. Of is Statement's. It may be repeated.
func MoveDiverged(ctx context.Context, txn mongo.Caller, db, link, of string, from, to, ns oplog.Namespace, at bson.Timestamp) error {
	err := metadata.Run(ctx, txn, metadata.Delete(db, metadata.Diverged, func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(metadata.Below(link)(dst), divergedSource, string(to))
		return metadata.AppendDoc(dst, divergedRenamed, func(dst []byte) []byte { return bsoncore.AppendTimestampElement(dst, "$ne", at.T, at.I) })
	}), -1)
	if err != nil {
		return err
	}
	return moveDiverged(ctx, txn, db, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(metadata.Below(link)(dst), divergedSource, string(from))
	}, func(d *Diverged, writer string) metadata.Statement {
		d.Source, d.NS = to, ns
		if at.After(d.Last) {
			d.Last = at // An earlier comparison was one of the collection that has had the name.
		}
		st := d.Statement(link, of, writer)
		change := st.Change
		st.Change = func(dst []byte) []byte {
			return metadata.AppendDoc(change(dst), "$setOnInsert", func(dst []byte) []byte {
				return bsoncore.AppendTimestampElement(dst, divergedRenamed, at.T, at.I)
			})
		}
		return st
	})
}

// TakeDiverged gives, in a transaction, a link the divergences that its part has met that has copied a collection again, in place
// of its own ones, which the copy has removed.
func TakeDiverged(ctx context.Context, txn mongo.Caller, db, link string, source oplog.Namespace) error {
	if err := DropDiverged(ctx, txn, db, link, source); err != nil {
		return err
	}
	return moveDiverged(ctx, txn, db, func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, divergedOf, link)
		return bsoncore.AppendStringElement(dst, divergedSource, string(source))
	}, func(d *Diverged, writer string) metadata.Statement { return d.Statement(link, "", writer) })
}

// moveDiverged replaces the documents that a filter matches.
func moveDiverged(ctx context.Context, txn mongo.Caller, db string, which func([]byte) []byte, to func(d *Diverged, writer string) metadata.Statement) error {
	const most = 1000 // there is one for each writer
	reply, err := txn.Call(ctx, metadata.Find(db, metadata.Diverged, most, which))
	if err != nil {
		return err
	}
	docs, err := metadata.Found(reply)
	if err != nil || len(docs) == 0 {
		return err
	}
	statements := make([]metadata.Statement, len(docs))
	for i, doc := range docs {
		d, writer := readDiverged(bytes.Clone(doc))
		statements[i] = to(&d, writer)
	}
	if err := metadata.Run(ctx, txn, metadata.Delete(db, metadata.Diverged, which), -1); err != nil {
		return err
	}
	return metadata.Run(ctx, txn, metadata.Update(db, metadata.Diverged, statements...), -1)
}
