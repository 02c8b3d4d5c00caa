package progress

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Kinds of documents of a copy, as in their _ids.
const (
	kindCollection = "c"
	kindRange      = "r"
)

// copyPrefix is the prefix of the _ids of a copy's documents, before a slash.
func copyPrefix(link string, number int64, more ...string) string {
	return strings.Join(append([]string{link, strconv.FormatInt(number, 10)}, more...), "/")
}

func hexUUID(u oplog.UUID) string { return hex.EncodeToString(u[:]) }

// collectionID returns the _id of a collection of a copy.
func collectionID(link string, number int64, u oplog.UUID) string {
	return copyPrefix(link, number, kindCollection, hexUUID(u))
}

// rangeID returns the _id of a range of a copy.
func rangeID(link string, number int64, u oplog.UUID, index int) string {
	return copyPrefix(link, number, kindRange, hexUUID(u), fmt.Sprintf("%04d", index))
}

// appendCollection appends the fields of a collection of a copy except its _id. Values
// from the source are stored as binary data: their field names may begin with a dollar.
func appendCollection(dst []byte, number int64, c *Collection) []byte {
	dst = bsoncore.AppendInt64Element(dst, "number", number)
	dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, c.UUID[:])
	dst = bsoncore.AppendStringElement(dst, "ns", string(c.NS))
	dst = metadata.AppendRaw(dst, "options", c.Options)
	dst = metadata.AppendRaw(dst, "idIndex", c.IDIndex)
	i, dst := bsoncore.AppendArrayElementStart(dst, "indexes")
	for j, spec := range c.Indexes {
		dst = bsoncore.AppendBinaryElement(dst, strconv.Itoa(j), bson.TypeBinaryGeneric, spec)
	}
	dst = metadata.CloseDoc(dst, i)
	dst = bsoncore.AppendInt64Element(dst, "docs", c.Docs)
	dst = bsoncore.AppendInt64Element(dst, "bytes", c.Bytes)
	dst = bsoncore.AppendStringElement(dst, "state", string(c.State))
	dst = bsoncore.AppendBooleanElement(dst, "gone", c.Gone)
	if c.Again {
		dst = bsoncore.AppendBooleanElement(dst, "again", true)
	}
	if c.ByID {
		dst = bsoncore.AppendBooleanElement(dst, "byID", true)
	}
	i, dst = bsoncore.AppendArrayElementStart(dst, "failed")
	for j, f := range c.Failed {
		dst = metadata.AppendDoc(dst, strconv.Itoa(j), func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "name", f.Name)
			return bsoncore.AppendStringElement(dst, "why", f.Why)
		})
	}
	return metadata.CloseDoc(dst, i)
}

// appendRange appends the fields of a range of a copy except its _id.
func appendRange(dst []byte, number int64, r *Range) []byte {
	dst = bsoncore.AppendInt64Element(dst, "number", number)
	dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, r.UUID[:])
	dst = bsoncore.AppendInt64Element(dst, "index", int64(r.Index))
	dst = metadata.AppendRaw(dst, "spec", r.Spec)
	return appendMoves(dst, r)
}

// appendMoves appends the fields that MoveRange changes.
func appendMoves(dst []byte, r *Range) []byte {
	dst = metadata.AppendRaw(dst, "at", r.At)
	dst = bsoncore.AppendInt64Element(dst, "docs", r.Docs)
	dst = bsoncore.AppendInt64Element(dst, "bytes", r.Bytes)
	dst = bsoncore.AppendInt64Element(dst, "steps", r.Steps)
	return bsoncore.AppendBooleanElement(dst, "done", r.Done)
}

// copyDoc is a document of copies: a collection or a range.
type copyDoc struct {
	collection *Collection
	part       *Range
}

// readCopyDoc reads a document of a link's copy.
func readCopyDoc(link string, number int64, doc bson.Raw) (copyDoc, error) {
	if err := doc.Validate(); err != nil {
		return copyDoc{}, &metadata.DamagedError{Link: link, What: "a copy: " + err.Error()}
	}
	r := metadata.NewReader(doc)
	id := r.Text("_id")
	var d copyDoc
	var want string
	switch prefix := copyPrefix(link, number) + "/"; {
	case strings.HasPrefix(id, prefix+kindCollection+"/"):
		d.collection = readCollection(r)
		want = collectionID(link, number, d.collection.UUID)
	case strings.HasPrefix(id, prefix+kindRange+"/"):
		d.part = readRange(r)
		want = rangeID(link, number, d.part.UUID, d.part.Index)
	default:
		r.Fault("_id", "that of a collection or a range")
	}
	if n := r.Int64("number"); n != number {
		r.Fault("number", strconv.FormatInt(number, 10))
	}
	if id != want {
		r.Fault("_id", "that of its other fields")
	}
	if r.Err() != nil {
		return copyDoc{}, &metadata.DamagedError{Link: link, What: fmt.Sprintf("copy %q: field %v", id, r.Err())}
	}
	return d, nil
}

func readCollection(r *metadata.Reader) *Collection {
	c := &Collection{
		UUID: r.UUID("uuid"), NS: oplog.Namespace(r.Text("ns")), Options: r.Raw("options"), IDIndex: r.Raw("idIndex"),
		Docs: r.Int64("docs"), Bytes: r.Int64("bytes"), State: State(r.Text("state")),
		Gone: r.Bool("gone"),
	}
	if r.Has("again") {
		c.Again = r.Bool("again")
	}
	if r.Has("byID") {
		c.ByID = r.Bool("byID")
	}
	switch c.State {
	case Planned, Created, Filled, Done:
	default:
		r.Fault("state", "one of a collection")
	}
	r.List("indexes", func(e *rawbson.Elem) bool {
		spec, ok := metadata.RawOf(e)
		c.Indexes = append(c.Indexes, spec)
		return ok
	})
	r.List("failed", func(e *rawbson.Elem) bool {
		doc, ok := e.Document()
		sub := metadata.NewReader(doc)
		c.Failed = append(c.Failed, FailedIndex{Name: sub.Text("name"), Why: sub.Text("why")})
		return ok && sub.Err() == nil
	})
	return c
}

func readRange(r *metadata.Reader) *Range {
	p := &Range{
		UUID: r.UUID("uuid"), Index: int(r.Int64("index")), Spec: r.Raw("spec"), At: r.Raw("at"),
		Docs: r.Int64("docs"), Bytes: r.Int64("bytes"), Steps: r.Int64("steps"), Done: r.Bool("done"),
	}
	if p.Index < 0 {
		r.Fault("index", "0 or more")
	}
	return p
}
