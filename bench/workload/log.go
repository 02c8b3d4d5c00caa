package workload

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// perSecond is how many entries have one second.
	perSecond = 1_000
	// maxEntry is the largest entry that a server writes, in bytes.
	maxEntry = 16 << 20
	// entrySpace is room for what an entry has in addition to names and payload, in bytes.
	entrySpace = 256
	sessions   = 8
)

// Log makes the entries of a workload.
type Log struct {
	g     *Generator
	shift *shifted // of a recording, in place of everything below but last
	mem   arena
	first oplog.OpTime
	last  oplog.OpTime
	n     int // entries so far
	lsids [sessions]bson.Raw
	txns  int64
}

// NewLog makes the log of a workload whose first entry comes after first, as a
// server of term first.Term would have written it: 1,000 entries have one second, so
// that the entries' wall clocks ascend. The entries of a recording keep their
// distances in seconds and in terms instead.
func NewLog(w Workload, first oplog.OpTime) (*Log, error) {
	g, err := New(w)
	if err != nil {
		return nil, err
	}
	l := &Log{g: g, first: first, last: first}
	if g.file != nil {
		l.shift, err = newShifted(w.File, g.w.Ops, first)
		return l, err
	}
	g.plain, g.mem.reused = true, true
	r := rand.New(rand.NewPCG(w.Seed, 4))
	for i := range l.lsids {
		var id, uid [32]byte
		for j := range id {
			id[j], uid[j] = byte(r.Uint32()), byte(r.Uint32())
		}
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
		l.lsids[i] = bson.Raw(bsoncore.NewDocumentBuilder().AppendBinary("id", bson.TypeBinaryUUID, id[:16]).
			AppendBinary("uid", bson.TypeBinaryGeneric, uid[:]).Build())
	}
	return l, nil
}

// Last is the optime of the newest entry that Next has returned.
func (l *Log) Last() oplog.OpTime { return l.last }

// Next returns the next entry and its number of operations, false after the last
// one. A transaction is one applyOps entry.
func (l *Log) Next() (entry bson.Raw, ops int, ok bool, err error) {
	if l.shift != nil {
		entry, ops, ok, err = l.shift.next()
		l.last = l.shift.last
		return entry, ops, ok, err
	}
	op, ok, err := l.g.Next()
	if err != nil || !ok {
		return nil, 0, false, err
	}
	at := oplog.NewOpTime(l.first.TS.T+1+uint32(l.n/perSecond), uint32(l.n%perSecond)+1, l.first.Term)
	var dst []byte
	if op.Txn == 0 {
		dst = l.mem.begin(entrySpace + len(op.NS) + len(op.ID.Value) + payloadBytes(&op))
		ops, dst = 1, l.appendPlain(dst, &op, at)
	} else {
		dst, ops, err = l.appendTransaction(op, at)
		if err != nil {
			return nil, 0, false, err
		}
	}
	l.n++
	l.last = at
	return l.mem.end(dst), ops, true, nil
}

func payloadBytes(op *Op) int { return len(op.Doc) + len(op.Diff) }

func (l *Log) appendPlain(dst []byte, op *Op, at oplog.OpTime) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = l.appendOp(dst, op)
	return endDocument(l.appendPlace(dst, at), start)
}

// appendTransaction takes the operations up to the transaction's last one.
func (l *Log) appendTransaction(op Op, at oplog.OpTime) (entry []byte, ops int, err error) {
	session := int(l.txns % sessions)
	l.txns++
	begin := l.mem.begin(l.g.w.TxnOps * (entrySpace + l.g.w.Size))
	start, dst := bsoncore.AppendDocumentStart(begin)
	dst = bsoncore.AppendDocumentElement(dst, "lsid", l.lsids[session])
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", 1+l.txns/sessions)
	dst = bsoncore.AppendStringElement(dst, "op", "c")
	dst = bsoncore.AppendStringElement(dst, "ns", "admin.$cmd")
	o, dst := bsoncore.AppendDocumentElementStart(dst, "o")
	array, dst := bsoncore.AppendArrayElementStart(dst, "applyOps")
	for {
		var key [20]byte
		dst = append(append(append(dst, byte(bson.TypeEmbeddedDocument)), strconv.AppendInt(key[:0], int64(ops), 10)...), 0)
		var element int32
		element, dst = bsoncore.AppendDocumentStart(dst)
		dst = endDocument(l.appendOp(dst, &op), element)
		ops++
		if op.TxnEnd {
			break
		}
		var ok bool
		if op, ok, err = l.g.Next(); err != nil || !ok {
			return nil, 0, fmt.Errorf("make transaction %d: end after %d operations: %w", l.txns, ops, err)
		}
	}
	dst = endDocument(endDocument(dst, array), o)
	dst = l.appendPlace(dst, at)
	prev, dst := bsoncore.AppendDocumentElementStart(dst, "prevOpTime")
	dst = bsoncore.AppendTimestampElement(dst, "ts", 0, 0)
	dst = bsoncore.AppendInt64Element(dst, "t", oplog.UninitializedTerm)
	dst = endDocument(endDocument(dst, prev), start)
	if len(dst) > maxEntry {
		return nil, 0, fmt.Errorf("make transaction %d: its entry has %d bytes, more than %d: give the workload smaller documents or transactions", l.txns, len(dst), maxEntry)
	}
	return dst, ops, nil
}

// appendOp appends the fields that entries and elements of a transaction share.
func (l *Log) appendOp(dst []byte, op *Op) []byte {
	letter := "i"
	switch op.Kind {
	case oplog.KindUpdate:
		letter = "u"
	case oplog.KindDelete:
		letter = "d"
	default:
	}
	dst = bsoncore.AppendStringElement(dst, "op", letter)
	dst = bsoncore.AppendStringElement(dst, "ns", string(op.NS))
	dst = bsoncore.AppendBinaryElement(dst, "ui", bson.TypeBinaryUUID, op.UUID[:])
	switch {
	case op.Doc != nil:
		dst = bsoncore.AppendDocumentElement(dst, "o", op.Doc)
	case op.Diff != nil:
		var o int32
		o, dst = bsoncore.AppendDocumentElementStart(dst, "o")
		dst = bsoncore.AppendInt32Element(dst, "$v", 2)
		dst = bsoncore.AppendDocumentElement(dst, "diff", op.Diff)
		dst = endDocument(dst, o)
	default:
		dst = appendKey(dst, "o", op.ID)
	}
	if op.Kind == oplog.KindUpdate {
		dst = appendKey(dst, "o2", op.ID)
	}
	return dst
}

// appendKey appends {name: {_id: …}}.
func appendKey(dst []byte, name string, id bson.RawValue) []byte {
	start, dst := bsoncore.AppendDocumentElementStart(dst, name)
	dst = append(dst, byte(id.Type), '_', 'i', 'd', 0)
	return endDocument(append(dst, id.Value...), start)
}

// appendPlace appends where an entry stands in the log.
func (l *Log) appendPlace(dst []byte, at oplog.OpTime) []byte {
	dst = bsoncore.AppendTimestampElement(dst, "ts", at.TS.T, at.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", at.Term)
	dst = bsoncore.AppendInt64Element(dst, "v", 2)
	return bsoncore.AppendDateTimeElement(dst, "wall", int64(at.TS.T)*1000+int64(at.TS.I)-1)
}
