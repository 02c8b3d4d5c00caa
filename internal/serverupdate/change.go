package serverupdate

import (
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxPadding is how many nulls the server adds to an array to reach an index.
const maxPadding = 1_500_000

// outcome is the effect of an operator on an existing value.
type outcome int

const (
	unchanged outcome = iota
	changed
	removed
	// appended means that the values of a $push are at the array's end and the
	// rest of it is unchanged.
	appended
)

// change executes an operator on an existing value.
func (w *walk) change(l *leaf, at *node) (outcome, error) {
	switch l.op {
	case opSet, opSetOnInsert:
		if at.equals(l.arg.Type, l.arg.Value) {
			return unchanged, nil
		}
		at.set(l.arg.Type, l.arg.Value)
	case opUnset:
		if at.parent.typ == bson.TypeArray {
			at.set(bson.TypeNull, nil)
			return changed, nil
		}
		at.remove()
		return removed, nil
	case opMin, opMax:
		c := bsonorder.Compare(at.value(), l.arg.Raw(), w.s.opts.Collator)
		if c == 0 || (c < 0) == (l.op == opMin) {
			return unchanged, nil
		}
		at.set(l.arg.Type, l.arg.Value)
	case opCurrentDate:
		at.set(l.now(&w.s.opts))
	case opInc, opMul:
		return l.compute(at)
	case opBit:
		return l.combine(at)
	case opPush:
		return l.pushTo(at, w)
	case opAddToSet:
		return l.addTo(at, w.s.opts.Collator)
	case opPop:
		return l.popFrom(at, w)
	case opPull, opPullAll:
		return l.pullFrom(at)
	case opRename, opRenameSource: // the walk does these
		return unchanged, nil
	}
	return changed, nil
}

// initial is the value of a field that did not exist.
func (l *leaf) initial(w *walk) (*node, error) {
	n := newNode("", l.arg.Type, l.arg.Value)
	switch l.op {
	case opInc:
		n.typ, n.raw = l.number.encode()
	case opMul:
		product, _ := l.number.mul(number{typ: bson.TypeInt32})
		n.typ, n.raw = product.encode()
	case opBit:
		result := number{typ: bson.TypeInt32}
		for _, op := range l.bits {
			result = result.bit(op)
		}
		n.typ, n.raw = result.encode()
	case opCurrentDate:
		n.typ, n.raw = l.now(&w.s.opts)
	case opPush:
		n.typ, n.raw = bson.TypeArray, emptyDocument
		_, err := l.pushTo(n, w)
		return n, err
	case opAddToSet:
		n.typ, n.raw = bson.TypeArray, emptyDocument
		_, err := l.addTo(n, w.s.opts.Collator)
		return n, err
	default: // the argument is the value
	}
	return n, nil
}

func (l *leaf) now(o *Options) (bson.Type, []byte) {
	if l.date {
		return bson.TypeDateTime, bsoncore.AppendDateTime(nil, int64(o.Clock()))
	}
	ts := o.Tick()
	return bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, ts.T, ts.I)
}

func (l *leaf) compute(at *node) (outcome, error) {
	name, verb := "$inc", number.add
	if l.op == opMul {
		name, verb = "$mul", number.mul
	}
	if v := (value{typ: at.typ}); !v.numeric() {
		return unchanged, refuse(codeTypeMismatch, "Cannot apply %s to a value of non-numeric type. {%s} has the field '%s' of non-numeric type %s",
			name, at.idText(), at.name, bsontext.TypeName(at.typ))
	}
	if at.typ == bson.TypeDecimal128 {
		return unchanged, decimals(name)
	}
	before := numberOf(at.typ, at.raw)
	after, ok := verb(l.number, before)
	if !ok {
		return unchanged, refuse(codeBadValue, "Failed to apply %s operations to current value (%s) for document {%s}",
			name, before, at.idText())
	}
	if after.identical(before) {
		return unchanged, nil
	}
	at.set(after.encode())
	return changed, nil
}

func (l *leaf) combine(at *node) (outcome, error) {
	if at.typ != bson.TypeInt32 && at.typ != bson.TypeInt64 {
		return unchanged, refuse(codeBadValue, "Cannot apply $bit to a value of non-integral type.%s has the field %s of non-integer type %s",
			at.idText(), at.name, bsontext.TypeName(at.typ))
	}
	before := numberOf(at.typ, at.raw)
	after := before
	for _, op := range l.bits {
		after = after.bit(op)
	}
	if after.identical(before) {
		return unchanged, nil
	}
	at.set(after.encode())
	return changed, nil
}

func (l *leaf) pushTo(at *node, w *walk) (outcome, error) {
	if at.typ != bson.TypeArray {
		return unchanged, refuse(codeBadValue, "The field '%s' must be an array but is of type %s in document {%s}",
			w.dotted(), bsontext.TypeName(at.typ), at.idText())
	}
	at.open()
	size := len(at.children)
	position := size
	if l.push != nil {
		switch p := l.push.position; {
		case p >= 0 && p < int64(size):
			position = int(p)
		case p < 0:
			position = int(max(0, int64(size)+max(p, -int64(size))))
		}
	}
	result := unchanged
	if len(l.values) > 0 {
		// The server treats a push to the end of an empty array, or to an exact
		// position, like any other change.
		result = changed
		if size > 0 && (l.push == nil || l.push.position > int64(size)) {
			result = appended
		}
		nodes := make([]*node, len(l.values))
		for i, v := range l.values {
			nodes[i] = newNode("", v.Type, v.Value)
			nodes[i].parent = at
		}
		at.keep(slices.Insert(at.children, position, nodes...))
	}
	if l.push == nil {
		return result, nil
	}
	if l.push.sort != nil {
		result = changed
		coll := w.s.opts.Collator
		slices.SortStableFunc(at.children, func(a, b *node) int { return l.push.compare(a, b, coll) })
		at.touch()
	}
	keep := l.push.slice
	if keep == math.MinInt64 {
		keep++ // it has no absolute value; no array is that long
	}
	n := int64(len(at.children))
	switch {
	case keep >= 0 && n > keep:
		at.keep(at.children[:keep])
		result = changed
	case keep < 0 && n > -keep:
		at.keep(at.children[n+keep:])
		result = changed
	}
	return result, nil
}

// compare orders two elements for $sort: by what the paths lead to in objects,
// null where they lead nowhere.
func (p *pushSpec) compare(a, b *node, coll *bsonorder.Collator) int {
	for _, f := range p.sort {
		c := bsonorder.Compare(sortKey(a, f.path), sortKey(b, f.path), coll)
		if f.descend {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

func sortKey(n *node, path []string) bson.RawValue {
	v := n.value()
	for _, name := range path {
		if v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
			return bson.RawValue{Type: bson.TypeNull}
		}
		e, ok := rawbson.Lookup(v.Value, name)
		if !ok {
			return bson.RawValue{Type: bson.TypeNull}
		}
		v = e.Raw()
	}
	return v
}

func (l *leaf) addTo(at *node, coll *bsonorder.Collator) (outcome, error) {
	if at.typ != bson.TypeArray {
		return unchanged, refuse(codeBadValue, "Cannot apply $addToSet to non-array field. Field named '%s' has non-array type %s",
			at.name, bsontext.TypeName(at.typ))
	}
	at.open()
	there := at.children
	result := unchanged
	for _, v := range l.values {
		found := slices.ContainsFunc(there, func(n *node) bool { return bsonorder.Compare(n.value(), v.Raw(), coll) == 0 })
		if !found {
			at.add(newNode("", v.Type, v.Value))
			result = changed
		}
	}
	return result, nil
}

func (l *leaf) popFrom(at *node, w *walk) (outcome, error) {
	if at.typ != bson.TypeArray {
		return unchanged, refuse(codeTypeMismatch, "Path '%s' contains an element of non-array type '%s'", w.dotted(), bsontext.TypeName(at.typ))
	}
	at.open()
	switch n := len(at.children); {
	case n == 0:
		return unchanged, nil
	case l.front:
		at.keep(at.children[1:])
	default:
		at.keep(at.children[:n-1])
	}
	return changed, nil
}

func (l *leaf) pullFrom(at *node) (outcome, error) {
	if at.typ != bson.TypeArray {
		return unchanged, refuse(codeBadValue, "Cannot apply $pull to a non-array value")
	}
	at.open()
	kept := make([]*node, 0, len(at.children))
	for _, c := range at.children {
		matches, err := l.match(c)
		if err != nil {
			return unchanged, err
		}
		if !matches {
			kept = append(kept, c)
		}
	}
	if len(kept) == len(at.children) {
		return unchanged, nil
	}
	at.keep(kept)
	return changed, nil
}

// rename moves a value. The walk has arrived at the target; the source is looked
// for from the top.
func (w *walk) rename(l *leaf, at *node) error {
	from, err := l.source(w.root)
	if from == nil || err != nil {
		return err
	}
	target, _ := l.arg.Text()
	if err := outsideArrays(from.parent, "source", l.arg.Name()); err != nil {
		return err
	}
	under := at
	if len(w.pending) == 0 {
		under = at.parent
	}
	if err := outsideArrays(under, "destination", target); err != nil {
		return err
	}
	moved := from.value()
	switch {
	case len(w.pending) > 0:
		fresh := newNode("", moved.Type, moved.Value)
		if err := w.attach(at, fresh); err != nil {
			return err
		}
		if w.log != nil {
			path := slices.Clip(w.taken)
			for _, name := range w.pending {
				path = append(path, step{name, false})
			}
			w.log.add(path, logInsert, fresh, len(w.taken))
		}
	case bsonorder.Compare(moved, at.value(), nil) != 0:
		at.set(moved.Type, moved.Value)
		if err := w.checkImmutable(l.op, at); err != nil {
			return err
		}
		if err := w.checkStored(at, len(w.taken)); err != nil {
			return err
		}
		if w.log != nil {
			w.log.add(w.taken, logUpdate, at, -1)
		}
	}
	from.remove()
	w.changed = true
	if l.path[0] == "_id" {
		return refuse(codeImmutableField, "Unsetting the path '%s' using $rename would modify the immutable field '_id'", l.arg.Name())
	}
	if w.log != nil {
		path := make([]step, len(l.path))
		for i, name := range l.path {
			path[i] = step{name, false}
		}
		w.log.add(path, logDelete, nil, -1)
	}
	return nil
}

// source finds the value to move: nil if it is not there, an error if it could
// not be there.
func (l *leaf) source(root *node) (*node, error) {
	at := root
	for i, name := range l.path {
		viable := at.typ == bson.TypeEmbeddedDocument
		if at.typ == bson.TypeArray {
			_, viable = arrayIndex(name)
		}
		if !viable {
			return nil, refuse(codePathNotViable, "cannot use the part (%s of %s) to traverse the element ({%s})",
				l.path[i-1], strings.Join(l.path, "."), at.text())
		}
		next := at.child(name)
		if next == nil {
			return nil, nil
		}
		at = next
	}
	return at, nil
}

// outsideArrays refuses the end of a $rename that lies in an array.
func outsideArrays(n *node, end, path string) error {
	for ; n.parent != nil; n = n.parent {
		if n.typ == bson.TypeArray {
			return refuse(codeBadValue, "The %s field cannot be an array element, '%s' in doc with %s has an array field called '%s'",
				end, path, n.idText(), n.name)
		}
	}
	return nil
}
