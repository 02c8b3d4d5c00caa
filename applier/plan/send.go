package plan

import (
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

// stmt is a document or a statement of a command, or an operation to be executed by
// reading and writing.
type stmt struct {
	// doc is the document of an insert. Otherwise the statement is from and to in
	// Planner.buf, or none for rankModify.
	doc      bson.Raw
	from, to int
	space    int32
	// first and last are the operations it stands for, linked by Planner.nextOp.
	first, last int32
	// behind is set if another statement of the same command must be executed before;
	// guarded if the filter requires the absence of fields.
	behind, guarded bool
	// rest and u are, for an update or delete that a list of _ids may replace, the ends of
	// its _id and of its q in Planner.buf; otherwise rest is 0.
	rest, u int
	// sibling is the next statement that differs in the _id alone. docs is how many
	// documents the statement is for, combined is set if it is in the list of another one.
	sibling  int32
	docs     int32
	combined bool
}

// The ranks of statements are their order within a round.
const (
	rankInsert int32 = iota
	// rankUpdate need not match a document, rankMatch must.
	rankUpdate
	rankMatch
	// rankModify and rankMustModify are the same for Modify.
	rankModify
	rankMustModify
	rankDelete
	// ranks is their number.
	ranks
)

// A rank has rankBits bits of what statements are sorted by.
const (
	rankBits = 4
	rankMask = 1<<rankBits - 1
)

func updateRank(must bool) int32 {
	if must {
		return rankMatch
	}
	return rankUpdate
}

// send builds the statements of a node.
func (p *Planner) send(at int32) error {
	n := &p.nodes[at]
	switch n.effect {
	case gone:
	case nothing:
		for i := n.first; i >= 0; i = p.nextOp[i] {
			p.dropped = append(p.dropped, int(i))
		}
		p.skip(n)
	case insert:
		how := whole{insert: isPlain(n.doc)}
		if !how.insert {
			var err error
			if how, err = p.inspect(n); err != nil {
				return err
			}
		}
		if how.insert {
			p.place(n, rankInsert, stmt{doc: n.doc, first: n.first, last: n.last})
			return nil
		}
		p.sendWhole(n, how, true, rankUpdate)
	case upsert, replace:
		how, err := p.inspect(n)
		if err != nil {
			return err
		}
		p.sendWhole(n, how, n.effect == upsert, updateRank(n.must))
	case remove:
		p.sendDelete(n)
	case delta:
		return p.sendDelta(at)
	case modifiers:
		return p.sendModifiers(n)
	}
	return nil
}

// inspect inspects the document that results from a node.
func (p *Planner) inspect(n *node) (whole, error) {
	how, err := inspect(n.doc)
	if err != nil {
		return how, p.ops[n.last].Fault("o", err)
	}
	return how, nil
}

// sendWhole builds the statement that replaces a document.
func (p *Planner) sendWhole(n *node, how whole, orMake bool, rank int32) {
	from := len(p.buf)
	p.buf = appendReplace(p.buf, n.id, n.doc, how, orMake)
	p.place(n, rank, stmt{from: from, to: len(p.buf), first: n.first, last: n.last})
}

// sendDelete builds the statement that deletes a document.
func (p *Planner) sendDelete(n *node) {
	s := stmt{from: len(p.buf), first: n.first, last: n.last}
	var u int
	p.buf, u = appendDelete(p.buf, n.id)
	s.to = len(p.buf)
	if isValue(n.id) {
		s.rest, s.u = u-1, u
	}
	p.place(n, rankDelete, s)
}

// sendDelta builds the statement of a delta. Where a composed delta has none, each of its
// parts is sent.
func (p *Planner) sendDelta(at int32) error {
	n := &p.nodes[at]
	from := len(p.buf)
	guarded, ok, err := p.appendDelta(n)
	switch {
	case err != nil:
		return err
	case ok:
		p.placeUpdate(n, from, guarded)
		return nil
	}
	if n.first == n.last {
		p.modify(n)
		return nil
	}
	first, last := n.first, n.last
	for i := first; i >= 0; {
		next := p.nextOp[i]
		p.nextOp[i] = -1
		n.first, n.last, n.diff = i, i, nil
		if err := p.sendDelta(at); err != nil {
			return err
		}
		i = next
	}
	n.first, n.last = first, last
	return nil
}

// guarantee returns the known properties of the document that a delta meets.
func (n *node) guarantee() update.Guarantee {
	if n.exact && !n.orMake {
		return update.GuaranteePreImage
	}
	return update.GuaranteeNone
}

// appendDelta appends the statement for a delta to p.buf. It returns false, with nothing
// appended, where there is none. Most deltas are never parsed.
func (p *Planner) appendDelta(n *node) (guarded, ok bool, err error) {
	pre := n.guarantee()
	from := len(p.buf)
	u := p.openUpdate(n.id, nil)
	if n.diff == nil {
		op := &p.ops[n.first]
		diff, err := update.DeltaOf(op.O)
		if err != nil {
			return false, false, op.Fault("o", err)
		}
		if p.buf, ok = update.AppendPlain(p.buf, diff, pre); ok {
			return false, p.closeUpdate(u, from, bson.TypeEmbeddedDocument, n.orMake), nil
		}
	}
	d, err := p.diff(n)
	if err != nil {
		return false, false, err
	}
	buf, ok := p.arena.AppendModifiers(p.buf, d, pre)
	if !ok && pre == update.GuaranteePreImage && p.spaces[n.space].guard && !d.Moves() && inserts(d) <= maxGuards {
		p.buf = p.buf[:from]
		u = p.openUpdate(n.id, d)
		buf, ok = p.arena.AppendModifiers(p.buf, d, update.GuaranteeNewFields)
		guarded = ok
		if !ok {
			p.buf = p.buf[:from]
			u = p.openUpdate(n.id, nil)
		}
	}
	if ok {
		p.buf = buf
		return guarded, p.closeUpdate(u, from, bson.TypeEmbeddedDocument, n.orMake), nil
	}
	// Servers before 8.0 do not support binary diffs.
	if p.opt.InternalApply && !d.HasBinary() {
		if p.appendInternal(n, d) && p.closeUpdate(u, from, bson.TypeArray, n.orMake) {
			return false, true, nil
		}
		p.buf = p.buf[:from]
		u = p.openUpdate(n.id, nil)
	}
	c, err := update.CompileDiff(d, update.CompileOptions{Guarantee: pre, NoFieldOperators: p.opt.NoFieldOperators})
	switch {
	case errors.Is(err, update.ErrNotCompilable):
		p.buf = p.buf[:from]
		return false, false, nil
	case err != nil:
		return false, false, p.ops[n.first].Fault("o", err)
	}
	p.buf = append(p.buf, c.U.Value...)
	return false, p.closeUpdate(u, from, c.U.Type, n.orMake), nil
}

// maxGuards limits the fields whose absence a statement requires.
const maxGuards = 32

// inserts counts the fields that a delta inserts, at every depth.
func inserts(d *update.ObjectDiff) int {
	n := len(d.Inserts)
	for i := range d.Subs {
		n += subInserts(&d.Subs[i].SubDiff)
	}
	return n
}

func subInserts(d *update.SubDiff) int {
	if d.Object != nil {
		return inserts(d.Object)
	}
	n := 0
	for i := range d.Array.Mods {
		if m := &d.Array.Mods[i]; m.IsSub() {
			n += subInserts(&m.SubDiff)
		}
	}
	return n
}

// sendModifiers builds the statement of an update in the older form.
func (p *Planner) sendModifiers(n *node) error {
	o := p.ops[n.first].O
	from := len(p.buf)
	u := p.openUpdate(n.id, nil)
	// Paths resolve as at the source if the document is the one they were logged for, and
	// also if there is none: then they create it.
	buf, ok, err := update.AppendClientModifiers(p.buf, o, n.exact)
	if err != nil {
		return p.ops[n.first].Fault("o", err)
	}
	// $_internalApplyOplogUpdate takes deltas only: servers that have it do not apply this form any more.
	if p.buf = buf; ok && p.closeUpdate(u, from, bson.TypeEmbeddedDocument, n.orMake) {
		p.placeUpdate(n, from, false)
		return nil
	}
	p.buf = p.buf[:from]
	p.modify(n)
	return nil
}

// placeUpdate places the update statement that openUpdate has started at from.
func (p *Planner) placeUpdate(n *node, from int, guarded bool) {
	s := stmt{from: from, to: len(p.buf), first: n.first, last: n.last, guarded: guarded}
	if !n.orMake {
		s.rest, s.u = p.rest, p.u
	}
	p.place(n, updateRank(n.must), s)
}

func (p *Planner) modify(n *node) {
	p.place(n, modifyRank(n.must), stmt{first: n.first, last: n.last})
}

func modifyRank(must bool) int32 {
	if must {
		return rankMustModify
	}
	return rankModify
}

// isInsertOnly reports whether a target before 5.0 may refuse an update statement for a name with a dollar.
func (p *Planner) isInsertOnly(n *node, s *stmt) bool {
	if p.opt.NoPipelines {
		if u, _ := rawbson.Lookup(p.buf[s.from:s.to], "u"); u.Type == bson.TypeArray {
			return true
		}
	}
	if n.doc != nil {
		return update.IsInsertOnly(n.doc)
	}
	for i := s.first; i >= 0; i = p.nextOp[i] {
		if update.WritesInsertOnly(p.ops[i].O) {
			return true
		}
	}
	return false
}

// place determines the round of a statement of n: after the last one on the same _id, or
// in its namespace if that is Ordered.
func (p *Planner) place(n *node, rank int32, s stmt) {
	if (p.opt.NoDollars || p.opt.NoPipelines) && (rank == rankUpdate || rank == rankMatch) && p.isInsertOnly(n, &s) {
		p.buf = p.buf[:s.from]
		rank, s = modifyRank(n.must), stmt{first: s.first, last: s.last}
	}
	s.space = n.space
	space := &p.spaces[n.space]
	round, last := n.round, n.rank
	if space.ordered {
		round, last = space.round, space.rank
		s.behind = true
		if last >= 0 && last != rank {
			round++
		}
		space.round, space.rank = round, rank
	} else {
		if last == noRank && n.prev >= 0 {
			round, last = p.nodes[n.prev].round, p.nodes[n.prev].rank
		}
		switch {
		case last == noRank:
		case rank < last-1:
			round++
		case rank == last-1:
			s.behind = true
		}
		n.round, n.rank = round, rank+1
	}
	s.docs = 1
	command := uint64(s.space)<<24 | uint64(round)<<rankBits | uint64(rank)
	p.order = append(p.order, command<<20|uint64(len(p.stmts)))
	p.stmts = append(p.stmts, s)
	if s.rest > 0 && !s.behind && space.isListable() {
		p.gather(int32(len(p.stmts)-1), command)
	}
}

// noRank is the rank of a node without statements so far; others have their rank plus
// one.
const noRank = 0

// skip copies to n the round and rank of the nodes before it.
func (p *Planner) skip(n *node) {
	if n.prev >= 0 {
		n.round, n.rank = p.nodes[n.prev].round, p.nodes[n.prev].rank
	}
}

// sort sorts the statements by their commands. They are in the order in which they were
// placed, and most namespaces have them in order already: they are only to be taken apart.
func (p *Planner) sort() {
	if len(p.spaces) < 2 {
		slices.Sort(p.order)
		return
	}
	p.ends = slices.Grow(p.ends[:0], len(p.spaces))[:len(p.spaces)]
	clear(p.ends)
	for i := range p.stmts {
		p.ends[p.stmts[i].space]++
	}
	n := int32(0)
	for i, of := range p.ends {
		p.ends[i], n = n, n+of // where it begins, for now
	}
	p.sorted = slices.Grow(p.sorted[:0], len(p.order))[:len(p.order)]
	for i, key := range p.order {
		end := &p.ends[p.stmts[i].space]
		p.sorted[*end] = key
		*end++
	}
	p.order, p.sorted = p.sorted, p.order
	from := int32(0)
	for _, end := range p.ends {
		slices.Sort(p.order[from:end])
		from = end
	}
}

// assemble groups the statements into commands.
func (p *Planner) assemble() {
	p.combine()
	p.sort()
	p.docs = slices.Grow(p.docs, len(p.stmts))
	p.opLists = slices.Grow(p.opLists, len(p.stmts))
	p.opList = slices.Grow(p.opList, len(p.ops))
	last, bytes := ^uint64(0), 0
	for _, key := range p.order {
		s := &p.stmts[key&(1<<20-1)]
		if s.combined {
			continue
		}
		rank := int32(key >> 20 & rankMask)
		doc := s.doc
		if doc == nil {
			doc = p.buf[s.from:s.to:s.to]
		}
		alone := rank == rankModify || rank == rankMustModify
		if n := len(p.writes); n == 0 || alone || key>>20 != last || len(p.writes[n-1].Docs) >= p.opt.MaxDocs || bytes+len(doc) > p.opt.MaxBytes {
			bytes = 0
			p.writes = append(p.writes, Write{
				Kind: rankKinds[rank], NS: p.spaces[s.space].ns, Ordered: p.spaces[s.space].ordered,
				MustMatch: rank == rankMatch || rank == rankMustModify,
				Docs:      p.docs[len(p.docs):], Ops: p.opLists[len(p.opLists):],
			})
		}
		last = key >> 20
		bytes += len(doc)
		start := len(p.opList)
		for i := s.first; i >= 0; i = p.nextOp[i] {
			p.opList = append(p.opList, int(i))
		}
		w := &p.writes[len(p.writes)-1]
		p.opLists = append(p.opLists, p.opList[start:len(p.opList):len(p.opList)])
		w.Ops = w.Ops[:len(w.Ops)+1]
		w.Documents += int(s.docs)
		if !alone {
			p.docs = append(p.docs, doc)
			w.Docs = w.Docs[:len(w.Docs)+1]
		}
		w.Ordered = w.Ordered || s.behind
		w.Guarded = w.Guarded || s.guarded
	}
}

var rankKinds = [ranks]Kind{
	rankInsert: Insert, rankUpdate: Update, rankMatch: Update, rankModify: Modify, rankMustModify: Modify, rankDelete: Delete,
}
