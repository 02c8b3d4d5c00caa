package serverupdate

import (
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// step is a part of a path that exists.
type step struct {
	name  string
	index bool // of an array
}

// walk is one run of modifiers on one document. It descends the tree of paths
// and the document in parallel.
type walk struct {
	s       *Statement
	root    *node
	matched string // the index that $ stands for, empty if there is none
	insert  bool
	log     *changeLog // nil while nothing is to be logged
	changed bool
	// taken is the path to the value where the walk is, pending what of the tree's
	// path does not exist below it. Both are stacks, restored by the caller.
	taken   []step
	pending []string
}

func (s *Statement) runModifiers(r *Result, matched int, insert bool) error {
	w := walk{s: s, root: rootNode(r.Doc), insert: insert}
	var stack [8]step
	w.taken = stack[:0]
	if matched >= 0 {
		w.matched = strconv.Itoa(matched)
	}
	if s.opts.Log != LogNone && !insert {
		w.log = newChangeLog(s.opts.Log)
	}
	if err := w.branch(s.tree, w.root); err != nil {
		return err
	}
	if !w.changed {
		r.NoOp = true
		return nil
	}
	r.Doc = w.root.bytes()
	if w.log != nil {
		r.Delta, r.Modifiers = w.log.build()
	}
	return nil
}

func (w *walk) part(p *part, at *node) error {
	switch {
	case p.leaf != nil:
		return w.leaf(p.leaf, at)
	case p.branch.array:
		return w.elements(p.branch, at)
	default:
		return w.branch(p.branch, at)
	}
}

// branch applies the children of a branch in order, the positional one in its
// place among them.
func (w *walk) branch(b *branch, at *node) error {
	positional := b.positional
	if positional != nil && w.matched == "" {
		return refuse(codeBadValue, "The positional operator did not find the match needed from the query.")
	}
	for i := range b.parts {
		p := &b.parts[i]
		name := p.name
		if positional != nil && name == w.matched {
			merged, err := w.merge(positional, p, name)
			if err != nil {
				return err
			}
			p, positional = &merged, nil
		} else if positional != nil && w.matched < name {
			if err := w.child(positional, w.matched, &at); err != nil {
				return err
			}
			positional = nil
		}
		if err := w.child(p, name, &at); err != nil {
			return err
		}
	}
	if positional != nil {
		return w.child(positional, w.matched, &at)
	}
	return nil
}

// child applies p to the child of that name. Siblings before it may have created
// the pending path; then the walk goes down there first, and stays.
func (w *walk) child(p *part, name string, at **node) error {
	for len(w.pending) > 0 {
		next := (*at).child(w.pending[0])
		if next == nil {
			break
		}
		w.taken = append(w.taken, step{w.pending[0], (*at).typ == bson.TypeArray})
		w.pending = w.pending[1:]
		*at = next
	}
	taken, pending, next := w.taken, w.pending, *at
	if len(pending) == 0 {
		if c := next.child(name); c != nil {
			w.taken = append(w.taken, step{name, next.typ == bson.TypeArray})
			next = c
		} else {
			w.pending = []string{name}
		}
	} else {
		w.pending = append(slices.Clip(pending), name)
	}
	err := w.part(p, next)
	w.taken, w.pending = taken, pending
	return err
}

// elements applies array updates. Changes of several elements of an array are
// logged as the whole array.
func (w *walk) elements(b *branch, at *node) error {
	if len(w.pending) > 0 {
		return refuse(codeBadValue, "The path '%s' must exist in the document in order to apply array updates.",
			strings.Join(append(w.names(), w.pending...), "."))
	}
	if at.typ != bson.TypeArray {
		return refuse(codeBadValue, "Cannot apply array updates to non-array element %s", at.text())
	}
	at.open()
	chosen, count, err := w.choose(b, at)
	if err != nil {
		return err
	}
	log, before := w.log, w.changed
	if count > 1 {
		w.log = nil
	}
	var modified []int
	taken := w.taken
	for i, c := range at.children {
		if chosen[i] == nil {
			continue
		}
		w.changed = false
		w.taken = append(w.taken, step{strconv.Itoa(i), true})
		err := w.part(chosen[i], c)
		w.taken = taken
		if err != nil {
			return err
		}
		if w.changed {
			modified = append(modified, i)
			before = true
		}
	}
	w.log, w.changed = log, before
	if log == nil || count <= 1 {
		return nil
	}
	switch len(modified) {
	case 0:
	case 1:
		i := modified[0]
		log.add(append(taken, step{strconv.Itoa(i), true}), logUpdate, at.children[i], -1)
	default:
		log.add(taken, logUpdate, at, -1)
	}
	return nil
}

// choose returns the part that applies to each element of an array, nil where none
// does, and to how many one does.
func (w *walk) choose(b *branch, at *node) (chosen []*part, count int, err error) {
	chosen = make([]*part, len(at.children))
	for i, c := range at.children {
		v := c.value()
		for k := range b.parts {
			name := b.parts[k].name
			if name != "" {
				matches, err := w.s.filters[name].match(wrapAs(name, v))
				if err != nil {
					return nil, 0, err
				}
				if !matches {
					continue
				}
			}
			if chosen[i] == nil {
				chosen[i] = &b.parts[k]
				count++
				continue
			}
			merged, err := w.merge(chosen[i], &b.parts[k], c.name)
			if err != nil {
				return nil, 0, err
			}
			chosen[i] = &merged
		}
	}
	return chosen, count, nil
}

// merge joins two parts that meet at one place of a document.
func (w *walk) merge(a, b *part, name string) (part, error) {
	return mergeParts(a, b, append(w.names(), append(slices.Clone(w.pending), name)...))
}

func mergeParts(a, b *part, path []string) (part, error) {
	switch {
	case a == nil:
		return *b, nil
	case b == nil:
		return *a, nil
	case a.leaf != nil || b.leaf != nil || a.branch.array != b.branch.array:
		return part{}, refuse(codeConflictingUpdateOperators, "Update created a conflict at '%s'", strings.Join(path, "."))
	}
	out := &branch{array: a.branch.array}
	if a.branch.positional != nil || b.branch.positional != nil {
		p, err := mergeParts(a.branch.positional, b.branch.positional, append(slices.Clip(path), "$"))
		if err != nil {
			return part{}, err
		}
		out.positional = &p
	}
	for _, from := range []*branch{a.branch, b.branch} {
		for i := range from.parts {
			name := from.parts[i].name
			if out.child(name) != nil {
				continue
			}
			shown := name
			if out.array {
				shown = "$[" + name + "]"
			}
			p, err := mergeParts(a.branch.child(name), b.branch.child(name), append(slices.Clip(path), shown))
			if err != nil {
				return part{}, err
			}
			p.name = name
			out.put(p)
		}
	}
	return part{branch: out}, nil
}

func (w *walk) names() []string {
	names := make([]string, len(w.taken))
	for i, s := range w.taken {
		names[i] = s.name
	}
	return names
}

func (w *walk) dotted() string { return strings.Join(w.names(), ".") }

// leaf applies one operator where the walk has arrived.
func (w *walk) leaf(l *leaf, at *node) error {
	switch {
	case l.op == opSetOnInsert && !w.insert, l.op == opRenameSource:
		return nil
	case l.op == opRename:
		return w.rename(l, at)
	case len(w.pending) == 0:
		return w.update(l, at)
	case l.creates():
		return w.create(l, at)
	case l.op != opUnset:
		return w.checkViable(at)
	default:
		return nil
	}
}

// checkViable refuses a path that could not be created, for operators that do
// nothing where it could.
func (w *walk) checkViable(at *node) error {
	switch at.typ {
	case bson.TypeEmbeddedDocument:
		return nil
	case bson.TypeArray:
		if _, ok := arrayIndex(w.pending[0]); ok {
			return nil
		}
	}
	return refuse(codePathNotViable, "Cannot use the part (%s) of (%s.%s) to traverse the element (%s)",
		w.pending[0], w.dotted(), strings.Join(w.pending, "."), "{"+at.text()+"}")
}

// update changes a value that exists.
func (w *walk) update(l *leaf, at *node) error {
	outcome, err := w.change(l, at)
	if err != nil || outcome == unchanged {
		return err
	}
	if err := w.checkImmutable(l.op, at); err != nil {
		return err
	}
	switch l.op {
	case opUnset, opPop, opPull, opPullAll:
	default:
		if err := w.checkStored(at, len(w.taken)); err != nil {
			return err
		}
	}
	w.changed = true
	switch {
	case w.log == nil:
	case outcome == removed:
		w.log.add(w.taken, logDelete, nil, -1)
	case outcome == appended:
		first := len(at.children) - len(l.values)
		for i, c := range at.children[first:] {
			w.log.add(append(w.taken, step{strconv.Itoa(first + i), true}), logInsert, c, len(w.taken))
		}
	default:
		w.log.add(w.taken, logUpdate, at, -1)
	}
	return nil
}

// checkImmutable refuses changes of _id. The caller knows that the value
// differs.
func (w *walk) checkImmutable(op operator, at *node) error {
	if w.taken[0].name != "_id" {
		return nil
	}
	object := false
	switch op {
	case opSet, opSetOnInsert, opMin, opMax, opRename:
		object = at.typ == bson.TypeEmbeddedDocument
	default: // cannot make an object
	}
	if object && len(w.taken) == 1 {
		return refuse(codeImmutableField, "Updating the path '_id' to %s would modify the immutable field '_id'", at.text())
	}
	return refuse(codeImmutableField, "Performing an update on the path '%s' would modify the immutable field '_id'", w.dotted())
}

// create adds the missing part of the path below at.
func (w *walk) create(l *leaf, at *node) error {
	value, err := l.initial(w)
	if err != nil {
		return err
	}
	if err := w.attach(at, value); err != nil {
		return err
	}
	w.changed = true
	if w.log != nil {
		path := append(slices.Clip(w.taken), step{w.pending[0], at.typ == bson.TypeArray})
		for _, name := range w.pending[1:] {
			path = append(path, step{name, false})
		}
		w.log.add(path, logInsert, value, len(w.taken))
	}
	return nil
}

// attach puts leaf, which is in no document yet, at the end of the pending path.
func (w *walk) attach(at, leaf *node) error {
	missing := w.pending
	switch at.typ {
	case bson.TypeEmbeddedDocument:
	case bson.TypeArray:
		i, ok := arrayIndex(missing[0])
		if !ok {
			return notViable(missing[0], at)
		}
		at.open()
		if i-len(at.children) > maxPadding {
			return refuse(codeCannotBackfillArray, "can't backfill more than %d elements", maxPadding)
		}
		at.pad(i)
	default:
		return notViable(missing[0], at)
	}
	first, under := leaf, at
	for i, name := range missing {
		next := leaf
		if i < len(missing)-1 {
			next = emptyObject(name)
		}
		next.name = name
		if i == 0 {
			first = next
		}
		under.add(next)
		under = next
	}
	if err := w.checkStored(first, len(w.taken)+1); err != nil {
		return err
	}
	if len(w.taken) > 0 && w.taken[0].name == "_id" {
		return refuse(codeImmutableField, "Updating the path '%s' to %s would modify the immutable field '_id'", w.dotted(), at.text())
	}
	return nil
}

func notViable(name string, at *node) error {
	return refuse(codePathNotViable, "Cannot create field '%s' in element {%s}", name, at.text())
}

// checkStored checks a value written at a level of the document, the top one
// being 1. Only there are names with a dollar refused, or at every level: see Options.NoDollars.
func (w *walk) checkStored(n *node, level int) error {
	if w.s.opts.NoDollars && n.parent != nil && n.parent.typ != bson.TypeArray {
		if err := checkNoDollarAt(n.parent.siblings(n)); err != nil {
			return err
		}
	}
	if w.s.opts.NoDollars && n.container() {
		if err := checkNoDollars(n.bytes(), n.name+"."); err != nil {
			return err
		}
	}
	if level == 1 && strings.HasPrefix(n.name, "$") {
		list, at := n.parent.siblings(n)
		if err := checkDBRef(list, at, n.name, notReplaced); err != nil {
			return err
		}
	}
	deepest := level
	if n.container() {
		deepest += n.depth()
	}
	return checkElementDepth(deepest)
}
