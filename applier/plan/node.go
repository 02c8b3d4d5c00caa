package plan

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// node is the net effect of one or more operations on one _id.
type node struct {
	effect effect
	// must is set if the operations must have met a document, orMake if an update creates
	// a missing one, exact if it meets the document that it was logged for.
	must, orMake, exact bool
	space               int32
	hash                uint32
	id                  bson.RawValue
	// doc is the result of insert, upsert and replace.
	doc bson.Raw
	// diff is the parsed delta, in Planner.arena, nil until it is needed.
	diff *update.ObjectDiff
	// first and last are the operations, linked by Planner.nextOp.
	first, last int32
	// prev and next are the neighbours on the same _id, -1 for none.
	prev, next int32
	// folded is set if the deltas after it have been composed as far as possible.
	folded bool
	// round and rank are those of its last statement.
	round, rank int32
}

// effect is the effect of a node on its _id.
type effect uint8

const (
	// gone is a node whose operations are in another one.
	gone effect = iota
	// insert creates doc where there is no document.
	insert
	// upsert creates or replaces the document with doc.
	upsert
	// replace replaces an existing document with doc.
	replace
	// delta and modifiers change an existing document.
	delta
	modifiers
	// remove deletes the document, if there is one.
	remove
	// nothing has no effect, and there is no document.
	nothing
)

var (
	errNoMode = errors.New("neither ModeExact nor ModeCopied")
	errNoCRUD = errors.New("not an insert, update or delete")
)

func newNode(op *Op) (node, error) {
	n := node{id: op.ID, exact: op.Mode == ModeExact}
	if !n.exact && op.Mode != ModeCopied {
		return n, op.Fault("op", errNoMode)
	}
	switch op.Kind {
	case oplog.KindInsert:
		n.doc, n.effect = op.O, upsert
		if n.exact && !op.Grouped {
			n.effect = insert
		}
	case oplog.KindDelete:
		n.effect = remove
	case oplog.KindUpdate:
		form, err := update.Classify(op.O)
		if err != nil {
			return n, op.Fault("o", err)
		}
		n.orMake, n.must = op.Upsert, n.exact && !op.Upsert
		switch form {
		case update.FormReplacement:
			n.doc, n.effect = op.O, replace
			if op.Upsert {
				n.effect, n.orMake = upsert, false
			}
		case update.FormDelta:
			n.effect = delta
		case update.FormModifiers:
			n.effect = modifiers
		}
	default:
		return n, op.Fault("op", errNoCRUD)
	}
	return n, nil
}

// absorb merges the operation of n into the last node of its _id, if the net effect of
// the two is known without reading documents, and continues with the node before that. It
// returns the node that contains it, -1 if there is none.
func (p *Planner) absorb(tail int32, n *node) int32 {
	holder := int32(-1)
	for at := tail; at >= 0 && p.spaces[n.space].coalesce; {
		a := &p.nodes[at]
		if !sameBytes(a.id, n.id) || !a.supersede(n) {
			break
		}
		p.nextOp[a.last] = n.first
		a.last = n.last
		if holder >= 0 {
			p.nodes[holder].effect = gone
		}
		a.next = -1
		holder, n, at = at, a, a.prev
	}
	return holder
}

// supersede sets a to the net effect of a and then b, and reports whether it is known.
func (a *node) supersede(b *node) bool {
	type pair struct{ first, second effect }
	switch (pair{a.effect, b.effect}) {
	case pair{insert, remove}, pair{nothing, remove}:
		*a = a.become(nothing, nil)
	case pair{upsert, remove}, pair{replace, remove}, pair{delta, remove}, pair{modifiers, remove}, pair{remove, remove}:
		*a = a.become(remove, nil)

	case pair{remove, insert}, pair{remove, upsert}, pair{upsert, upsert}:
		*a = a.become(upsert, b.doc)
	case pair{nothing, insert}, pair{nothing, upsert}, pair{insert, upsert}:
		*a = a.become(insert, b.doc)
	case pair{replace, upsert}, pair{delta, upsert}, pair{modifiers, upsert}:
		if a.must {
			return false
		}
		*a = a.become(upsert, b.doc)

	case pair{insert, replace}, pair{upsert, replace}:
		*a = a.become(a.effect, b.doc)
	case pair{replace, replace}, pair{delta, replace}, pair{modifiers, replace}:
		if a.orMake { // so there is a document now
			*a = a.become(upsert, b.doc)
			return true
		}
		must := a.must || b.must
		*a = a.become(replace, b.doc)
		a.must = must

	case pair{remove, replace}, pair{remove, delta}, pair{remove, modifiers}:
		return !b.must && !b.orMake // it matches nothing
	default:
		return false
	}
	return true
}

// become returns a with another effect, in the same place.
func (a *node) become(e effect, doc bson.Raw) node {
	b := *a
	b.effect, b.doc, b.diff = e, doc, nil
	b.must, b.orMake = false, false
	return b
}

// fold reduces the updates that follow a node on the same _id.
func (p *Planner) fold(at int32) error {
	a := &p.nodes[at]
	if !p.spaces[a.space].coalesce || a.next < 0 {
		return nil
	}
	switch {
	case a.effect == insert || a.effect == upsert || a.effect == replace:
		return p.foldInto(at)
	case a.effect == delta && !a.folded:
		return p.foldDeltas(at)
	}
	return nil
}

// foldInto applies the updates after a document to it.
func (p *Planner) foldInto(at int32) error {
	a := &p.nodes[at]
	// Deltas that are not merged in the end are parsed again later.
	defer func() {
		for _, i := range p.run {
			p.nodes[i].diff = nil
		}
	}()
	for a.next >= 0 {
		p.run = p.run[:0]
		for i := a.next; i >= 0; i = p.nodes[i].next {
			b := &p.nodes[i]
			if b.effect != delta || !sameBytes(a.id, b.id) || b.orMake && a.effect == replace && !a.must {
				break
			}
			p.run = append(p.run, i)
		}
		doc, err := p.foldRun(a.doc)
		if err != nil {
			return err
		}
		if len(p.run) == 0 {
			b := &p.nodes[a.next]
			if b.effect != modifiers || !sameBytes(a.id, b.id) || b.orMake && a.effect == replace && !a.must {
				return nil
			}
			p.run = append(p.run, a.next)
			doc, err = update.Apply(a.doc, p.ops[b.first].O)
			if err != nil {
				doc = nil
			}
		}
		if doc == nil || len(doc) > maxDocument {
			return nil // the target reports the fault
		}
		a.doc = doc
		must := a.must
		for _, i := range p.run {
			must = must || p.nodes[i].must
			p.take(a, i)
		}
		a.must = must && a.effect == replace
	}
	return nil
}

// maxDocument is the largest document that a server stores, in bytes.
const maxDocument = 16 << 20

// foldRun returns doc with the deltas in p.run applied, nil if the result is not known.
// The log's deltas fit one another in either mode, since each was logged for the result
// of those before it.
func (p *Planner) foldRun(doc bson.Raw) (bson.Raw, error) {
	if len(p.run) == 0 {
		return nil, nil
	}
	groups := p.groups[:0]
	for _, i := range p.run {
		d, err := p.diff(&p.nodes[i])
		if err != nil {
			return nil, err
		}
		groups = append(groups, group{i, d})
	}
	p.groups = groups
	if firstName(doc) == "_id" {
		groups = p.compose(groups)
	}
	for _, g := range groups {
		var err error
		if doc, err = g.diff.Apply(doc); err != nil {
			return nil, nil //nolint:nilerr // The target's error names the fault.
		}
	}
	return doc, nil
}

// compose reduces neighbours in a list of deltas to one each, as far as possible: first
// those that follow one another simply, then the results.
func (p *Planner) compose(list []group) []group {
	done := list[:0]
	for len(list) > 0 {
		first, n := list[0].first, 0
		for n < len(list) && p.folder.Add(list[n].diff) {
			n++
		}
		list = list[n:]
		done = append(done, group{first, p.folder.Diff(&p.arena)})
	}
	return p.halve(done)
}

// halve composes by halves, because composing takes time in proportion to both operands.
func (p *Planner) halve(list []group) []group {
	if len(list) < 2 {
		return list
	}
	left, right := p.halve(list[:len(list)/2]), p.halve(list[len(list)/2:])
	if d, ok := p.arena.Compose(left[len(left)-1].diff, right[0].diff); ok {
		left[len(left)-1].diff = d
		right = right[1:]
	}
	return append(left, right...)
}

// foldDeltas composes the deltas that start at a node.
func (p *Planner) foldDeltas(at int32) error {
	a := &p.nodes[at]
	p.run = p.run[:0]
	for i := at; i >= 0; i = p.nodes[i].next {
		b := &p.nodes[i]
		if b.effect != delta || !b.exact || b.orMake || !sameBytes(a.id, b.id) {
			break
		}
		p.run = append(p.run, i)
	}
	if len(p.run) < 2 {
		return nil
	}
	groups := p.groups[:0]
	for _, i := range p.run {
		d, err := p.diff(&p.nodes[i])
		if err != nil {
			return err
		}
		groups = append(groups, group{i, d})
	}
	p.groups = groups
	groups = p.compose(groups)
	p.parsed = max(p.parsed, groups[len(groups)-1].first)
	for k, g := range groups {
		p.nodes[g.first].diff, p.nodes[g.first].folded = g.diff, true
		for a := &p.nodes[g.first]; a.next >= 0 && (k+1 == len(groups) || a.next != groups[k+1].first); {
			if b := &p.nodes[a.next]; b.effect != delta || !b.exact || b.orMake || !sameBytes(a.id, b.id) {
				break
			}
			p.take(a, a.next)
		}
	}
	return nil
}

// take moves the operations of the node after a into a.
func (p *Planner) take(a *node, i int32) {
	b := &p.nodes[i]
	p.nextOp[a.last] = b.first
	a.last, a.next = b.last, b.next
	if b.next >= 0 {
		p.nodes[b.next].prev = b.prev
	}
	b.effect = gone
}

// diff returns the delta of a node.
func (p *Planner) diff(n *node) (*update.ObjectDiff, error) {
	if n.diff == nil {
		op := &p.ops[n.first]
		diff, err := update.DeltaOf(op.O)
		if err == nil {
			n.diff, err = p.arena.Parse(diff)
		}
		if err == nil {
			err = n.diff.CheckID(op.ID)
		}
		if err != nil {
			return nil, op.Fault("o", err)
		}
	}
	return n.diff, nil
}

// group is a delta that stands for those of the nodes from first up to the next
// group's.
type group struct {
	first int32
	diff  *update.ObjectDiff
}

func firstName(doc bson.Raw) string {
	it := rawbson.NewIter(doc)
	it.Next()
	return it.Name()
}
