package plan

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// An updateMany at the source is one entry for each document, all with the same change.
// Statements that differ in the _id alone are combined, those of deletes as well:
//
//	{q: {_id: 1}, u: U}, {q: {_id: 2}, u: U}, …  ──▶  {q: {_id: {$in: [1, 2, …]}}, u: U, multi: true}
//	{q: {_id: 1}, limit: 1}, …                   ──▶  {q: {_id: {$in: [1, 2, …]}}, limit: 0}
//
// What such a statement does to a document does not depend on the others, and an _id
// matches one document at most. So if all of them are found, each had its effect; a delete
// need not find its document.
//
// Excluded are statements that may create a document, those of a namespace whose order
// matters, those after another one on the same document in the same command, _ids that
// $in may take for something else than a value, and collections without an index on _id
// that finds single values.

const (
	// minMass is the smallest number of statements that are combined by default: a list
	// costs the server a query plan, which an _id alone does not.
	minMass = 10
	// maxMass is the largest number: with 2,000 an update costs a server nearly twice as
	// much as with 100 to 500 (measured on 5.0.7).
	maxMass = 500
	// maxMassBytes limits the bytes of the _ids of one statement by default.
	maxMassBytes = 1 << 20
	// massSlots is the size of the table of recent statements.
	massSlots = 256
	// golden spreads the numbers of commands over the table (2^64 divided by the golden ratio).
	golden = 0x9e3779b97f4a7c15
	// idAt is the offset of the _id's type in a statement {q: {_id: …}}.
	idAt = 4 + len("\x03q\x00") + 4
	// idValueAt is the offset of its value.
	idValueAt = idAt + 1 + len("_id\x00")
)

// mass are statements of one command that differ in the _id alone.
type mass struct {
	hash uint64
	// command is what Planner.order sorts by, without the statement.
	command uint64
	// first and last are in Planner.stmts, linked by stmt.sibling.
	first, last, n int32
}

// masses finds statements that differ in the _id alone, among recent ones.
type masses struct {
	seed  maphash.Seed
	list  []mass
	slots [massSlots]int32 // 1 plus an index into list, or 0
}

func (m *masses) reset() {
	if len(m.list) > 0 {
		m.list = m.list[:0]
		clear(m.slots[:])
	}
}

// isListable reports whether statements on a collection may have a list of _ids. nil is a
// collection without options.
func isListable(c *catalog.Collection) bool {
	if c == nil {
		return true
	}
	if c.Direct || c.Capped || c.Ordered || c.Collated() {
		return false
	}
	// A server before 6.1 scans a clustered collection from the lowest to the highest
	// _id of a list.
	clustered, ok := rawbson.Lookup(c.Options, "clusteredIndex")
	return !ok || !clustered.Truth()
}

// isValue reports whether an element of $in is equal to this _id, and to nothing else.
// Types that are rare as _ids are left out.
func isValue(id bson.RawValue) bool {
	switch id.Type {
	case bson.TypeObjectID, bson.TypeString, bson.TypeInt32, bson.TypeInt64, bson.TypeBinary, bson.TypeDateTime,
		bson.TypeTimestamp, bson.TypeBoolean:
		return true
	case bson.TypeDouble:
		return len(id.Value) == 8 && !math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(id.Value)))
	default:
		return false // a regular expression matches what it describes, a document may be a condition
	}
}

// gather adds a statement to those that differ from it in the _id alone.
func (p *Planner) gather(at int32, command uint64) {
	m := &p.masses
	s := &p.stmts[at]
	rest := p.buf[s.rest:s.to]
	hash := maphash.Bytes(m.seed, rest)
	// Deletes of all namespaces have the same rest, and must not all have the same slot.
	slot := &m.slots[(hash^command*golden>>32)%massSlots]
	if *slot > 0 {
		a := &m.list[*slot-1]
		if a.hash == hash && a.command == command {
			if first := &p.stmts[a.first]; string(p.buf[first.rest:first.to]) == string(rest) {
				p.stmts[a.last].sibling = at
				a.last = at
				a.n++
				return
			}
		}
		if int(a.n) < p.opt.MinMass {
			*a = mass{hash: hash, command: command, first: at, last: at, n: 1}
			return
		}
	}
	m.list = append(m.list, mass{hash: hash, command: command, first: at, last: at, n: 1})
	*slot = int32(len(m.list))
}

// combine replaces statements that differ in the _id alone by such with lists, each in
// the place of its first one.
func (p *Planner) combine() {
	for i := range p.masses.list {
		m := &p.masses.list[i]
		if int(m.n) < p.opt.MinMass {
			continue
		}
		// Lists of about the same length are better than a short one at the end.
		parts := (int(m.n) + p.opt.MaxMass - 1) / p.opt.MaxMass
		most := (int(m.n) + parts - 1) / parts
		at := m.first
		for left := int(m.n); left > 0; {
			var n int
			at, n = p.combineSome(at, min(most, left), m.command&rankMask == uint64(rankDelete))
			left -= n
		}
	}
}

// combineSome combines the statement at, and up to n in all of those linked to it, as long
// as their _ids are not too large; all are deletes, or all updates. It returns the next
// statement, and how many it has combined.
func (p *Planner) combineSome(at int32, n int, deletes bool) (next int32, done int) {
	first := &p.stmts[at]
	from := len(p.buf)
	_, b := bsoncore.ReserveLength(p.buf)
	q, b := appendDocument(b, "q", bson.TypeEmbeddedDocument)
	id, b := appendDocument(b, "_id", bson.TypeEmbeddedDocument)
	in, b := appendDocument(b, "$in", bson.TypeArray)
	for done < n && (done == 0 || len(b)-from < p.opt.MaxMassBytes) {
		s := &p.stmts[at]
		b = append(b, p.buf[s.from+idAt])
		b = append(strconv.AppendInt(b, int64(done), 10), 0)
		b = append(b, p.buf[s.from+idValueAt:s.rest]...)
		if done > 0 {
			p.nextOp[first.last], first.last = s.first, s.last
			s.combined = true
		}
		done++
		at = s.sibling
	}
	if done == 1 {
		p.buf = b[:from]
		return at, done
	}
	b = closeDocument(closeDocument(b, in), id)
	b = closeDocument(append(b, p.buf[first.rest:first.u-1]...), q)
	if deletes {
		b = append(b, limitNone...)
	} else {
		b = append(b, p.buf[first.u:first.to-1]...)
		b = bsoncore.AppendBooleanElement(b, "multi", true)
	}
	p.buf = closeDocument(b, int32(from))
	first.from, first.to, first.docs = from, len(p.buf), int32(done)
	return at, done
}
