package update

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// AppendPlain is [ParseDelta] and [Arena.AppendModifiers] in one pass for the
// most common deltas: a few top-level fields that are updated or deleted. It
// returns false, with dst unchanged, for all others, and for an invalid delta, for
// which [ParseDelta] returns the error.
func AppendPlain(dst []byte, diff bson.Raw, g Guarantee) ([]byte, bool) {
	var deletes, updates []byte
	it := rawbson.NewIter(diff)
	for it.Next() {
		section, ok := it.Document()
		switch {
		case !ok:
			return dst, false
		case it.Is("d") && deletes == nil && updates == nil:
			deletes = section
		case it.Is("u") && updates == nil:
			updates = section
		default:
			return dst, false
		}
	}
	p := plainNames{ordered: true}
	if it.Err() != nil || deletes != nil && !p.deletes(deletes) || updates != nil && !p.updates(updates) || p.n == 0 || g == GuaranteeNone && !p.ordered {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	if len(updates) > rawbson.MinSize {
		dst = append(appendHeader(dst, bson.TypeEmbeddedDocument, "$set"), updates...)
	}
	if len(deletes) > rawbson.MinSize {
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "$unset")
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for in := rawbson.NewIter(deletes); in.Next(); {
			dst = append(appendHeader(dst, bson.TypeString, in.Name()), 1, 0, 0, 0, 0)
		}
		dst = closeDocument(dst, at)
	}
	if dst = closeDocument(dst, start); len(dst)-start > defaultMaxSize {
		return dst[:start], false
	}
	return dst, true
}

// plainNames are the names used by a delta so far.
type plainNames struct {
	names [scanLimit][]byte
	n     int
	// ordered is set if $set appends the updated fields in their order; see the
	// function ordered.
	ordered bool
}

// add returns false for a name that cannot be used as a path, for a duplicate, and
// if there are too many names.
func (p *plainNames) add(name []byte) bool {
	if p.n == len(p.names) || !plain(rawbson.View(name)) || string(name) == "_id" {
		return false
	}
	for _, other := range p.names[:p.n] {
		if string(other) == string(name) {
			return false
		}
	}
	p.names[p.n] = name
	p.n++
	return true
}

func (p *plainNames) deletes(section []byte) bool {
	it := rawbson.NewIter(section)
	for it.Next() {
		if !p.add(it.Key) || !plainValue(&it.Elem) {
			return false
		}
	}
	return it.Err() == nil
}

func (p *plainNames) updates(section []byte) bool {
	first := p.n
	it := rawbson.NewIter(section)
	for it.Next() {
		if !p.add(it.Key) || !plainValue(&it.Elem) {
			return false
		}
	}
	updated := p.names[first:p.n]
	p.ordered = len(updated) < 2 || updated[0][0] > '9' && slices.IsSortedFunc(updated, slices.Compare[[]byte])
	return it.Err() == nil
}

// plainValue reports whether $set stores a value unchanged, wherever it is.
func plainValue(e *rawbson.Elem) bool {
	switch e.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeCodeWithScope:
		value := e.Value
		if e.Type == bson.TypeCodeWithScope {
			value = rawbson.Scope(value)
		}
		return rawbson.Validate(value) == nil && asTold(e.Raw()) && levels(e.Type, e.Value)+2 <= DefaultMaxDepth
	case bson.TypeTimestamp:
		return asTold(e.Raw())
	}
	return true
}
