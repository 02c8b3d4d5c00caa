package update

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// builder writes a compiled update. Every method that takes a key writes one
// element under that key into the innermost open document or array.
type builder struct {
	buf []byte
	// guarantee decides whether types are checked, and whether inserted fields are
	// removed first.
	guarantee Guarantee
	// depth is the number of open documents and arrays, deepest the maximum nesting
	// reached.
	depth, deepest int
	// path is the path of the document or array whose modifiers are written, followed
	// by a dot; empty for the whole document.
	path []byte
	// vars is the number of variables bound so far.
	vars int
	// byName is set once $setField, $unsetField or $getField is written.
	byName bool
}

// level is an open document or array.
type level int32

func (b *builder) open() level {
	b.depth++
	b.deepest = max(b.deepest, b.depth)
	at, buf := bsoncore.ReserveLength(b.buf)
	b.buf = buf
	return level(at)
}

func (b *builder) document(key string) level {
	b.buf = bsoncore.AppendHeader(b.buf, bsoncore.TypeEmbeddedDocument, key)
	return b.open()
}

func (b *builder) array(key string) level {
	b.buf = bsoncore.AppendHeader(b.buf, bsoncore.TypeArray, key)
	return b.open()
}

func (b *builder) end(at level) {
	b.buf = append(b.buf, 0)
	b.buf = bsoncore.UpdateLength(b.buf, int32(at), int32(len(b.buf)-int(at)))
	b.depth--
}

func (b *builder) text(key, s string) { b.buf = bsoncore.AppendStringElement(b.buf, key, s) }

func (b *builder) number(key string, n int) {
	b.buf = bsoncore.AppendInt32Element(b.buf, key, int32(n))
}

func (b *builder) null(key string) { b.buf = bsoncore.AppendNullElement(b.buf, key) }

// raw writes a value unchanged.
func (b *builder) raw(key string, v bson.RawValue) {
	b.buf = bsoncore.AppendHeader(b.buf, bsoncore.Type(v.Type), key)
	b.buf = append(b.buf, v.Value...)
	b.deepest = max(b.deepest, b.depth+levels(v.Type, v.Value))
}

// constant writes an expression with the value v.
func (b *builder) constant(key string, v bson.RawValue) {
	switch v.Type {
	case bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128, bson.TypeBoolean,
		bson.TypeDateTime, bson.TypeTimestamp, bson.TypeObjectID, bson.TypeNull, bson.TypeBinary:
		b.raw(key, v)
		return
	case bson.TypeString:
		if v.Value[4] != '$' { // not a field path; the byte exists even if the string is empty
			b.raw(key, v)
			return
		}
	}
	at := b.document(key)
	b.raw("$literal", v)
	b.end(at)
}
