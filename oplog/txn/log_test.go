package txn

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// The tests write logs in a small notation.
//
// An operation is a letter and a number, "i1", "u2", "d3", "n4", or "c5" for the
// creation of a collection; when read back, an update that inserts a missing
// document is "u2+".

// null is the prev of a chain's first entry, none that of an entry without one.
const (
	null = 0
	none = -1
)

// line is one entry of a test's log.
type line struct {
	at      int // the timestamp's increment
	term    int // 0 is 1
	prev    int
	prevT   int  // its term, 0 is that of optime
	session byte // 0 for none
	number  int64
	multi   int32  // multiOpType
	op      string // of an entry that is not a command, or:
	cmd     bson.Raw
	noTxn   bool // leave out txnNumber
}

func optime(n int) oplog.OpTime {
	if n == null {
		return oplog.OpTime{Term: oplog.UninitializedTerm}
	}
	return oplog.NewOpTime(1000, uint32(n), 1)
}

func (l line) optime() oplog.OpTime {
	o := optime(l.at)
	if l.term != 0 {
		o.Term = int64(l.term)
	}
	return o
}

func (l line) raw() bson.Raw {
	b := bsoncore.NewDocumentBuilder()
	if l.session != 0 {
		b.AppendDocument("lsid", lsid(l.session))
		if !l.noTxn {
			b.AppendInt64("txnNumber", l.number)
		}
	}
	doc := b.AppendTimestamp("ts", 1000, uint32(l.at)).AppendInt64("t", l.optime().Term).
		AppendInt64("v", 2).AppendDateTime("wall", wallOf(l.at))
	if l.prev != none {
		p := optime(l.prev)
		if l.prevT != 0 {
			p.Term = int64(l.prevT)
		}
		doc.AppendDocument("prevOpTime", bsoncore.NewDocumentBuilder().
			AppendTimestamp("ts", p.TS.T, p.TS.I).AppendInt64("t", p.Term).Build())
	}
	if l.multi != 0 {
		doc.AppendInt32("multiOpType", l.multi)
	}
	if l.cmd == nil {
		return bson.Raw(appendFields(doc.Build(), element(l.op)))
	}
	return bson.Raw(doc.AppendString("op", "c").AppendString("ns", "admin.$cmd").
		AppendDocument("o", bsoncore.Document(l.cmd)).Build())
}

// appendFields appends the fields of one document to another.
func appendFields(to, from []byte) []byte {
	to = append(to[:len(to)-1], from[4:]...)
	return bsoncore.UpdateLength(to, 0, int32(len(to)))
}

func wallOf(at int) int64 { return 1_700_000_000_000 + int64(at) }

func lsid(session byte) bsoncore.Document {
	id := bytes.Repeat([]byte{session}, 16)
	return bsoncore.NewDocumentBuilder().AppendBinary("id", bson.TypeBinaryUUID, id).Build()
}

func (l line) entry(t testing.TB) oplog.Entry {
	t.Helper()
	e, err := oplog.ParseEntry(l.raw())
	if err != nil {
		t.Fatalf("entry %d of the test: %v", l.at, err)
	}
	return e
}

// element returns an operation as an element of an applyOps.
func element(op string) bsoncore.Document {
	id, err := strconv.Atoi(op[1:])
	if err != nil {
		panic(op)
	}
	key := bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).Build()
	doc := bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).
		AppendString("pad", strings.Repeat("x", id%50)).Build()
	b := bsoncore.NewDocumentBuilder().AppendString("op", op[:1])
	switch op[0] {
	case 'i':
		b.AppendString("ns", "db.c").AppendDocument("o", doc)
	case 'u':
		b.AppendString("ns", "db.c").AppendDocument("o", doc).AppendDocument("o2", key)
	case 'd':
		b.AppendString("ns", "db.c").AppendDocument("o", key)
	case 'n':
		b.AppendString("ns", "").AppendDocument("o", doc)
	case 'c':
		b.AppendString("ns", "db.$cmd").AppendDocument("o", bsoncore.NewDocumentBuilder().
			AppendString("create", fmt.Sprint("c", id)).Build())
	default:
		panic(op)
	}
	return b.Build()
}

// read is the inverse of element.
func read(t testing.TB, op oplog.Op) string {
	t.Helper()
	letter := map[oplog.Kind]string{
		oplog.KindInsert: "i", oplog.KindUpdate: "u", oplog.KindDelete: "d", oplog.KindNoop: "n", oplog.KindCommand: "c",
	}[op.Kind]
	var id string
	if op.Kind == oplog.KindCommand {
		c := must.Get(op.Create())(t)
		id = c.NS.Collection()[1:]
	} else {
		id = strconv.Itoa(int(op.O.Lookup("_id").Int32()))
	}
	want, _ := bson.Raw(element(letter + id)).LookupErr("o")
	if !bytes.Equal(want.Value, op.O) {
		t.Fatalf("operation %s has o %s, want %s", letter+id, op.O, want)
	}
	if op.Upsert {
		return letter + id + "+"
	}
	return letter + id
}

// list returns an applyOps command. Each operation is in element's notation; more
// appends further fields.
func list(ops []string, more ...func(*bsoncore.DocumentBuilder)) bson.Raw {
	var elements []bsoncore.Document
	for _, op := range ops {
		elements = append(elements, element(op))
	}
	return listOf(elements, more...)
}

func listOf(elements []bsoncore.Document, more ...func(*bsoncore.DocumentBuilder)) bson.Raw {
	array := bsoncore.NewArrayBuilder()
	for _, e := range elements {
		array.AppendDocument(e)
	}
	b := bsoncore.NewDocumentBuilder().AppendArray("applyOps", array.Build())
	for _, f := range more {
		f(b)
	}
	return bson.Raw(b.Build())
}

// nested returns an applyOps as an operation of another one.
func nested(o bson.Raw) bsoncore.Document {
	return bsoncore.NewDocumentBuilder().AppendString("op", "c").AppendString("ns", "admin.$cmd").
		AppendDocument("o", bsoncore.Document(o)).Build()
}

func partial(b *bsoncore.DocumentBuilder) { b.AppendBoolean("partialTxn", true) }
func prepare(b *bsoncore.DocumentBuilder) { b.AppendBoolean("prepare", true) }

func count(n int64) func(*bsoncore.DocumentBuilder) {
	return func(b *bsoncore.DocumentBuilder) { b.AppendInt64("count", n) }
}

func alwaysUpsert(v bool) func(*bsoncore.DocumentBuilder) {
	return func(b *bsoncore.DocumentBuilder) { b.AppendBoolean("alwaysUpsert", v) }
}

func ops(s string) []string { return strings.Fields(s) }

func commitAt(n int) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("commitTransaction", 1).
		AppendTimestamp("commitTimestamp", 1000, uint32(n)).Build())
}

var abortCmd = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("abortTransaction", 1).Build())

// part returns an entry of transaction number of a session.
func part(at, prev int, session byte, number int64, cmd bson.Raw) line {
	return line{at: at, prev: prev, session: session, number: number, cmd: cmd}
}

// tell formats a result in one line: "pass", "partial", "past", "aborted 2 parts", or
// "committed transaction i1 u2", followed by "dropped 1".
func tell(t testing.TB, r Result) string {
	t.Helper()
	s := r.Outcome.String()
	switch {
	case r.Txn != nil:
		s = strings.Join(append([]string{s, r.Txn.Kind.String()}, opsOf(t, r.Txn)...), " ")
	case r.Outcome == Aborted:
		s += fmt.Sprintf(" %d parts", r.Parts)
	}
	if r.Dropped != 0 {
		s += fmt.Sprintf(", dropped %d", r.Dropped)
	}
	return s
}

// opsOf reads a transaction twice, checks the fields that its operations share with
// it, and returns them.
func opsOf(t testing.TB, txn *Transaction) []string {
	t.Helper()
	var first []string
	for range 2 {
		var all []string
		individually := false
		for op, err := range txn.Ops() {
			if err != nil {
				t.Fatal(err)
			}
			if op.OpTime != txn.OpTime {
				t.Fatalf("an operation at %s in the transaction of %s", op.OpTime, txn.OpTime)
			}
			individually = individually || op.Kind == oplog.KindCommand || slices.Contains([]oplog.Namespace{"db.system.views", "admin.system.users", "admin.system.roles"}, op.NS)
			all = append(all, read(t, op))
		}
		if len(all) != txn.Count || individually != txn.MustBeProcessedIndividually {
			t.Fatalf("transaction %s says %d operations, individually: %v; it has %d, %v",
				txn.OpTime, txn.Count, txn.MustBeProcessedIndividually, len(all), individually)
		}
		if first != nil && strings.Join(first, " ") != strings.Join(all, " ") {
			t.Fatalf("transaction %s reads %v, then %v", txn.OpTime, first, all)
		}
		first = all
	}
	return first
}

func newAssembler(t testing.TB, cfg Config) *Assembler {
	t.Helper()
	if cfg.SpillDir == "" {
		cfg.SpillDir = t.TempDir()
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if n := a.Bytes(); n != 0 {
			t.Errorf("%d bytes are still held after Close", n)
		}
	})
	return a
}

// add adds an entry whose bytes are overwritten afterwards, which reveals any view
// of a part that is kept.
func add(t testing.TB, a *Assembler, l line) (Result, error) {
	t.Helper()
	e := l.entry(t)
	r, err := a.Add(&e)
	if r.Txn == nil {
		for i := range e.Raw {
			e.Raw[i] = 0xee
		}
	}
	return r, err
}

// play adds a log to a new Assembler and formats each result. Transactions are
// closed.
func play(t testing.TB, cfg Config, log []line) []string {
	t.Helper()
	a := newAssembler(t, cfg)
	var told []string
	for _, l := range log {
		r, err := add(t, a, l)
		if err != nil {
			t.Fatalf("entry %d: %v", l.at, err)
		}
		told = append(told, tell(t, r))
		if r.Txn != nil {
			must.Succeed(t, r.Txn.Close())
		}
	}
	return told
}
