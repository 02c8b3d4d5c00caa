package checkpoint

import (
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// linkDoc is a document of links.
type linkDoc struct {
	State
	lease lease.Record
	// of is the link that this one is a part of, empty for none.
	of string
	// lowest and highest are the terms of the lanes.
	lowest, highest int64
}

// fieldOf names the link that a link is a part of.
const fieldOf = "of"

// laneDoc is a document of lanes.
type laneDoc struct {
	id                  string
	term                int64
	position, announced Position
}

// laneID returns the _id of a writer's lane.
func laneID(link string, i int) string { return link + "/" + strconv.Itoa(i) }

// barrierID returns the _id of the barrier's lane.
func barrierID(link string) string { return link + "/barrier" }

// appendPosition appends the three fields of a position.
func appendPosition(dst []byte, p Position) []byte {
	dst = bsoncore.AppendTimestampElement(dst, "ts", p.OpTime.TS.T, p.OpTime.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", p.OpTime.Term)
	return bsoncore.AppendInt64Element(dst, "op", p.Op)
}

func appendSource(dst []byte, src Source) []byte {
	return metadata.AppendDoc(dst, "source", func(dst []byte) []byte {
		if !src.ReplicaSetID.IsZero() {
			dst = bsoncore.AppendValueElement(dst, "id",
				bsoncore.Value{Type: bsoncore.Type(src.ReplicaSetID.Type), Data: src.ReplicaSetID.Value})
		}
		dst = bsoncore.AppendStringElement(dst, "set", src.SetName)
		dst = bsoncore.AppendInt64Element(dst, "rbid", src.RBID)
		return bsoncore.AppendStringElement(dst, "host", src.Host)
	})
}

// appendCheckpoint appends the fields that Advance changes.
func appendCheckpoint(dst []byte, applied oplog.OpTime, wall int64, fetchFrom oplog.OpTime) []byte {
	dst = metadata.AppendOpTime(dst, "applied", applied)
	dst = bsoncore.AppendDateTimeElement(dst, "wall", wall)
	return metadata.AppendOpTime(dst, "fetchFrom", fetchFrom)
}

// marshal builds a link's document as Create writes it.
func (l *linkDoc) marshal(name string) bson.Raw {
	return metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", name)
		dst = appendFormat(dst, l.Routing, nil)
		if l.of != "" {
			dst = bsoncore.AppendStringElement(dst, fieldOf, l.of)
		}
		dst = l.lease.Append(dst)
		dst = appendSource(dst, l.Source)
		dst = bsoncore.AppendInt32Element(dst, "writers", int32(l.Writers))
		dst = bsoncore.AppendStringElement(dst, "fingerprint", l.Fingerprint)
		if l.Filters != nil {
			dst = appendFilters(dst, l.Filters)
		}
		if l.Back != nil {
			dst = appendBack(dst, l.Back)
		}
		dst = appendCheckpoint(dst, l.Applied, l.AppliedWall, l.FetchFrom)
		if !l.CopiedUntil.IsNull() {
			dst = metadata.AppendOpTime(dst, "copiedUntil", l.CopiedUntil)
		}
		if l.Copy != nil {
			dst = appendCopy(dst, l.Copy, l.LeftOut)
		}
		if len(l.LeftOut) > 0 {
			dst = appendLeftOut(dst, l.LeftOut)
		}
		return dst
	})
}

// marshal builds a lane's document.
func (l *laneDoc) marshal() bson.Raw {
	return metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", l.id)
		dst = bsoncore.AppendInt64Element(dst, "term", l.term)
		dst = appendPosition(dst, l.position)
		if l.announced != (Position{}) {
			dst = metadata.AppendDoc(dst, "begun", func(dst []byte) []byte { return appendPosition(dst, l.announced) })
		}
		return dst
	})
}

func readPosition(r *metadata.Reader) Position {
	return Position{OpTime: oplog.OpTime{TS: r.Timestamp("ts"), Term: r.Int64("t")}, Op: r.Int64("op")}
}

// readLink reads a document of links.
func readLink(name string, doc bson.Raw) (linkDoc, error) {
	if err := doc.Validate(); err != nil {
		return linkDoc{}, &metadata.DamagedError{Link: name, What: err.Error()}
	}
	r := metadata.NewReader(doc)
	version := r.Int64("version")
	if r.Err() == nil && (version < unrouted || version > Version) {
		// In another version, no other field has a known meaning.
		return linkDoc{}, &VersionError{Link: name, Found: version}
	}
	var l linkDoc
	l.lease = lease.ReadRecord(r)
	l.Term = l.lease.Term
	if r.Has(fieldOf) {
		l.of = r.Text(fieldOf)
	}
	if version != unrouted {
		l.Routing = int(r.Int64("routing"))
	}
	l.Fingerprint = r.Text("fingerprint")
	l.Applied, l.FetchFrom = r.OpTime("applied", false), r.OpTime("fetchFrom", false)
	l.CopiedUntil = r.OpTime("copiedUntil", true)
	l.AppliedWall = r.Date("wall")
	l.Copy = readCopy(r)
	l.LeftOut = readLeftOut(r)
	l.KeptBack = readKeptBack(r)
	l.Over, l.Converting = readOver(r), readConverting(r)
	l.Filters, l.Back = readFilters(r), readBack(r)
	writers := r.Int64("writers")
	if writers < 1 || writers > MaxWriters {
		r.Fault("writers", fmt.Sprintf("a number between 1 and %d", MaxWriters))
	}
	l.Writers = int(writers)
	if sub, ok := r.Doc("source", false); ok {
		l.Source = Source{SetName: sub.Text("set"), RBID: sub.Int64("rbid"), Host: sub.Text("host")}
		l.Source.ReplicaSetID = sub.Value("id")
		r.Take(sub)
	}
	if r.Err() != nil {
		return linkDoc{}, &metadata.DamagedError{Link: name, What: "field " + r.Err().Error()}
	}
	return l, nil
}

// readLane reads a document of lanes.
func readLane(link string, doc bson.Raw) (laneDoc, error) {
	if err := doc.Validate(); err != nil {
		return laneDoc{}, &metadata.DamagedError{Link: link, What: "a lane: " + err.Error()}
	}
	r := metadata.NewReader(doc)
	l := laneDoc{id: r.Text("_id"), term: r.Int64("term"), position: readPosition(r)}
	if sub, ok := r.Doc("begun", true); ok {
		l.announced = readPosition(sub)
		r.Take(sub)
	}
	if r.Err() != nil {
		return laneDoc{}, &metadata.DamagedError{Link: link, What: fmt.Sprintf("lane %q: field %v", l.id, r.Err())}
	}
	return l, nil
}
