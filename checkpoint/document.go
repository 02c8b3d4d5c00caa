package checkpoint

import (
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// linkDoc is a document of links.
type linkDoc struct {
	State
	instance, holder string
	// of is the link that it is a part of, empty for none.
	of string
	// lowest and highest are the terms of the lanes.
	lowest, highest int64
}

// fieldOf names the link that a link is a part of.
const fieldOf = "of"

// laneDoc is a document of lanes.
type laneDoc struct {
	id              string
	term            int64
	position, begun Position
}

// laneID returns the _id of a writer's lane.
func laneID(link string, i int) string { return link + "/" + strconv.Itoa(i) }

// barrierID returns the _id of the lane for what has to be alone.
func barrierID(link string) string { return link + "/barrier" }

// bounds are those of the _ids that begin with prefix and a slash, which 0
// follows. A link's name has no slash.
func bounds(prefix string) (from, to string) { return prefix + "/", prefix + "0" }

func appendOpTime(dst []byte, name string, o oplog.OpTime) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	dst = bsoncore.AppendTimestampElement(dst, "ts", o.TS.T, o.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", o.Term)
	return closeDoc(dst, i)
}

// appendPosition appends the three fields of a position.
func appendPosition(dst []byte, p Position) []byte {
	dst = bsoncore.AppendTimestampElement(dst, "ts", p.OpTime.TS.T, p.OpTime.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", p.OpTime.Term)
	return bsoncore.AppendInt64Element(dst, "op", p.Op)
}

// closeDoc ends the document that was started at i. It cannot fail: i is what
// the start gave.
func closeDoc(dst []byte, i int32) []byte {
	dst, err := bsoncore.AppendDocumentEnd(dst, i)
	if err != nil {
		panic("checkpoint: invariant broken: a document ends where it began: " + err.Error())
	}
	return dst
}

// document builds a document from what fill appends.
func document(fill func(dst []byte) []byte) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	return closeDoc(fill(dst), i)
}

// appendDoc appends an embedded document.
func appendDoc(dst []byte, name string, fill func(dst []byte) []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	return closeDoc(fill(dst), i)
}

func appendSource(dst []byte, src Source) []byte {
	return appendDoc(dst, "source", func(dst []byte) []byte {
		if !src.ReplicaSetID.IsZero() {
			dst = bsoncore.AppendValueElement(dst, "id",
				bsoncore.Value{Type: bsoncore.Type(src.ReplicaSetID.Type), Data: src.ReplicaSetID.Value})
		}
		dst = bsoncore.AppendStringElement(dst, "set", src.SetName)
		dst = bsoncore.AppendInt64Element(dst, "rbid", src.RBID)
		return bsoncore.AppendStringElement(dst, "host", src.Host)
	})
}

// appendCheckpoint appends the fields that Advance moves.
func appendCheckpoint(dst []byte, applied oplog.OpTime, wall int64, fetchFrom oplog.OpTime) []byte {
	dst = appendOpTime(dst, "applied", applied)
	dst = bsoncore.AppendDateTimeElement(dst, "wall", wall)
	return appendOpTime(dst, "fetchFrom", fetchFrom)
}

// marshal builds a link's document as Create writes it.
func (l *linkDoc) marshal(name string) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", name)
		dst = appendFormat(dst, l.Routing)
		dst = bsoncore.AppendStringElement(dst, "instance", l.instance)
		if l.of != "" {
			dst = bsoncore.AppendStringElement(dst, fieldOf, l.of)
		}
		dst = bsoncore.AppendInt64Element(dst, "term", l.Term)
		dst = bsoncore.AppendStringElement(dst, "holder", l.holder)
		dst = appendSource(dst, l.Source)
		dst = bsoncore.AppendInt32Element(dst, "writers", int32(l.Writers))
		dst = bsoncore.AppendStringElement(dst, "fingerprint", l.Fingerprint)
		dst = appendCheckpoint(dst, l.Applied, l.AppliedWall, l.FetchFrom)
		if !l.CopiedUntil.IsNull() {
			dst = appendOpTime(dst, "copiedUntil", l.CopiedUntil)
		}
		if l.Copy != nil {
			dst = appendCopy(dst, l.Copy, l.LeftOut)
		}
		if len(l.LeftOut) > 0 {
			dst = appendLeftOut(dst, l.LeftOut)
		}
		return bsoncore.AppendInt64Element(dst, "advances", 0)
	})
}

// marshal builds a lane's document.
func (l *laneDoc) marshal() bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", l.id)
		dst = bsoncore.AppendInt64Element(dst, "term", l.term)
		dst = appendPosition(dst, l.position)
		if l.begun != (Position{}) {
			dst = appendDoc(dst, "begun", func(dst []byte) []byte { return appendPosition(dst, l.begun) })
		}
		return dst
	})
}

// reader reads fields of one document; its first fault stays.
type reader struct {
	doc  bson.Raw
	path string
	err  error
}

func (r *reader) fault(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s%s is missing or not %s", r.path, name, want)
	}
}

func (r *reader) int64(name string) int64 {
	e, _ := rawbson.Lookup(r.doc, name)
	n, ok := e.Int64()
	if !ok {
		r.fault(name, "a number")
	}
	return n
}

func (r *reader) text(name string) string {
	e, _ := rawbson.Lookup(r.doc, name)
	s, ok := e.Text()
	if !ok {
		r.fault(name, "a string")
	}
	// The document is a view into a reply, which is not to be kept for it.
	return string([]byte(s))
}

func (r *reader) date(name string) int64 {
	e, _ := rawbson.Lookup(r.doc, name)
	t, ok := e.DateTime()
	if !ok {
		r.fault(name, "a date")
	}
	return t
}

func (r *reader) stamp(name string) bson.Timestamp {
	e, _ := rawbson.Lookup(r.doc, name)
	t, ok := e.Timestamp()
	if !ok {
		r.fault(name, "a timestamp")
	}
	return t
}

// sub reads an embedded document; absent is none where it may be missing.
func (r *reader) sub(name string, maybe bool) (*reader, bool) {
	e, found := rawbson.Lookup(r.doc, name)
	doc, ok := e.Document()
	if !ok && (found || !maybe) {
		r.fault(name, "a document")
	}
	return &reader{doc: doc, path: r.path + name + "."}, ok
}

func (r *reader) opTime(name string, maybe bool) oplog.OpTime {
	sub, ok := r.sub(name, maybe)
	if !ok {
		return oplog.OpTime{}
	}
	o := oplog.OpTime{TS: sub.stamp("ts"), Term: sub.int64("t")}
	r.take(sub)
	return o
}

func (r *reader) position() Position {
	return Position{OpTime: oplog.OpTime{TS: r.stamp("ts"), Term: r.int64("t")}, Op: r.int64("op")}
}

func (r *reader) take(sub *reader) {
	if r.err == nil {
		r.err = sub.err
	}
}

// readLink reads a document of links.
func readLink(name string, doc bson.Raw) (linkDoc, error) {
	if err := doc.Validate(); err != nil {
		return linkDoc{}, &DamagedError{Link: name, What: err.Error()}
	}
	r := &reader{doc: doc}
	version := r.int64("version")
	if r.err == nil && version != Version && version != unrouted {
		// Nothing else is looked at: it may mean anything.
		return linkDoc{}, &VersionError{Link: name, Found: version}
	}
	var l linkDoc
	l.instance, l.holder = r.text("instance"), r.text("holder")
	if _, part := rawbson.Lookup(doc, fieldOf); part {
		l.of = r.text(fieldOf)
	}
	l.Term = r.int64("term")
	if version != unrouted {
		l.Routing = int(r.int64("routing"))
	}
	l.Fingerprint = r.text("fingerprint")
	l.Applied, l.FetchFrom = r.opTime("applied", false), r.opTime("fetchFrom", false)
	l.CopiedUntil = r.opTime("copiedUntil", true)
	l.AppliedWall = r.date("wall")
	l.Copy = r.copy("copy")
	l.LeftOut = r.leftOut()
	writers := r.int64("writers")
	if writers < 1 || writers > MaxWriters {
		r.fault("writers", fmt.Sprintf("a number between 1 and %d", MaxWriters))
	}
	l.Writers = int(writers)
	if sub, ok := r.sub("source", false); ok {
		l.Source = Source{SetName: sub.text("set"), RBID: sub.int64("rbid"), Host: sub.text("host")}
		if id, ok := rawbson.Lookup(sub.doc, "id"); ok {
			l.Source.ReplicaSetID = bson.RawValue{Type: id.Type, Value: append([]byte(nil), id.Value...)}
		}
		r.take(sub)
	}
	if r.err != nil {
		return linkDoc{}, &DamagedError{Link: name, What: "field " + r.err.Error()}
	}
	return l, nil
}

// readLane reads a document of lanes.
func readLane(link string, doc bson.Raw) (laneDoc, error) {
	if err := doc.Validate(); err != nil {
		return laneDoc{}, &DamagedError{Link: link, What: "a lane: " + err.Error()}
	}
	r := &reader{doc: doc}
	l := laneDoc{id: r.text("_id"), term: r.int64("term"), position: r.position()}
	if sub, ok := r.sub("begun", true); ok {
		l.begun = sub.position()
		r.take(sub)
	}
	if r.err != nil {
		return laneDoc{}, &DamagedError{Link: link, What: fmt.Sprintf("lane %q: field %v", l.id, r.err)}
	}
	return l, nil
}
