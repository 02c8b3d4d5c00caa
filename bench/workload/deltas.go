package workload

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// The shapes of deltas, in the order of the weights.
const (
	shapeSet = iota
	shapeMany
	shapeNested
	shapeArray
	shapeUnset
	shapeDotted
	shapeText
)

// deltaSpace is room for a delta or its modifiers without their text, in bytes.
const deltaSpace = 256

// update makes a delta for a document, and what a client sends to have it logged.
// Each value that it writes differs from the present one: a server does not log
// updates without effect.
func (g *Generator) update(s *slot) Op {
	op := g.op(oplog.KindUpdate, s.number, g.key(s.number))
	if g.alikeLeft > 0 {
		g.alikeLeft--
		op.Diff, op.Modifier, op.IsPipeline = g.alike.Diff, g.alike.Modifier, g.alike.IsPipeline
		return op
	}
	g.draw(&op, s)
	if g.w.Alike > 1 {
		g.alikeLeft = g.w.Alike - 1
		g.alike = Op{Diff: bytes.Clone(op.Diff), Modifier: bytes.Clone(op.Modifier), IsPipeline: op.IsPipeline}
	}
	return op
}

// draw draws the delta of an update.
func (g *Generator) draw(op *Op, s *slot) {
	g.seq++
	switch shape := g.deltas.choose(g.rand); shape {
	case shapeMany:
		g.setFields(op, g.scalars[:manyFields])
	case shapeNested:
		g.setNested(op)
	case shapeArray:
		g.setArray(op, s)
	case shapeUnset:
		g.swap(op, s)
	case shapeDotted:
		g.setDotted(op)
	case shapeText:
		g.setText(op, s.number)
	default:
		i := g.rand.IntN(len(g.scalars) - 1)
		g.setFields(op, g.scalars[i:i+2])
	}
}

// change builds two documents of which one is in the other: {outer: {inner…}}. The
// arguments are called for the diff and for the modifiers with a place to append to.
func (g *Generator) change(op *Op, space int, diff, modifier func(dst []byte) []byte) {
	start, dst := bsoncore.AppendDocumentStart(g.mem.begin(space))
	op.Diff = g.mem.end(endDocument(diff(dst), start))
	if g.plain {
		return
	}
	start, dst = bsoncore.AppendDocumentStart(g.mem.begin(space))
	op.Modifier = g.mem.end(endDocument(modifier(dst), start))
}

// within appends {name: {…}}.
func within(dst []byte, name string, fields func(dst []byte) []byte) []byte {
	start, dst := bsoncore.AppendDocumentElementStart(dst, name)
	return endDocument(fields(dst), start)
}

func (g *Generator) setFields(op *Op, fields []field) {
	set := func(dst []byte) []byte {
		for _, f := range fields {
			dst = appendFresh(dst, f, g.seq)
		}
		return dst
	}
	g.change(op, deltaSpace,
		func(dst []byte) []byte { return within(dst, "u", set) },
		func(dst []byte) []byte { return within(dst, "$set", set) })
}

func (g *Generator) setNested(op *Op) {
	value := fresh32(g.seq)
	g.change(op, deltaSpace,
		func(dst []byte) []byte {
			return within(dst, "sin", func(dst []byte) []byte {
				return within(dst, "u", func(dst []byte) []byte { return appendInt32(dst, "a", value) })
			})
		},
		func(dst []byte) []byte {
			return within(dst, "$set", func(dst []byte) []byte { return appendInt32(dst, "in.a", value) })
		})
}

// setArray changes the first element and appends one, or resets the array when it
// has become long.
func (g *Generator) setArray(op *Op, s *slot) {
	value, at := fresh32(g.seq), indexNames[s.elements]
	if s.elements == mostElements {
		s.elements = uint8(g.elements)
		r := mix64(g.seq)
		set := func(dst []byte) []byte { return g.appendArray(dst, r) }
		g.change(op, deltaSpace,
			func(dst []byte) []byte { return within(dst, "u", set) },
			func(dst []byte) []byte { return within(dst, "$set", set) })
		return
	}
	s.elements++
	g.change(op, deltaSpace,
		func(dst []byte) []byte {
			return within(dst, "sl", func(dst []byte) []byte {
				dst = bsoncore.AppendBooleanElement(dst, "a", true)
				dst = appendInt32(dst, "u0", value)
				return appendInt32(dst, "u"+at, value)
			})
		},
		func(dst []byte) []byte {
			return within(dst, "$set", func(dst []byte) []byte {
				dst = appendInt32(dst, "l.0", value)
				return appendInt32(dst, "l."+at, value)
			})
		})
}

// swap removes p and adds q, or the other way round.
func (g *Generator) swap(op *Op, s *slot) {
	from, to := "p", "q"
	if s.swapped {
		from, to = to, from
	}
	s.swapped = !s.swapped
	value := fresh32(g.seq)
	add := func(dst []byte) []byte { return appendInt32(dst, to, value) }
	g.change(op, deltaSpace,
		func(dst []byte) []byte {
			dst = within(dst, "d", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, from, false) })
			return within(dst, "i", add)
		},
		func(dst []byte) []byte {
			dst = within(dst, "$set", add)
			return within(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, from, true) })
		})
}

func (g *Generator) setDotted(op *Op) {
	value := fresh32(g.seq)
	op.IsPipeline = true
	g.change(op, deltaSpace,
		func(dst []byte) []byte {
			return within(dst, "u", func(dst []byte) []byte { return appendInt32(dst, "x.y", value) })
		},
		func(dst []byte) []byte {
			return within(dst, "0", func(dst []byte) []byte {
				return within(dst, "$replaceWith", func(dst []byte) []byte {
					return within(dst, "$setField", func(dst []byte) []byte {
						dst = bsoncore.AppendStringElement(dst, "field", "x.y")
						dst = bsoncore.AppendStringElement(dst, "input", "$$ROOT")
						return appendInt32(dst, "value", value)
					})
				})
			})
		})
}

func (g *Generator) setText(op *Op, number uint32) {
	set := func(dst []byte) []byte {
		g.pcg.Seed(g.seed^mix64(g.seq), uint64(number))
		return g.appendText(dst, g.textBytes, g.seq)
	}
	g.change(op, deltaSpace+g.textBytes,
		func(dst []byte) []byte { return within(dst, "u", set) },
		func(dst []byte) []byte { return within(dst, "$set", set) })
}
