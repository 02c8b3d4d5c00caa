package workload

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// Generator makes a workload's operations, the same each time. It is for one
// goroutine.
type Generator struct {
	w    Workload
	file *recording // in place of everything below
	mem  arena
	rand *rand.Rand
	*maker
	collections []Collection // without documents
	idBytes     int
	textBytes   int
	mix, deltas weights
	docs        documents
	// plain: the form that a client sends is not needed.
	plain bool

	done    int    // operations returned
	next    uint32 // the number of the next document to be inserted
	seq     uint64 // counts updates, so that each writes something new
	txn     int    // the number of the latest transaction
	txnLeft int    // operations that the open transaction still has
	// alike has the delta that the next alikeLeft updates have.
	alike     Op
	alikeLeft int
}

// weights are sums of weights, so that a random number below the last one chooses.
type weights []float64

func newWeights(weight ...float64) weights {
	for i := range weight {
		if i > 0 {
			weight[i] += weight[i-1]
		}
	}
	return weight
}

func (w weights) choose(r *rand.Rand) int {
	x := r.Float64() * w[len(w)-1]
	for i, sum := range w {
		if x < sum {
			return i
		}
	}
	return len(w) - 1
}

// New checks a workload and gets ready to make it.
func New(w Workload) (*Generator, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	w = w.withDefaults()
	if w.File != "" {
		file, err := openRecording(w.File, w.Ops)
		if err != nil {
			return nil, err
		}
		return &Generator{w: w, file: file}, nil
	}
	g := &Generator{
		w: w, rand: rand.New(rand.NewPCG(w.Seed, 1)), maker: newMaker(w.Seed, newLayout(w)), next: uint32(w.Documents),
		mix:    newWeights(w.Mix.Insert, w.Mix.Update, w.Mix.Delete, w.Mix.Replace),
		deltas: newWeights(w.Deltas.Set, w.Deltas.Many, w.Deltas.Nested, w.Deltas.Array, w.Deltas.Unset, w.Deltas.Dotted, w.Deltas.Text),
	}
	g.idBytes = len(appendID(nil, w.Seed, 0)) - len("\x00_id\x00")
	// Long enough to begin with a number of its own.
	g.textBytes = max(stampDigits, w.Size-g.least)
	g.docs = newDocuments(w, g.elements)
	for i := range w.Namespaces {
		g.collections = append(g.collections, g.newCollection("c"+strconv.Itoa(i), uint64(i)))
	}
	return g, nil
}

func (g *Generator) newCollection(name string, number uint64) Collection {
	r := rand.New(rand.NewPCG(g.seed, 1<<32+number))
	c := Collection{NS: oplog.NewNamespace(Database, name)}
	for i := range c.UUID {
		c.UUID[i] = byte(r.Uint32())
	}
	c.UUID[6], c.UUID[8] = c.UUID[6]&0x0f|0x40, c.UUID[8]&0x3f|0x80
	c.Indexes = append(c.Indexes, indexSpec("_id", "_id_"))
	for _, key := range g.keys()[:g.w.Indexes] {
		c.Indexes = append(c.Indexes, indexSpec(key, key+"_1"))
	}
	return c
}

// indexSpec is an index as listIndexes shows it.
func indexSpec(key, name string) bson.Raw {
	on := bsoncore.NewDocumentBuilder().AppendInt32(key, 1).Build()
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("v", 2).AppendDocument("key", on).AppendString("name", name).Build())
}

// Collections returns the collections that must exist before the first operation. Each call
// makes a new result. For a recording it is the collections that it writes to
// without making them, empty and with no index but that on _id.
func (g *Generator) Collections() ([]Collection, error) {
	if g.file != nil {
		return collectionsOf(g.w.File, g.w.Ops)
	}
	all := make([]Collection, len(g.collections))
	copy(all, g.collections)
	var mem arena
	for i := range g.w.Documents {
		c := &all[i%len(all)]
		if c.Documents == nil {
			c.Documents = make([]bson.Raw, 0, g.w.Documents/len(all)+1)
		}
		c.Documents = append(c.Documents, g.document(&mem, uint32(i), 0))
	}
	return all, nil
}

// Next returns the next operation, false after the last one. The data that it
// points to does not change.
func (g *Generator) Next() (Op, bool, error) {
	if g.file != nil {
		return g.file.next()
	}
	if g.done == g.w.Ops {
		return Op{}, false, nil
	}
	g.mem.reset()
	op, err := g.generate()
	if err != nil {
		return Op{}, false, fmt.Errorf("workload %q: make operation %d: %w", g.w.Name, g.done+1, err)
	}
	g.done++
	if op.Txn > 0 {
		op.TxnEnd = g.txnLeft == 0 || g.done == g.w.Ops
	}
	return op, true, nil
}

func (g *Generator) generate() (Op, error) {
	if g.w.Phases {
		return g.phase(), nil
	}
	if g.txnLeft == 0 && g.w.TxnShare > 0 {
		g.startTransaction()
	}
	op, err := g.mixed()
	if g.txnLeft > 0 {
		g.txnLeft--
		op.Txn = g.txn
	}
	return op, err
}

// startTransaction starts a transaction, if one is due. It has more than one operation:
// fewer have to be begun.
func (g *Generator) startTransaction() {
	share, ops := g.w.TxnShare, float64(g.w.TxnOps)
	if g.rand.Float64() < share/(ops*(1-share)+share) {
		g.txn++
		g.txnLeft = g.w.TxnOps
	}
}

// phase is an operation of a workload in phases.
func (g *Generator) phase() Op {
	n := phaseInserts(g.w.Ops)
	switch {
	case g.done < n:
		return g.insert()
	case g.done < 2*n:
		s := slot{number: g.docs.choose(), elements: uint8(g.elements)}
		return g.update(&s)
	default:
		return g.deleteNumber(g.docs.choose())
	}
}

func phaseInserts(ops int) int { return (2*ops + 4) / 5 }

// mixed is an operation of a mix.
func (g *Generator) mixed() (Op, error) {
	kind := 0
	if len(g.mix) > 0 {
		kind = g.mix.choose(g.rand)
	}
	if kind > 0 && g.w.Mix.Insert > 0 && g.docs.empty() {
		kind = 0 // all were deleted
	}
	switch kind {
	case 0:
		op := g.insert()
		g.docs.inserted(g.next - 1)
		return op, nil
	case 2:
		number, err := g.docs.remove(g.rand)
		return g.deleteNumber(number), err
	}
	s, err := g.docs.pick(g.rand)
	if err != nil {
		return Op{}, err
	}
	if kind == 1 {
		return g.update(s), nil
	}
	return g.replace(s), nil
}

func (g *Generator) insert() Op {
	doc := g.document(&g.mem, g.next, 0)
	op := g.op(oplog.KindInsert, g.next, doc)
	op.Doc = doc
	g.next++
	return op
}

func (g *Generator) replace(s *slot) Op {
	g.seq++
	doc := g.document(&g.mem, s.number, 1<<40+g.seq)
	op := g.op(oplog.KindUpdate, s.number, doc)
	op.Doc = doc
	s.elements, s.swapped = uint8(g.elements), false
	return op
}

func (g *Generator) deleteNumber(number uint32) Op {
	return g.op(oplog.KindDelete, number, g.key(number))
}

// key makes the document that names a document.
func (g *Generator) key(number uint32) bson.Raw {
	start, key := bsoncore.AppendDocumentStart(g.mem.begin(idSpace))
	return g.mem.end(endDocument(appendID(key, g.seed, number), start))
}

// op is an operation on a document, whose _id is the first field of first.
func (g *Generator) op(kind oplog.Kind, number uint32, first bson.Raw) Op {
	const head = 4 + len("\x00_id\x00") // the document's length, the element's type and name
	c := &g.collections[int(number)%len(g.collections)]
	return Op{
		Kind: kind, NS: c.NS, UUID: c.UUID,
		ID: bson.RawValue{Type: bson.Type(first[4]), Value: first[head : head+g.idBytes : head+g.idBytes]},
	}
}
