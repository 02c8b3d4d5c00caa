package update

import (
	"encoding/binary"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// AppendDiff appends the diff in the encoding of a $v: 2 entry, as read by
// [ParseDelta], and returns the extended buffer.
func (d *ObjectDiff) AppendDiff(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	if len(d.Deletes) > 0 {
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "d")
		section := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for _, name := range d.Deletes {
			dst = append(appendHeader(dst, bson.TypeBoolean, name), 0)
		}
		dst = closeDocument(dst, section)
	}
	dst = appendFields(dst, "u", d.Updates)
	dst = appendFields(dst, "i", d.Inserts)
	if len(d.Binaries) > 0 {
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "b")
		section := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for i := range d.Binaries {
			dst = d.Binaries[i].append(dst)
		}
		dst = closeDocument(dst, section)
	}
	for i := range d.Subs {
		dst = append(append(dst, byte(bson.TypeEmbeddedDocument), 's'), d.Subs[i].Name...)
		dst = d.Subs[i].appendDiff(append(dst, 0))
	}
	return closeDocument(dst, start)
}

func appendFields(dst []byte, name string, fields []Field) []byte {
	if len(fields) == 0 {
		return dst
	}
	dst = appendHeader(dst, bson.TypeEmbeddedDocument, name)
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i := range fields {
		dst = appendField(dst, &fields[i])
	}
	return closeDocument(dst, start)
}

func (b *BinaryField) append(dst []byte) []byte {
	dst = appendHeader(dst, bson.TypeEmbeddedDocument, b.Name)
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendHeader(dst, bson.TypeInt32, "o")
	dst = binary.LittleEndian.AppendUint32(dst, uint32(b.Offset))
	dst = appendHeader(dst, bson.TypeBinary, "d")
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.Data)))
	dst = append(append(dst, b.Subtype), b.Data...)
	return closeDocument(dst, start)
}

func (d *SubDiff) appendDiff(dst []byte) []byte {
	if d.Object != nil {
		return d.Object.AppendDiff(dst)
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(appendHeader(dst, bson.TypeBoolean, "a"), 1)
	if d.Array.HasLength {
		dst = appendHeader(dst, bson.TypeInt32, "l")
		dst = binary.LittleEndian.AppendUint32(dst, uint32(d.Array.Length))
	}
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		typ, letter := m.Value.Type, byte('u')
		if m.IsSub() {
			typ, letter = bson.TypeEmbeddedDocument, 's'
		}
		dst = append(dst, byte(typ), letter)
		dst = append(strconv.AppendInt(dst, int64(m.Index), 10), 0)
		if m.IsSub() {
			dst = m.appendDiff(dst)
		} else {
			dst = append(dst, m.Value.Value...)
		}
	}
	return closeDocument(dst, start)
}
