package plan

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

// maxStatement is the largest statement that a server reads, in bytes.
const maxStatement = 16<<20 + 16<<10

// whole says how a whole document can be sent.
type whole struct {
	// insert is set if an insert stores it unchanged, classic if a replacement does.
	insert, classic bool
}

// inspect checks what a server would change or refuse in a document: it replaces zero
// timestamps by the time of day, and refuses a second _id; in a replacement it refuses
// names with a dollar. Only the top level matters.
func inspect(doc bson.Raw) (whole, error) {
	how := whole{insert: true, classic: true}
	ids := 0
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch {
		case it.Is("_id"):
			ids++
		case it.Type == bson.TypeTimestamp && binary.LittleEndian.Uint64(it.Value) == 0:
			how = whole{}
		case len(it.Key) > 0 && it.Key[0] == '$':
			how.classic = false
		}
	}
	if ids != 1 {
		how = whole{}
	}
	return how, it.Err()
}

// isPlain reports whether an insert certainly stores a document unchanged that has an _id: it has
// no timestamp, and no other field of that name. It searches bytes, wherever they are, which takes
// a fraction of a walk over the fields; most documents are plain.
func isPlain(doc bson.Raw) bool {
	const id, first = "_id\x00", 5 // after the size, and the type of the first field
	if len(doc) < first+len(id) || string(doc[first:first+len(id)]) != id {
		return false
	}
	rest := doc[first+len(id):]
	return doc[first-1] != timestamp && bytes.IndexByte(rest, timestamp) < 0 && !bytes.Contains(rest, []byte(id))
}

const timestamp = byte(bson.TypeTimestamp)

// appendHeader appends the type and the name of a field. The name is a constant, or one of a
// document: unlike the driver's function it does not search it for a zero byte, which takes
// as long as the rest of a small statement.
func appendHeader(dst []byte, t bson.Type, key string) []byte {
	return append(append(append(dst, byte(t)), key...), 0)
}

func appendDocument(dst []byte, key string, t bson.Type) (at int32, _ []byte) {
	return bsoncore.ReserveLength(appendHeader(dst, t, key))
}

func closeDocument(dst []byte, at int32) []byte {
	dst = append(dst, 0)
	return bsoncore.UpdateLength(dst, at, int32(len(dst))-at)
}

func appendValue(dst []byte, key string, v bson.RawValue) []byte {
	return append(appendHeader(dst, v.Type, key), v.Value...)
}

// appendID appends the condition that _id equals id. Otherwise a regular expression, or a
// document whose names have dollars, would be taken as a condition.
func appendID(dst []byte, id bson.RawValue) []byte {
	if id.Type != bson.TypeRegex && (id.Type != bson.TypeEmbeddedDocument || !hasDollarName(id.Value)) {
		return appendValue(dst, "_id", id)
	}
	at, dst := appendDocument(dst, "_id", bson.TypeEmbeddedDocument)
	return closeDocument(appendValue(dst, "$eq", id), at)
}

func hasDollarName(doc []byte) bool {
	for it := rawbson.NewIter(doc); it.Next(); {
		if strings.HasPrefix(it.Name(), "$") {
			return true
		}
	}
	return false
}

// limitOne is limit: 1, limitNone is limit: 0.
const (
	limitOne  = "\x10limit\x00\x01\x00\x00\x00"
	limitNone = "\x10limit\x00\x00\x00\x00\x00"
)

// appendDelete appends the statement that deletes a document. It returns the offset of the end of q.
func appendDelete(dst []byte, id bson.RawValue) (_ []byte, end int) {
	at, dst := bsoncore.ReserveLength(dst)
	q, dst := appendDocument(dst, "q", bson.TypeEmbeddedDocument)
	dst = closeDocument(appendID(dst, id), q)
	end = len(dst)
	return closeDocument(append(dst, limitOne...), at), end
}

// Replace returns the update statement that makes doc the document with this _id,
// exactly, whatever its field names and timestamps. With upsert it creates a missing one.
func Replace(id bson.RawValue, doc bson.Raw, upsert bool) bson.Raw {
	how, err := inspect(doc)
	if err != nil {
		how = whole{} // so that the server reports the fault
	}
	return appendReplace(make([]byte, 0, len(id.Value)+len(doc)+128), id, doc, how, upsert)
}

// Change returns a statement of an update command by _id, with the operators of u.
func Change(id bson.RawValue, u bson.Raw) bson.Raw {
	at, dst := bsoncore.ReserveLength(make([]byte, 0, len(id.Value)+len(u)+64))
	q, dst := appendDocument(dst, "q", bson.TypeEmbeddedDocument)
	dst = closeDocument(appendID(dst, id), q)
	return closeDocument(append(appendHeader(dst, bson.TypeEmbeddedDocument, "u"), u...), at)
}

func appendReplace(dst []byte, id bson.RawValue, doc bson.Raw, how whole, upsert bool) []byte {
	at, dst := bsoncore.ReserveLength(dst)
	q, dst := appendDocument(dst, "q", bson.TypeEmbeddedDocument)
	dst = closeDocument(appendID(dst, id), q)
	if how.classic {
		dst = append(appendHeader(dst, bson.TypeEmbeddedDocument, "u"), doc...)
	} else {
		u, b := appendDocument(dst, "u", bson.TypeArray)
		stage, b := appendDocument(b, "0", bson.TypeEmbeddedDocument)
		expr, b := appendDocument(b, "$replaceWith", bson.TypeEmbeddedDocument)
		b = append(appendHeader(b, bson.TypeEmbeddedDocument, "$literal"), doc...)
		dst = closeDocument(closeDocument(closeDocument(b, expr), stage), u)
	}
	if upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	return closeDocument(dst, at)
}

// openUpdate starts an update statement in p.buf, up to the value of u, which must be
// appended next. The filter requires the absence of the fields that guard inserts. It
// returns the offset of the type of u.
func (p *Planner) openUpdate(id bson.RawValue, guard *update.ObjectDiff) (u int) {
	_, b := bsoncore.ReserveLength(p.buf)
	q, b := appendDocument(b, "q", bson.TypeEmbeddedDocument)
	b = appendID(b, id)
	p.rest = 0
	if isValue(id) {
		p.rest = len(b)
	}
	if guard != nil {
		p.buf, p.path = b, p.path[:0]
		p.appendGuards(guard)
		b = p.buf
	}
	b = closeDocument(b, q)
	u = len(b)
	b = append(b, 0, 'u', 0)
	p.buf, p.u = b, u
	return u
}

// closeUpdate ends the update statement that was started at from and whose u, of this
// type, has been appended. It returns false, with the statement removed, if it is too
// large to be sent.
func (p *Planner) closeUpdate(u, from int, t bson.Type, upsert bool) bool {
	p.buf[u] = byte(t)
	if upsert {
		p.buf = bsoncore.AppendBooleanElement(p.buf, "upsert", true)
	}
	p.buf = closeDocument(p.buf, int32(from))
	if len(p.buf)-from > maxStatement {
		p.buf = p.buf[:from]
		return false
	}
	return true
}

// appendGuards appends, to a filter in p.buf, {path: {$exists: false}} for every field
// that d inserts. p.path is the path of d's document. Modifiers resolve the same paths;
// in an array a filter may match more than that, and then the statement finds nothing,
// which is safe.
func (p *Planner) appendGuards(d *update.ObjectDiff) {
	outer := len(p.path)
	for i := range d.Inserts {
		p.path = append(p.path, d.Inserts[i].Name...)
		at, b := appendDocument(p.buf, rawbson.View(p.path), bson.TypeEmbeddedDocument)
		p.buf = closeDocument(bsoncore.AppendBooleanElement(b, "$exists", false), at)
		p.path = p.path[:outer]
	}
	for i := range d.Subs {
		p.path = append(append(p.path, d.Subs[i].Name...), '.')
		p.appendSubGuards(&d.Subs[i].SubDiff)
		p.path = p.path[:outer]
	}
}

func (p *Planner) appendSubGuards(d *update.SubDiff) {
	if d.Object != nil {
		p.appendGuards(d.Object)
		return
	}
	outer := len(p.path)
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		if !m.IsSub() {
			continue
		}
		p.path = append(strconv.AppendInt(p.path, int64(m.Index), 10), '.')
		p.appendSubGuards(&m.SubDiff)
		p.path = p.path[:outer]
	}
}

// appendInternal appends the pipeline that makes the target apply a delta: d, or the entry of
// the node's one operation. It returns false where that would be nested too deep.
func (p *Planner) appendInternal(n *node, d *update.ObjectDiff) bool {
	before := len(p.buf)
	pipeline, b := bsoncore.ReserveLength(p.buf)
	stage, b := appendDocument(b, "0", bson.TypeEmbeddedDocument)
	args, b := appendDocument(b, "$_internalApplyOplogUpdate", bson.TypeEmbeddedDocument)
	b = appendHeader(b, bson.TypeEmbeddedDocument, "oplogUpdate")
	o := len(b)
	if n.first == n.last {
		b = append(b, p.ops[n.first].O...)
	} else {
		entry, e := bsoncore.ReserveLength(b)
		e = bsoncore.AppendInt32Element(e, "$v", 2)
		e = appendHeader(e, bson.TypeEmbeddedDocument, "diff")
		b = closeDocument(d.AppendDiff(e), entry)
	}
	if update.Levels(b[o:])+3 > update.DefaultMaxDepth {
		p.buf = b[:before]
		return false
	}
	p.buf = closeDocument(closeDocument(closeDocument(b, args), stage), pipeline)
	p.rest = 0 // the stage is not documented to work for several documents
	return true
}

// Command is AppendCommand with its own memory. A Modify has a nil body.
func (w *Write) Command() (body bson.Raw, sequence string) {
	b, sequence := w.AppendCommand(make([]byte, 0, len(w.NS)+80))
	if sequence == "" {
		return nil, ""
	}
	return b, sequence
}

// AppendCommand appends the body of the command for a Write, without its documents, which
// are sent as the document sequence of that name. A Modify has none.
func (w *Write) AppendCommand(dst []byte) (_ []byte, sequence string) {
	name := ""
	switch w.Kind {
	case Insert:
		name, sequence = "insert", "documents"
	case Update:
		name, sequence = "update", "updates"
	case Delete:
		name, sequence = "delete", "deletes"
	default:
		return dst, ""
	}
	at, b := bsoncore.ReserveLength(dst)
	b = bsoncore.AppendString(appendHeader(b, bson.TypeString, name), w.NS.Collection())
	b = bsoncore.AppendBoolean(appendHeader(b, bson.TypeBoolean, "ordered"), w.Ordered)
	if w.Kind != Delete {
		b = append(b, "\x08bypassDocumentValidation\x00\x01"...)
	}
	return closeDocument(b, at), sequence
}
