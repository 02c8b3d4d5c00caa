package update

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// MaxPadding is the maximum number of nulls that a $set beyond the end of an array
// may put before its element. It is the server's limit.
const MaxPadding = 1_500_000

// ErrBadModifiers matches every [*ModifierError] in errors.Is.
var ErrBadModifiers = errors.New("not a $v:1 update")

// ModifierError is a $set and $unset update that a server would not log.
type ModifierError struct {
	// Operator is the field of o with the fault, empty if it is not one field.
	Operator string
	// Path is the modifier's path, empty if it is not one path.
	Path string
	// What says which rule is violated.
	What string
	// Err is the fault in the BSON, nil if the BSON is valid.
	Err error
}

func (e *ModifierError) Error() string {
	var b strings.Builder
	b.WriteString("modifiers: ")
	if e.Operator != "" {
		b.WriteString(strconv.Quote(e.Operator) + ": ")
	}
	if e.Path != "" {
		b.WriteString(strconv.Quote(e.Path) + ": ")
	}
	b.WriteString(e.What)
	return b.String()
}

// Is reports whether target is [ErrBadModifiers].
func (e *ModifierError) Is(target error) bool { return target == ErrBadModifiers }

func (e *ModifierError) Unwrap() error { return e.Err }

// modNode is a part of one or more modifier paths. Paths with the same prefix share
// nodes, so that each object and array is rebuilt once. A tree is used for one
// document only.
type modNode struct {
	name string
	// value is the value of $set, at the end of a path.
	value bson.RawValue
	// action is the node's action.
	action modAction
	// sets is set if there is a $set at this node or below.
	sets bool
	// done is set if the document had this field.
	done bool
	// children are the next parts: first in the order in which they are added, then
	// sorted in the order in which the server applies them; see comparePart.
	children []*modNode
	// byName finds a child. It is nil if there are so few that a scan is faster.
	byName map[string]*modNode
}

type modAction int

const (
	modInside modAction = iota
	modSet
	modUnset
)

// appendModified applies the modifiers in o to doc and appends the result to dst.
//
// The rules are those of the server when it applies an oplog entry. Paths go
// through objects by name and through arrays by number. Existing fields are changed
// in place; new fields of an object are created in the order of comparePart, and
// missing parents are created as objects. A path through anything else is ignored:
// a later entry has changed the shape, and the other modifiers still have to take
// effect.
func appendModified(dst []byte, doc, o bson.Raw) ([]byte, error) {
	root, err := parseModifiers(o)
	if err != nil {
		return nil, err
	}
	if err := checkID(doc, root); err != nil {
		return nil, err
	}
	m := modifier{applier{limit: len(dst) + MaxResult}}
	return m.object(dst, doc, root)
}

func parseModifiers(o bson.Raw) (*modNode, error) {
	if err := rawbson.Validate(o); err != nil {
		return nil, &ModifierError{What: err.Error(), Err: err}
	}
	root := &modNode{}
	var version, set, unset bool
	it := rawbson.NewIter(o)
	for it.Next() {
		name := string(it.Key)
		var seen *bool
		action := modSet
		switch name {
		case "$v":
			seen = &version
		case "$set":
			seen = &set
		case "$unset":
			seen, action = &unset, modUnset
		default:
			return nil, &ModifierError{Operator: name, What: "unknown operator"}
		}
		if *seen {
			return nil, &ModifierError{Operator: name, What: "given twice"}
		}
		*seen = true
		if seen == &version {
			continue
		}
		paths, ok := it.Document()
		if !ok {
			return nil, &ModifierError{Operator: name, What: fmt.Sprintf("type %s instead of a document", it.Type)}
		}
		for in := rawbson.NewIter(paths); in.Next(); {
			if what := root.add(in.Name(), action, in.Raw()); what != "" {
				return nil, &ModifierError{Operator: name, Path: string(in.Key), What: what}
			}
		}
	}
	if !set && !unset {
		return nil, &ModifierError{What: "neither $set nor $unset"}
	}
	root.sort()
	return root, nil
}

// AppendClientModifiers appends the $set and $unset of the o field of a
// [FormModifiers] entry as an update that a client can send, and returns the
// extended buffer. It returns false, with dst unchanged, if a client's update may
// have another effect: if the server would check or interpret a value or a name, if
// nothing would be changed, and, unless the document is the one that the entry was
// logged for (exact), if a path goes below the top level. Errors are a
// [*ModifierError].
func AppendClientModifiers(dst []byte, o bson.Raw, exact bool) ([]byte, bool, error) {
	root, err := parseModifiers(o)
	if err != nil {
		return dst, false, err
	}
	if len(root.children) == 0 || !root.forClients(exact, 1) {
		return dst, false, nil
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for it := rawbson.NewIter(o); it.Next(); {
		if !it.Is("$v") && len(it.Value) > rawbson.MinSize {
			dst = append(appendHeader(dst, it.Type, it.Name()), it.Value...)
		}
	}
	return closeDocument(dst, start), true, nil
}

// forClients reports whether a client's modifiers have the same effect as these.
func (n *modNode) forClients(exact bool, depth int) bool {
	for _, c := range n.children {
		if !plain(c.name) || depth > maxPath {
			return false
		}
		if c.action == modInside && (!exact || !c.forClients(exact, depth+1)) || c.action == modSet && !asTold(c.value) {
			return false
		}
	}
	return true
}

// add inserts one modifier into the tree under n, or returns why it is invalid.
func (n *modNode) add(path string, action modAction, value bson.RawValue) (what string) {
	depth := 1 + strings.Count(path, ".")
	if action == modSet {
		depth += levels(value.Type, value.Value)
	}
	if depth > rawbson.MaxDepth {
		return fmt.Sprintf("leads deeper than %d levels", rawbson.MaxDepth)
	}
	for more := true; more; {
		var part string
		part, path, more = strings.Cut(path, ".")
		switch {
		case part == "":
			return "an empty part of a path"
		case part == "$" || strings.HasPrefix(part, "$["):
			return "a positional part of a path, which is never logged"
		}
		child := n.child(part)
		switch {
		case child == nil:
			child = n.newChild(part)
		case !more || child.action != modInside:
			return "in conflict with another path"
		}
		n.sets = n.sets || action == modSet
		n = child
	}
	n.action, n.value, n.sets = action, value, action == modSet
	return ""
}

// child returns the child of this name, nil if there is none.
func (n *modNode) child(name string) *modNode {
	if n.byName != nil {
		return n.byName[name]
	}
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

func (n *modNode) newChild(name string) *modNode {
	c := &modNode{name: name}
	n.children = append(n.children, c)
	switch {
	case n.byName != nil:
		n.byName[name] = c
	case len(n.children) > scanLimit:
		n.byName = make(map[string]*modNode, 2*len(n.children))
		for _, c := range n.children {
			n.byName[c.name] = c
		}
	}
	return c
}

// sort sorts the children at every level in the order of comparePart.
func (n *modNode) sort() {
	slices.SortFunc(n.children, func(a, b *modNode) int { return comparePart(a.name, b.name) })
	for _, c := range n.children {
		c.sort()
	}
}

// comparePart is the order in which the server applies the modifiers of one object:
// by bytes, except that names that begin with a digit other than a leading zero are
// compared by length first, so that array indexes ascend.
func comparePart(a, b string) int {
	if isIndexLike(a) && isIndexLike(b) && len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func isIndexLike(s string) bool {
	return s != "" && s[0] >= '0' && s[0] <= '9' && (s[0] != '0' || len(s) == 1)
}

// levels returns the nesting of a valid value in levels, 0 for a value that does
// not nest.
func levels(t bson.Type, value []byte) int {
	switch t {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
	case bson.TypeCodeWithScope:
		value = rawbson.Scope(value)
	default:
		return 0
	}
	deepest := 0
	for it := rawbson.NewIter(value); it.Next(); {
		deepest = max(deepest, levels(it.Type, it.Value))
	}
	return 1 + deepest
}

// checkID refuses every modifier of _id except one that sets it to its value.
func checkID(doc bson.Raw, root *modNode) error {
	n := root.child("_id")
	if n == nil {
		return nil
	}
	old, ok := rawbson.Lookup(doc, "_id")
	e := rawbson.Elem{Type: n.value.Type, Value: n.value.Value}
	if n.action != modSet || ok && !sameID(&old, &e) {
		return ErrIDChanged
	}
	return nil
}

// modifier applies one tree of modifiers.
type modifier struct{ applier }

func (m *modifier) object(dst []byte, pre []byte, n *modNode) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	it := rawbson.NewIter(pre)
	copied := it.Offset()
	for from := copied; it.Next(); from = it.Offset() {
		child := n.child(it.Name())
		if child == nil || child.done {
			// Of several fields with one name the server changes the first.
			continue
		}
		child.done = true
		if child.action == modInside && !nests(it.Type) {
			continue
		}
		dst = append(dst, pre[copied:from]...)
		copied = it.Offset()
		switch child.action {
		case modUnset:
		case modSet:
			dst = appendHeader(dst, child.value.Type, child.name)
			dst = append(dst, child.value.Value...)
		case modInside:
			dst = appendHeader(dst, it.Type, child.name)
			var err error
			if dst, err = m.inside(dst, &it.Elem, child); err != nil {
				return nil, fmt.Errorf("field %q: %w", child.name, err)
			}
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	dst = append(dst, pre[copied:it.Offset()]...)
	for _, child := range n.children {
		if child.sets && !child.done {
			dst = appendHeader(dst, child.newType(), child.name)
			dst = child.appendNew(dst)
		}
	}
	return m.end(dst, start)
}

func nests(t bson.Type) bool { return t == bson.TypeEmbeddedDocument || t == bson.TypeArray }

func (m *modifier) inside(dst []byte, e *rawbson.Elem, n *modNode) ([]byte, error) {
	if e.Type == bson.TypeArray {
		return m.array(dst, e.Value, n)
	}
	return m.object(dst, e.Value, n)
}

// indexed is a modifier of one array element.
type indexed struct {
	index uint64
	// padded is set if the server has applied a $set of a later element before this
	// modifier. If the array ends before index, that $set has put a null there.
	padded bool
	*modNode
}

// elements returns the children that name array elements, by ascending index. That
// is the order in which the server applies them, except for indexes with leading
// zeros, which it applies first.
func (n *modNode) elements() ([]indexed, error) {
	var all []indexed
	furthest := uint64(0)
	for _, child := range n.children {
		index, err := strconv.ParseUint(child.name, 10, 64)
		if err != nil {
			// Not an index, so the path is not viable here.
			continue
		}
		all = append(all, indexed{index, index < furthest, child})
		if child.sets {
			furthest = max(furthest, index)
		}
	}
	slices.SortStableFunc(all, func(a, b indexed) int { return cmp.Compare(a.index, b.index) })
	for i := 1; i < len(all); i++ {
		if all[i].index == all[i-1].index {
			return nil, &ModifierError{Path: all[i].name, What: "an array index written in two ways"}
		}
	}
	return all, nil
}

// paddedLength returns the length of an array of this length once mods, all of them
// beyond its end, have been applied. It is an [ErrTooLarge] if one would put more
// than [MaxPadding] nulls before its element.
func paddedLength(length int, mods []indexed) (int, error) {
	end := uint64(length)
	for i := range mods {
		mod := &mods[i]
		if !mod.sets || mod.padded {
			continue
		}
		if mod.index-end > MaxPadding {
			return 0, fmt.Errorf("element %s of an array of %d: %w", mod.name, end, ErrTooLarge)
		}
		end = mod.index + 1
	}
	return int(end), nil
}

func (m *modifier) array(dst []byte, pre []byte, n *modNode) ([]byte, error) {
	mods, err := n.elements()
	if err != nil {
		return nil, err
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	w := arrayWriter{dst: dst, pre: pre}
	it := rawbson.NewIter(pre)
	for it.Next() {
		if len(mods) == 0 || mods[0].index != uint64(w.next) {
			w.keep(&it)
			continue
		}
		mod := mods[0].modNode
		mods = mods[1:]
		switch {
		case mod.action == modSet:
			w.set(mod.value.Type, mod.value.Value)
		case mod.action == modUnset:
			// Removing the element would renumber the others.
			w.set(bson.TypeNull, nil)
		case nests(it.Type):
			w.header(it.Type)
			if w.dst, err = m.inside(w.dst, &it.Elem, mod); err != nil {
				return nil, fmt.Errorf("element %s: %w", mod.name, err)
			}
		default:
			w.keep(&it)
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read array: %w", err)
	}
	end, err := paddedLength(w.next, mods)
	if err == nil {
		err = w.reserve(end, m.limit)
	}
	if err != nil {
		return nil, err
	}
	for _, mod := range mods {
		if !mod.sets || mod.padded && mod.action == modInside {
			// The second condition is a path through a null, which is not viable.
			continue
		}
		for uint64(w.next) < mod.index {
			w.set(bson.TypeNull, nil)
		}
		w.header(mod.newType())
		w.dst = mod.appendNew(w.dst)
	}
	w.flush()
	return m.end(w.dst, start)
}

// newType returns the type of the value that appendNew appends.
func (n *modNode) newType() bson.Type {
	if n.action == modSet {
		return n.value.Type
	}
	return bson.TypeEmbeddedDocument
}

// appendNew appends the value of a new field.
func (n *modNode) appendNew(dst []byte) []byte {
	if n.action == modSet {
		return append(dst, n.value.Value...)
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for _, child := range n.children {
		if child.sets {
			dst = appendHeader(dst, child.newType(), child.name)
			dst = child.appendNew(dst)
		}
	}
	return closeDocument(dst, start)
}

// Levels returns the nesting of a valid document in levels, with the document
// itself as the first.
func Levels(doc bson.Raw) int { return levels(bson.TypeEmbeddedDocument, doc) }
