package plan

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

const (
	defaultMaxDocs  = 10_000
	defaultMaxBytes = 8 << 20
	// maxOps limits the operations of one plan: positions in it are packed into bits for
	// sorting.
	maxOps = 1 << 20
	// maxKept limits the memory for statements that is kept from one plan to the next, in
	// bytes.
	maxKept = 1 << 20
	// prefetchOps is how many operations are read ahead of their planning.
	prefetchOps = 64
	// minSpaces is how many slots there are for namespaces, at least.
	minSpaces = 64
)

// Planner plans operations in memory that it reuses. It is for one goroutine.
type Planner struct {
	opt Options

	ops    []Op
	spaces []space
	at     int32 // in spaces, of the last operation
	// bySeed is a hash table of spaces: each slot holds 1 and one of them, or 0.
	bySeed []int32
	// slots is a hash table: each holds 1 and the last node of an _id, or 0.
	slots []int32
	// shift reduces a hash to its upper bits, a place in slots.
	shift uint8
	nodes []node
	// nextOp links the operations of a node.
	nextOp []int32
	stmts  []stmt
	order  []uint64
	// sorted and ends are memory for sorting order: ends are those of the namespaces.
	sorted []uint64
	ends   []int32
	buf    []byte
	// arena has the deltas of the current node, and those composed for nodes up to
	// parsed.
	arena  update.Arena
	folder update.Folder
	parsed int32
	path   []byte
	keys   [2][]byte
	run    []int32
	groups []group
	masses masses
	// rest and u are offsets of the update statement that openUpdate has started last: the
	// end of its _id, 0 where no list can have it, and the type of u.
	rest, u int

	// The result.
	writes  []Write
	docs    []bson.Raw
	opLists [][]int
	opList  []int
	dropped []int

	prefetched byte
}

// space is a namespace of the operations.
type space struct {
	ns oplog.Namespace
	// collection is nil where the target has none.
	collection *catalog.Collection
	seed       uint32 // for the hashes of its documents
	ordered    bool
	// coalesce and guard report what may be done with its operations; list as well, once it
	// is known.
	coalesce, guard bool
	list            listing
	// For a namespace that is Ordered: tail is 1 plus the last node, or 0; round and rank
	// are those of the last statement.
	tail        int32
	round, rank int32
}

// listing says whether statements on a namespace may have a list of _ids.
type listing uint8

const (
	isUnknown listing = iota
	mayList
	mustNotList
)

// isListable reports whether its statements may have a list of _ids. It is looked up for the
// first one only: of thousands of namespaces in a flush, most need it for none.
func (s *space) isListable() bool {
	if s.list == isUnknown {
		s.list = mustNotList
		if isListable(s.collection) {
			s.list = mayList
		}
	}
	return s.list == mayList
}

// hash returns the hash of an operation's document.
func (s *space) hash(op *Op) uint32 {
	if op.Hash != 0 {
		return op.Hash
	}
	return oplog.HashID(s.seed, op.ID)
}

// NewPlanner returns a Planner.
func NewPlanner(opt Options) *Planner {
	p := &Planner{bySeed: make([]int32, minSpaces), masses: masses{seed: maphash.MakeSeed()}}
	p.SetOptions(opt)
	return p
}

// SetOptions changes the options for subsequent plans.
func (p *Planner) SetOptions(opt Options) {
	if opt.MaxDocs <= 0 {
		opt.MaxDocs = defaultMaxDocs
	}
	if opt.MaxBytes <= 0 {
		opt.MaxBytes = defaultMaxBytes
	}
	if opt.MinMass <= 0 {
		opt.MinMass = minMass
	}
	if opt.MaxMass <= 0 {
		opt.MaxMass = maxMass
	}
	if opt.MaxMassBytes <= 0 {
		opt.MaxMassBytes = maxMassBytes
	}
	p.opt = opt
}

// Build plans operations, in the log's order, of one writer. It never reorders operations
// on one _id, nor any of a namespace that is Ordered. The Plan has views into the
// operations and into the Planner: it is valid until the next Build or Release. An error
// is an *oplog.EntryError that names the operation that cannot be planned. An operation
// that a later one makes ineffective is parsed only as far as necessary.
func (p *Planner) Build(ops []Op) (Plan, error) {
	p.reset(ops)
	if len(ops) >= maxOps {
		return Plan{}, fmt.Errorf("plan %d operations: at most %d at once", len(ops), maxOps-1)
	}
	for i := range ops {
		if i%prefetchOps == 0 {
			p.prefetched = prefetch(ops[i:min(i+prefetchOps, len(ops))])
		}
		if err := p.add(int32(i)); err != nil {
			return Plan{}, err
		}
	}
	// Each node is folded and sent before the next one, while its parsed form is still
	// available.
	for i := range p.nodes {
		if i%prefetchOps == 0 {
			p.prefetched += prefetchDocs(p.nodes[i:min(i+prefetchOps, len(p.nodes))])
		}
		if err := p.fold(int32(i)); err != nil {
			return Plan{}, err
		}
		if err := p.send(int32(i)); err != nil {
			return Plan{}, err
		}
		p.nodes[i].diff = nil
		if int32(i) >= p.parsed {
			p.arena.Reset()
		}
	}
	p.assemble()
	slices.Sort(p.dropped)
	return Plan{Writes: p.writes, Dropped: p.dropped}, nil
}

// prefetch prefetches what add reads of the operations. A lane's operations are far apart in the
// replies that they are views into, and no cache has them any more.
func prefetch(ops []Op) (sum byte) {
	for i := range ops {
		op := &ops[i]
		if op.Kind != oplog.KindInsert {
			sum += rawbson.Prefetch(op.O)
		}
		if id := op.ID.Value; len(id) > 0 {
			sum += id[0]
		}
		if op.Collection != nil {
			sum += byte(op.Collection.Type)
		}
	}
	return sum
}

// prefetchDocs prefetches the documents that send reads.
func prefetchDocs(nodes []node) (sum byte) {
	for i := range nodes {
		sum += rawbson.Prefetch(nodes[i].doc)
	}
	return sum
}

// Release drops the references of the last Plan, and a buffer that is larger than usual:
// a caller that waits for more operations must not retain documents that are written. The
// Plan is not valid any more.
func (p *Planner) Release() { p.reset(nil) }

// One plans a single operation, in the form that does the least in one step: it
// identifies the operation at fault in a failed flush, and executes the others. It
// distinguishes the modes as Build does, and does not use guards.
func One(op Op, opt Options) (Write, error) {
	opt.NoGuards, opt.Coalesce = true, false
	p, err := NewPlanner(opt).Build([]Op{op})
	if err != nil {
		return Write{}, err
	}
	return p.Writes[0], nil
}

func (p *Planner) reset(ops []Op) {
	p.ops = ops
	clear(p.bySeed)
	clear(p.spaces)
	p.spaces = p.spaces[:0]
	clear(p.nodes)
	p.nodes = p.nodes[:0]
	size := 16
	p.shift = 28
	for size < 2*len(ops) {
		size *= 2
		p.shift--
	}
	p.slots = slices.Grow(p.slots[:0], size)[:size]
	clear(p.slots)
	p.nextOp = slices.Grow(p.nextOp[:0], len(ops))[:len(ops)]
	clear(p.stmts)
	p.stmts = p.stmts[:0]
	p.order = p.order[:0]
	if p.buf = p.buf[:0]; cap(p.buf) > maxKept {
		p.buf = nil
	}
	p.arena.Reset()
	p.folder.Reset()
	p.parsed = 0
	clear(p.groups[:cap(p.groups)])
	p.masses.reset()
	clear(p.writes)
	p.writes = p.writes[:0]
	clear(p.docs)
	p.docs, p.opLists, p.opList, p.dropped = p.docs[:0], p.opLists[:0], p.opList[:0], p.dropped[:0]
}

// space returns the index of the namespace of op.
func (p *Planner) space(op *Op) int32 {
	seed := op.Seed
	if seed == 0 {
		seed = oplog.HashNamespace(op.Target)
	}
	if len(p.spaces) > 0 && p.spaces[p.at].seed == seed && p.spaces[p.at].ns == op.Target {
		return p.at
	}
	slot := p.spaceSlot(seed, op.Target)
	if *slot > 0 {
		p.at = *slot - 1
		return p.at
	}
	s := space{
		ns: op.Target, seed: seed, collection: op.Collection, rank: -1, coalesce: p.opt.Coalesce, guard: !p.opt.NoGuards,
	}
	if c := op.Collection; c != nil {
		s.ordered = c.Ordered || c.Capped
		s.coalesce = s.coalesce && !c.Capped
		// Outside of a transaction nothing undoes the statements after one whose guard
		// failed.
		s.guard = s.guard && !c.Direct
	}
	p.at = int32(len(p.spaces))
	p.spaces = append(p.spaces, s)
	*slot = p.at + 1
	if 2*len(p.spaces) > len(p.bySeed) {
		p.bySeed = make([]int32, 2*len(p.bySeed))
		for i := range p.spaces {
			*p.spaceSlot(p.spaces[i].seed, p.spaces[i].ns) = int32(i) + 1
		}
	}
	return p.at
}

// spaceSlot returns the slot of a namespace. All strings of one route are one in memory, so that their
// bytes are not read. The lower bits of the seed selected the writer.
func (p *Planner) spaceSlot(seed uint32, ns oplog.Namespace) *int32 {
	mask := uint32(len(p.bySeed) - 1)
	for i := bits.RotateLeft32(seed, 16) & mask; ; i = (i + 1) & mask {
		k := p.bySeed[i]
		if k == 0 || p.spaces[k-1].seed == seed && p.spaces[k-1].ns == ns {
			return &p.bySeed[i]
		}
	}
}

// add adds one operation: as a new node after the last one of its _id, or into that node.
func (p *Planner) add(i int32) error {
	op := &p.ops[i]
	at := p.space(op)
	s := &p.spaces[at]
	n, err := newNode(op)
	if err != nil {
		return err
	}
	n.space, n.first, n.last, n.prev, n.next = at, i, i, -1, -1
	p.nextOp[i] = -1
	// In a namespace that is Ordered a run ends with the first operation on another
	// document, so only its last node matters.
	slot := &s.tail
	if !s.ordered {
		n.hash = s.hash(op)
		slot = p.slot(&n)
	}
	if tail := *slot - 1; tail >= 0 {
		if last := p.absorb(tail, &n); last >= 0 {
			*slot = last + 1
			return nil
		}
		n.prev = tail
		p.nodes[tail].next = int32(len(p.nodes))
	}
	p.nodes = append(p.nodes, n)
	*slot = int32(len(p.nodes))
	return nil
}

// slot returns the slot of the last node of n's _id. The lower bits of the hash selected
// the writer: all of its documents have some of them in common.
func (p *Planner) slot(n *node) *int32 {
	mask := uint32(len(p.slots) - 1)
	for i := n.hash >> p.shift; ; i = (i + 1) & mask {
		k := p.slots[i]
		if k == 0 {
			return &p.slots[i]
		}
		if other := &p.nodes[k-1]; other.hash == n.hash && other.space == n.space && p.sameKey(other.id, n.id) {
			return &p.slots[i]
		}
	}
}

// sameKey reports whether the server may consider two _ids equal.
func (p *Planner) sameKey(a, b bson.RawValue) bool {
	if sameBytes(a, b) {
		return true
	}
	p.keys[0] = oplog.AppendIDKey(p.keys[0][:0], a)
	p.keys[1] = oplog.AppendIDKey(p.keys[1][:0], b)
	return string(p.keys[0]) == string(p.keys[1])
}

func sameBytes(a, b bson.RawValue) bool {
	return a.Type == b.Type && string(a.Value) == string(b.Value)
}
