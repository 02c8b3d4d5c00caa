package standing

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// A process may be suspended after it has listed the collections, and between its writes. The documents are therefore read before the
// collections are listed, and each write of this file has the condition that the document still is as it was read, as far as
// another verification changes it when it begins, goes on, or has compared the collection.

// ErrOvertaken reports that another verification has begun, or gone on, since the store was read: the collections have to be listed again.
var ErrOvertaken = errors.New("another verification has begun meanwhile")

// unchanged is a filter for a document in which some fields, of those that it had when it was read, are the same still.
func unchanged(which func([]byte) []byte, raw bson.Raw, paths ...string) func([]byte) []byte {
	return func(dst []byte) []byte {
		dst = which(dst)
		for _, path := range paths {
			if parent, damaged := arrayIn(raw, path); damaged { // whose elements a path leads to on the server, and of which raw has only a part
				dst = metadata.AppendDoc(dst, parent, isArray)
				continue
			}
			v, err := raw.LookupErr(strings.Split(path, ".")...)
			if raw == nil || err != nil {
				dst = metadata.AppendDoc(dst, path, func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", false) })
				continue
			}
			dst = metadata.AppendDoc(dst, path, func(dst []byte) []byte {
				return bsoncore.AppendValueElement(dst, "$eq", bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
			})
		}
		return dst
	}
}

// arrayIn returns the first part of the path to a field that is an array, where a document should be.
func arrayIn(raw bson.Raw, path string) (parent string, is bool) {
	for i, c := range path {
		if c != '.' || raw == nil {
			continue
		}
		if v, err := raw.LookupErr(strings.Split(path[:i], ".")...); err == nil && v.Type == bson.TypeArray {
			return path[:i], true
		}
	}
	return "", false
}

// isArray appends the condition that a field is an array.
func isArray(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "$type", "array") }

// isNoArray appends the condition that a field is no array.
func isNoArray(dst []byte) []byte { return metadata.AppendDoc(dst, "$not", isArray) }

// asRead is a filter for the document of a collection that no other verification has changed since it was read.
func (s *Store) asRead(sourceNS oplog.Namespace, d *document) func([]byte) []byte {
	var raw bson.Raw
	if d != nil {
		raw = d.raw
	}
	return unchanged(metadata.ByID(s.id(sourceNS)), raw, append([]string{"joined", "source", "pass.round"}, findings...)...)
}

// Seen has the documents as they were before the collections were listed.
type Seen struct {
	round Round
	// raw is the document of the round, nil for none.
	raw  bson.Raw
	docs map[oplog.Namespace]*document
}

// Look reads the documents. It is called before the collections are listed for Begin.
func (s *Store) Look(ctx context.Context) (*Seen, error) {
	round, raw, docs, err := s.loadRaw(ctx)
	return &Seen{round, raw, docs}, err
}

// Begin begins a round, or continues one that is not complete, if resume is set. It records the
// collections, and forgets those that are not listed any more. The collections
// existed at cut, and were listed after Look. It returns the stored results of each, by its name at the source, or ErrOvertaken: then
// the documents of the other verification are still there.
func (s *Store) Begin(ctx context.Context, seen *Seen, listed []Listed, resume bool, cut Cut, now time.Time) (Round, map[oplog.Namespace]Head, error) {
	round, docs := seen.round, seen.docs
	resume = resume && round.Open()
	if !resume {
		round.N++
		round.Began, round.At = cut, now.UTC()
	}
	round.Listed = int64(len(listed))
	round.Begins++
	mark := &Mark{Target: justBefore(cut.Target), Why: whyReplaced, At: now.UTC()}
	heads, aside, changes, err := s.join(docs, listed, round.N, resume, mark)
	if err != nil {
		return round, nil, err
	}
	for part := range slices.Chunk(slices.Concat(aside, changes), statements) {
		if err := overtakenBy(s.write(ctx, metadata.Update(s.DB, metadata.Verified, part...))); err != nil {
			return round, nil, err
		}
	}
	for i := range aside {
		if err := s.write(ctx, metadata.Delete(s.DB, metadata.Verified, aside[i].Filter)); err != nil {
			return round, nil, err
		}
	}
	if err := s.forget(ctx, docs, heads); err != nil {
		return round, nil, err
	}
	err = overtakenBy(s.set(ctx, unchanged(metadata.ByID(s.roundID()), seen.raw, "n", "complete", "begins"), true, bson.D{
		{Key: "n", Value: round.N},
		{Key: "complete", Value: round.Complete},
		{Key: "began", Value: round.Began},
		{Key: "at", Value: round.At},
		{Key: "listed", Value: round.Listed},
		{Key: "begins", Value: round.Begins},
	}))
	if err == nil { // also if the process that began the round was killed before it has come to this
		err = s.overtake(ctx, &round, seen, heads, mark)
	}
	return round, heads, err
}

// overtakenBy returns ErrOvertaken for a document that exists, and is not as it was read any more.
func overtakenBy(err error) error {
	if servererr.IsDuplicateKey(err) {
		return fmt.Errorf("%w: %w", ErrOvertaken, err)
	}
	return err
}

// justBefore returns the timestamp that precedes another one, zero for none.
func justBefore(ts bson.Timestamp) bson.Timestamp {
	switch {
	case ts.IsZero():
		return ts
	case ts.I > 0:
		return bson.Timestamp{T: ts.T, I: ts.I - 1}
	}
	return bson.Timestamp{T: ts.T - 1, I: math.MaxUint32}
}

// join returns the stored results of the listed collections, and the statements that record those that are
// new, or were replaced by another collection of the name. It marks those that had another name when they were found to differ, and, as a
// round begins, those of which an uncompleted comparison has found new differences. If one has joined in a later round
// than this one, or has a pass of one, the round's document was lost, and the collection joins again.
//
// The first statements put aside that replaced collections differ: they may have another name, which another verification can keep from
// being recorded. Their documents are to be deleted afterwards.
func (s *Store) join(docs map[oplog.Namespace]*document, listed []Listed, round int64, resume bool, mark *Mark) (heads map[oplog.Namespace]Head, aside, changes []metadata.Statement, err error) {
	joins := round
	if resume {
		joins++
	}
	heads = make(map[oplog.Namespace]Head, len(listed))
	renamed := renamed(docs, listed)
	for _, l := range listed {
		was := docs[l.SourceNS]
		d, id := was, uuid(l.Source)
		if d != nil && d.Pass != nil && d.Pass.Round > joins {
			d = nil
		}
		differs := renamed[l.SourceNS]
		if d != nil && d.Joined > 0 && d.Joined <= joins && d.Source.Equal(id) && d.NS == l.NS {
			head := Head{Result: d.Is, Marked: d.marked()}
			if p := d.Pass; !resume && p != nil && !d.Is.Knows(p.all(), max(p.More, p.ToldMore)) {
				differs = true
			}
			if resume {
				head.Pass = d.passOf(round)
			}
			if differs {
				st, err := marking(metadata.ByID(s.id(l.SourceNS)), mark)
				if err != nil {
					return nil, nil, nil, err
				}
				head.Marked, changes = true, append(changes, st)
			}
			heads[l.SourceNS] = head
			continue
		}
		heads[l.SourceNS] = Head{}
		if was != nil && was.differs() {
			for _, source := range was.sources() {
				if source == l.Source {
					continue
				}
				_, st, err := s.aside(was.NS, source, mark)
				if err != nil {
					return nil, nil, nil, err
				}
				aside = append(aside, st)
			}
		}
		st, err := setting(s.asRead(l.SourceNS, was), true,
			bson.D{{Key: "ns", Value: l.NS}, {Key: "source", Value: id}, {Key: "sourceAt", Value: l.At}, {Key: "joined", Value: joins}}, "is", "fault", "pass", "repaired")
		if err != nil {
			return nil, nil, nil, err
		}
		if differs || was != nil && len(was.Source.Data) == 0 && was.differed() { // the latter was marked by a process that could not list it
			if st, err = andMark(st, mark); err != nil {
				return nil, nil, nil, err
			}
		}
		changes = append(changes, s.mended(l.SourceNS, was, st)...)
	}
	return heads, aside, changes, nil
}

// andMark adds a mark to what a statement changes: they are written together.
func andMark(st metadata.Statement, mark *Mark) (metadata.Statement, error) {
	m, err := marking(st.Filter, mark)
	change := st.Change
	st.Change = func(dst []byte) []byte { return m.Change(change(dst)) }
	return st, err
}

// renamed returns the names of the collections which had another one when a comparison has found them to differ: the differences
// stored under that name are forgotten.
func renamed(docs map[oplog.Namespace]*document, listed []Listed) map[oplog.Namespace]bool {
	differ := map[oplog.UUID][]oplog.Namespace{}
	for ns, d := range docs {
		if !d.differs() {
			continue
		}
		for _, source := range d.sources() {
			under := ns
			if !d.Source.Equal(uuid(source)) {
				under = ""
			}
			differ[source] = append(differ[source], under)
		}
	}
	names := map[oplog.Namespace]bool{}
	for _, l := range listed {
		another := func(ns oplog.Namespace) bool { return ns != l.SourceNS }
		if slices.ContainsFunc(differ[l.Source], another) {
			names[l.SourceNS] = true
		}
	}
	return names
}

// forget deletes the documents of collections that are not listed.
func (s *Store) forget(ctx context.Context, docs map[oplog.Namespace]*document, listed map[oplog.Namespace]Head) error {
	var gone []bson.Raw
	for ns, d := range docs {
		if _, is := listed[ns]; !is {
			gone = append(gone, deletion(s.asRead(ns, d)))
		}
	}
	for part := range slices.Chunk(gone, statements) {
		if err := s.write(ctx, metadata.Write(s.DB, "delete", metadata.Verified, "deletes", part...)); err != nil {
			return err
		}
	}
	return nil
}

func deletion(filter func([]byte) []byte) bson.Raw {
	return metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendInt32Element(metadata.AppendDoc(dst, "q", filter), "limit", 1)
	})
}

// findings are the fields of a collection's document that have what verifications have found in it.
var findings = []string{"is.at", "pass.found", "pass.more", "pass.told", "pass.toldMore", "differed"}

// notAfter is a filter for the document of a collection with a UUID at the source that no later round has listed or compared.
func (s *Store) notAfter(sourceNS oplog.Namespace, source oplog.UUID, round int64) func([]byte) []byte {
	return upTo(func(dst []byte) []byte {
		dst = metadata.AppendDoc(metadata.ByID(s.id(sourceNS))(dst), "source", func(dst []byte) []byte {
			list, dst := bsoncore.AppendArrayElementStart(dst, "$in")
			dst = bsoncore.AppendBinaryElement(dst, "0", bson.TypeBinaryUUID, source[:])
			return metadata.CloseDoc(bsoncore.AppendNullElement(dst, "1"), list)
		})
		return notLater(dst, "is.round", round)
	}, round)
}

// notLater appends the condition that a field is not the number of a later round.
func notLater(dst []byte, field string, round int64) []byte {
	return metadata.AppendDoc(dst, field, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$gt", round) })
	})
}

// Gone is a collection that is known to differ, and neither side has any more: it may have another name.
type Gone struct{ which func([]byte) []byte }

// Forget forgets a collection that neither side has any more, as a verification finds in a round. Source is the UUID by which the
// verification knows it: another one is not forgotten, nor one that a later round has compared. One that is known to differ is not
// forgotten either, but returned.
func (s *Store) Forget(ctx context.Context, sourceNS oplog.Namespace, source oplog.UUID, round int64) (*Gone, error) {
	docs, err := s.find(ctx, metadata.ByID(s.id(sourceNS)), fields...)
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	which := unchanged(s.notAfter(sourceNS, source, round), docs[0], append([]string{"source", "fault.at"}, findings...)...)
	var d document
	if bson.Unmarshal(docs[0], &d) == nil {
		if d.repair(); d.differs() {
			return &Gone{which}, nil
		}
	}
	return nil, s.ForgetGone(ctx, &Gone{which})
}

// ForgetGone forgets a collection that Forget has returned, once it was compared under its other name. It does nothing if anything was
// found since: another collection may have got the name, or the same one has it again.
func (s *Store) ForgetGone(ctx context.Context, g *Gone) error {
	return s.write(ctx, metadata.Delete(s.DB, metadata.Verified, g.which))
}

// Former is a collection that is known to differ, whose name another one has got.
type Former struct {
	Source oplog.UUID
	Gone   Gone
}

// Replace records that the source's collection is another one than the one that the verification had listed: it counts from the
// next round on. It does nothing if another verification has recorded that, or knows a later collection of the name. One that
// differed under another name is marked. The former one of the name is returned if it is known to differ: the link is not verified
// before that one is forgotten, or another round has begun.
func (s *Store) Replace(ctx context.Context, l Listed, round int64) (*Former, error) {
	docs, err := s.ofSource(ctx, l.Source)
	if err != nil {
		return nil, err
	}
	mark := &Mark{Target: justBefore(l.At), Why: whyReplaced, At: time.Now().UTC()}
	if renamed(docs, []Listed{l})[l.SourceNS] {
		st, err := marking(metadata.ByID(s.id(l.SourceNS)), mark)
		if err == nil {
			err = s.write(ctx, metadata.Update(s.DB, metadata.Verified, append(mending(st.Filter), st)...))
		}
		if err != nil {
			return nil, err
		}
	}
	for {
		former, done, err := s.replace(ctx, l, round, mark)
		if err != nil || done {
			return former, err
		}
	}
}

// replace is one attempt of Replace. It is not done if another verification has found something in the former collection meanwhile.
func (s *Store) replace(ctx context.Context, l Listed, round int64, mark *Mark) (former *Former, done bool, err error) {
	docs, err := s.find(ctx, metadata.ByID(s.id(l.SourceNS)), fields...)
	if err != nil {
		return nil, false, err
	}
	var raw bson.Raw
	if len(docs) > 0 {
		raw = docs[0]
	}
	former, aside, err := s.former(l, raw, mark)
	if err != nil {
		return nil, false, err
	}
	if len(aside) > 0 {
		if err := s.write(ctx, metadata.Update(s.DB, metadata.Verified, aside...)); err != nil {
			return nil, false, err
		}
	}
	err = s.set(ctx, unchanged(s.replaceable(l), raw, findings...), true,
		bson.D{{Key: "ns", Value: l.NS}, {Key: "source", Value: uuid(l.Source)}, {Key: "sourceAt", Value: l.At}, {Key: "joined", Value: round + 1}}, "is", "fault", "pass", "repaired")
	if err == nil && isUnread(raw) {
		err = s.write(ctx, metadata.Update(s.DB, metadata.Verified, mending(metadata.ByID(s.id(l.SourceNS)))...))
	}
	if !servererr.IsDuplicateKey(err) {
		return former, true, err
	}
	docs, err = s.find(ctx, s.replaceable(l), "_id")
	return former, len(docs) == 0, err
}

// former returns the collection that has had a name before, if it is known to differ, and the statements that put that aside. Raw is its
// document, nil for none.
func (s *Store) former(l Listed, raw bson.Raw, mark *Mark) (*Former, []metadata.Statement, error) {
	var d document
	if raw == nil || bson.Unmarshal(raw, &d) != nil || d.Source.Equal(uuid(l.Source)) || len(d.Source.Data) != len(oplog.UUID{}) || d.Joined == 0 {
		return nil, nil, nil //nolint:nilerr // One that cannot be read counts as one that was never compared.
	}
	if d.repair(); !d.differs() || oplog.UUID(d.Source.Data) == (oplog.UUID{}) {
		return nil, nil, nil
	}
	f := &Former{Source: oplog.UUID(d.Source.Data)}
	which, aside, err := s.aside(d.NS, f.Source, mark)
	f.Gone = Gone{which}
	return f, []metadata.Statement{aside}, err
}

// aside returns the statement that marks a collection which has no name any more, and the filter for its document.
func (s *Store) aside(ns oplog.Namespace, source oplog.UUID, mark *Mark) (which func([]byte) []byte, st metadata.Statement, err error) {
	which = metadata.ByID(s.id("/gone/" + oplog.Namespace(hex.EncodeToString(source[:])))) // no database has an empty name
	if st, err = setting(which, true, bson.D{{Key: "ns", Value: ns}, {Key: "source", Value: uuid(source)}, {Key: "joined", Value: 1}}); err == nil {
		st, err = andMark(st, mark)
	}
	return which, st, err
}

// replaceable is a filter for the document of an earlier collection of a name, which no verification has listed or compared later.
func (s *Store) replaceable(l Listed) func([]byte) []byte {
	return func(dst []byte) []byte {
		dst = metadata.AppendDoc(metadata.ByID(s.id(l.SourceNS))(dst), "source", func(dst []byte) []byte {
			return bsoncore.AppendBinaryElement(dst, "$ne", bson.TypeBinaryUUID, l.Source[:])
		})
		for _, field := range []string{"sourceAt", "is.last.target"} {
			dst = metadata.AppendDoc(dst, field, func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendTimestampElement(dst, "$gt", l.At.T, l.At.I) })
			})
		}
		return dst
	}
}
