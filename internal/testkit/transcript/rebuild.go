package transcript

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// rebuilder reconstructs commands that were too large for the transcript. They
// are inserts. The documents are those that the log has between the command
// before and this one; or, if there are none, the next ones of the transaction
// that the next complete command is part of.
type rebuilder struct {
	r *recording
	// entry is the first entry that no command before has written.
	entry int
	// txns are transactions of the log by session and number.
	txns map[txnKey]*txnOps
}

type txnKey struct {
	session string // the bytes of lsid.id
	number  int64
}

// txnOps are the operations of a transaction, in order.
type txnOps struct {
	ops []oplog.Op
	// next is the first operation that no command before has made; begun says that
	// there was a command before.
	next  int
	begun bool
}

var errRebuild = errors.New("the log does not say what it inserted")

func (r *recording) rebuild() error {
	b := rebuilder{r: r, txns: map[txnKey]*txnOps{}}
	if err := b.readTxns(); err != nil {
		return err
	}
	for i := range r.commands {
		c := &r.commands[i]
		if _, omitted := rawbson.Lookup(c.Command.Command, "$omitted"); omitted {
			if err := b.rebuild(i); err != nil {
				return fmt.Errorf("transcript: put line %d together again: %w", c.line, err)
			}
		}
		b.pass(c)
	}
	return nil
}

func (b *rebuilder) readTxns() error {
	for _, e := range b.r.entries {
		if e.Command != oplog.CommandApplyOps || !e.HasSession() {
			continue
		}
		s := e.Session()
		key := txnKey{sessionOf(s.LSID), s.TxnNumber}
		t := b.txns[key]
		if t == nil {
			t = &txnOps{}
			b.txns[key] = t
		}
		a, err := e.ApplyOps()
		if err != nil {
			return fmt.Errorf("transcript: read a transaction: %w", err)
		}
		for op, err := range a.Ops() {
			if err != nil {
				return fmt.Errorf("transcript: read a transaction: %w", err)
			}
			t.ops = append(t.ops, op)
		}
	}
	return nil
}

func sessionOf(lsid bson.Raw) string {
	id, _ := rawbson.Lookup(lsid, "id")
	return string(id.Value)
}

// txnOf returns the transaction that a command is part of, nil if it is none.
func (b *rebuilder) txnOf(cmd bson.Raw) (txnKey, *txnOps) {
	auto, ok := rawbson.Lookup(cmd, "autocommit")
	if is, _ := auto.Bool(); !ok || is {
		return txnKey{}, nil
	}
	lsid, _ := rawbson.Lookup(cmd, "lsid")
	doc, _ := lsid.Document()
	number, _ := rawbson.Lookup(cmd, "txnNumber")
	key := txnKey{session: sessionOf(doc)}
	key.number, _ = number.Int64()
	return key, b.txns[key]
}

// pass steps over what a command wrote.
func (b *rebuilder) pass(c *command) {
	for b.entry < len(b.r.entries) && oplog.CompareTimestamps(b.r.entries[b.entry].OpTime.TS, c.time) <= 0 {
		b.entry++
	}
	if _, t := b.txnOf(c.Command.Command); t != nil {
		t.next += written(c.Reply)
		t.begun = true
	}
}

// written returns how many operations a statement logged, by its reply.
func written(reply bson.Raw) int {
	number := func(name string) int {
		e, _ := rawbson.Lookup(reply, name)
		n, _ := e.Int64()
		return int(min(max(n, 0), math.MaxInt32))
	}
	if _, isUpdate := rawbson.Lookup(reply, "nModified"); !isUpdate {
		return number("n")
	}
	n := number("nModified")
	e, _ := rawbson.Lookup(reply, "upserted")
	array, _ := e.Array()
	for it := rawbson.NewIter(array); it.Next(); {
		n++
	}
	return n
}

func (b *rebuilder) rebuild(i int) error {
	c := &b.r.commands[i]
	want := written(c.Reply)
	insert := insertion{db: c.DB}
	for _, e := range b.r.entries[b.entry:] {
		if oplog.CompareTimestamps(e.OpTime.TS, c.time) > 0 {
			break
		}
		if e.Kind != oplog.KindInsert || e.NS.DB() != c.DB {
			continue // the collection may have been made for it
		}
		insert.add(&e.Op)
		if e.HasSession() {
			s := e.Session()
			insert.session, insert.number = sessionOf(s.LSID), s.TxnNumber
		}
	}
	if len(insert.docs) == 0 {
		key, t := b.nextTxn(i + 1)
		if t == nil || t.next+want > len(t.ops) {
			return errRebuild
		}
		for n := range want {
			op := &t.ops[t.next+n]
			if op.Kind != oplog.KindInsert {
				return errRebuild
			}
			insert.add(op)
		}
		insert.session, insert.number = key.session, key.number
		insert.inTxn, insert.starts = true, !t.begun
	}
	if want == 0 || len(insert.docs) != want || insert.mixed {
		return errRebuild
	}
	c.Command.Command = insert.command()
	return nil
}

// nextTxn returns the transaction of the next command that is complete.
func (b *rebuilder) nextTxn(i int) (txnKey, *txnOps) {
	for ; i < len(b.r.commands); i++ {
		cmd := b.r.commands[i].Command.Command
		if _, omitted := rawbson.Lookup(cmd, "$omitted"); !omitted {
			return b.txnOf(cmd)
		}
	}
	return txnKey{}, nil
}

// insertion is an insert command to be made.
type insertion struct {
	db      string
	ns      oplog.Namespace
	docs    []bson.Raw
	session string
	number  int64
	inTxn   bool
	starts  bool
	mixed   bool
}

func (i *insertion) add(op *oplog.Op) {
	i.mixed = i.mixed || i.ns != "" && i.ns != op.NS
	i.ns = op.NS
	i.docs = append(i.docs, op.O)
}

// command returns the command as a driver sends it.
func (i *insertion) command() bson.Raw {
	at, b := bsoncore.AppendDocumentStart(nil)
	b = bsoncore.AppendStringElement(b, "insert", i.ns.Collection())
	b = bsoncore.AppendBooleanElement(b, "ordered", true)
	if i.session != "" {
		var id int32
		id, b = bsoncore.AppendDocumentElementStart(b, "lsid")
		b = bsoncore.AppendValueElement(b, "id", bsoncore.Value{Type: bsoncore.TypeBinary, Data: []byte(i.session)})
		b, _ = bsoncore.AppendDocumentEnd(b, id)
		b = bsoncore.AppendInt64Element(b, "txnNumber", i.number)
	}
	if i.starts {
		b = bsoncore.AppendBooleanElement(b, "startTransaction", true)
	}
	if i.inTxn {
		b = bsoncore.AppendBooleanElement(b, "autocommit", false)
	}
	b = bsoncore.AppendStringElement(b, "$db", i.db)
	array, b := bsoncore.AppendArrayElementStart(b, "documents")
	for n, doc := range i.docs {
		b = bsoncore.AppendDocumentElement(b, strconv.Itoa(n), doc)
	}
	b, _ = bsoncore.AppendArrayEnd(b, array)
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return b
}
