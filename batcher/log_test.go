package batcher

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// log writes entries in a small notation:
//
//	i1 u2 d3         on db.c; i1@db.system.views elsewhere; i1*500 with 500 bytes more
//	n1               a no-op
//	c:drop           a command
//	t(i1,u2)         a transaction in one entry, a(i1,u2) an applyOps without a session
//	p1(i1) e1(i2)    parts of transaction 1, and its end
//	q1(i1) k1 x1     a prepare, the commit, the abort
//	b1               a continuation of an entry that was never added
//
// Optimes count from 1, within the given second.
type log struct {
	n     uint32
	open  map[string]*chain
	names map[oplog.OpTime]string
}

type chain struct {
	last  oplog.OpTime
	count int
}

func newLog() *log { return &log{open: map[string]*chain{}, names: map[oplog.OpTime]string{}} }

func (l *log) entry(t testing.TB, second uint32, token string) oplog.Entry {
	t.Helper()
	l.n++
	at := oplog.NewOpTime(second, l.n, 1)
	l.names[at] = token
	b := bsoncore.NewDocumentBuilder().
		AppendTimestamp("ts", at.TS.T, at.TS.I).AppendInt64("t", 1).AppendInt64("v", 2).
		AppendDateTime("wall", int64(second)*1000)
	body, args, _ := strings.Cut(token, "(")
	args = strings.TrimSuffix(args, ")")
	switch body[0] {
	case 'i', 'u', 'd', 'n':
		return parse(t, appendFields(b.Build(), element(t, token)))
	case 'c':
		return parse(t, appendFields(b.Build(), command(token)))
	case 'a':
		return parse(t, group(b, t, args, 0))
	case 't':
		session(b, 99, l.n, oplog.OpTime{Term: oplog.UninitializedTerm})
		return parse(t, group(b, t, args, 0))
	}
	return l.part(t, b, at, token)
}

// part returns an entry of a transaction of several, or a continuation.
func (l *log) part(t testing.TB, b *bsoncore.DocumentBuilder, at oplog.OpTime, token string) oplog.Entry {
	t.Helper()
	body, args, _ := strings.Cut(token, "(")
	args = strings.TrimSuffix(args, ")")
	number, err := strconv.Atoi(body[1:])
	if err != nil {
		t.Fatalf("what is %q?", token)
	}
	c := l.open[body[1:]]
	if c == nil {
		c = &chain{last: oplog.OpTime{Term: oplog.UninitializedTerm}}
		if body[0] == 'b' {
			c.last = oplog.NewOpTime(1, 1, 1)
		}
		l.open[body[1:]] = c
	}
	session(b, byte(number), 1, c.last)
	c.last = at
	ops := len(strings.Split(args, ","))
	if args == "" {
		ops = 0
	}
	c.count += ops
	switch body[0] {
	case 'p':
		return parse(t, group(b, t, args, 0, func(o *bsoncore.DocumentBuilder) { o.AppendBoolean("partialTxn", true) }))
	case 'e', 'b':
		delete(l.open, body[1:])
		return parse(t, group(b, t, args, c.count))
	case 'q':
		n := 0
		if c.count > ops {
			n = c.count
		}
		return parse(t, group(b, t, args, n, func(o *bsoncore.DocumentBuilder) { o.AppendBoolean("prepare", true) }))
	case 'k', 'x':
		delete(l.open, body[1:])
		o := bsoncore.NewDocumentBuilder()
		if body[0] == 'k' {
			o.AppendInt32("commitTransaction", 1).AppendTimestamp("commitTimestamp", at.TS.T, at.TS.I)
		} else {
			o.AppendInt32("abortTransaction", 1)
		}
		return parse(t, b.AppendString("op", "c").AppendString("ns", "admin.$cmd").AppendDocument("o", o.Build()).Build())
	}
	t.Fatalf("what is %q?", token)
	return oplog.Entry{}
}

func parse(t testing.TB, raw bsoncore.Document) oplog.Entry {
	t.Helper()
	return must.Get(oplog.ParseEntry(bson.Raw(raw)))(t)
}

// appendFields appends the fields of one document to another.
func appendFields(to, from []byte) []byte {
	to = append(to[:len(to)-1], from[4:]...)
	return bsoncore.UpdateLength(to, 0, int32(len(to)))
}

func session(b *bsoncore.DocumentBuilder, id byte, number uint32, prev oplog.OpTime) {
	uuid := make([]byte, 16)
	uuid[0] = id
	b.AppendDocument("lsid", bsoncore.NewDocumentBuilder().AppendBinary("id", bson.TypeBinaryUUID, uuid).Build())
	b.AppendInt64("txnNumber", int64(number))
	b.AppendDocument("prevOpTime", bsoncore.NewDocumentBuilder().
		AppendTimestamp("ts", prev.TS.T, prev.TS.I).AppendInt64("t", prev.Term).Build())
}

func group(b *bsoncore.DocumentBuilder, t testing.TB, args string, count int, more ...func(*bsoncore.DocumentBuilder)) bsoncore.Document {
	t.Helper()
	array := bsoncore.NewArrayBuilder()
	for arg := range strings.SplitSeq(args, ",") {
		if arg == "" {
			continue
		}
		if arg[0] == 'c' {
			array.AppendDocument(command(arg))
		} else {
			array.AppendDocument(element(t, arg))
		}
	}
	o := bsoncore.NewDocumentBuilder().AppendArray("applyOps", array.Build())
	for _, f := range more {
		f(o)
	}
	if count > 0 {
		o.AppendInt64("count", int64(count))
	}
	return b.AppendString("op", "c").AppendString("ns", "admin.$cmd").AppendDocument("o", o.Build()).Build()
}

func element(t testing.TB, token string) bsoncore.Document {
	t.Helper()
	rest, pad, _ := strings.Cut(token[1:], "*")
	number, ns, elsewhere := strings.Cut(rest, "@")
	if !elsewhere {
		ns = "db.c"
	}
	id, err := strconv.Atoi(number)
	size := 0
	if err == nil && pad != "" {
		size, err = strconv.Atoi(pad)
	}
	if err != nil {
		t.Fatalf("what is %q?", token)
	}
	key := bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).Build()
	doc := bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(id)).AppendString("pad", strings.Repeat("x", size)).Build()
	b := bsoncore.NewDocumentBuilder().AppendString("op", token[:1]).AppendString("ns", ns).AppendDocument("o", doc)
	if token[0] == 'u' {
		b.AppendDocument("o2", key)
	}
	return b.Build()
}

func command(token string) bsoncore.Document {
	name := strings.TrimPrefix(token, "c:")
	return bsoncore.NewDocumentBuilder().AppendString("op", "c").AppendString("ns", "db.$cmd").
		AppendDocument("o", bsoncore.NewDocumentBuilder().AppendString(name, "x").Build()).Build()
}

// describe formats a batch, with the increments of its optimes, and closes it.
func (l *log) describe(t testing.TB, b *batch.Batch) string {
	t.Helper()
	kind := "batch"
	if b.Individually {
		kind = "alone"
	}
	var items []string
	for i := range b.Items {
		item := &b.Items[i]
		name := l.names[item.Entry.OpTime]
		if item.Txn != nil {
			name += "=" + strings.Join(closeTxn(t, item), ",")
		}
		items = append(items, name)
	}
	return fmt.Sprintf("%s %v entries %d weight %d last %d from %d bytes %d",
		kind, items, b.Entries, b.Weight, b.Last.TS.I, b.FetchFrom.TS.I, b.Bytes)
}

// closeTxn reads a transaction and closes it.
func closeTxn(t testing.TB, item *batch.Item) []string {
	t.Helper()
	var ops []string
	for op, err := range item.Txn.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		if op.Kind == oplog.KindCommand {
			ops = append(ops, op.Command.String())
			continue
		}
		ops = append(ops, fmt.Sprintf("%c%d", op.Kind.String()[0], op.O.Lookup("_id").Int32()))
	}
	must.Succeed(t, item.Txn.Close())
	return ops
}
