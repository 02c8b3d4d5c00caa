package mongosim_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
)

// raw is a connection that sends commands as they are written.
type raw struct {
	t *testing.T
	*wire.Client
}

// d is a document as these tests write many.
type d = bson.D

func dial(t *testing.T, m *mongosim.Member) raw {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", m.Host())
	if err != nil {
		t.Fatalf("dial %s: %v", m.Host(), err)
	}
	c := wire.NewClient(conn)
	t.Cleanup(func() { _ = c.Close() })
	return raw{t, c}
}

// try runs a command and returns its reply, whatever it says. A command that
// takes more than a minute fails the test.
func (c raw) try(db string, cmd bson.D) bson.Raw {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	reply, err := c.Call(ctx, must.Marshal(c.t, append(slices.Clip(cmd), bson.E{Key: "$db", Value: db})))
	if err != nil {
		c.t.Fatalf("%v: %v", cmd, err)
	}
	return reply
}

// ok runs a command that has to succeed in all its parts.
func (c raw) ok(db string, cmd bson.D) bson.Raw {
	c.t.Helper()
	reply := c.try(db, cmd)
	for _, field := range []string{"writeErrors", "writeConcernError"} {
		if _, err := reply.LookupErr(field); err == nil {
			c.t.Fatalf("%v: %s", cmd, reply)
		}
	}
	if n, _ := reply.Lookup("ok").AsFloat64OK(); n != 1 {
		c.t.Fatalf("%v: %s", cmd, reply)
	}
	return reply
}

// send sends a command whose reply is received later.
func (c raw) send(db string, cmd d) {
	c.t.Helper()
	body := must.Marshal(c.t, append(slices.Clip(cmd), bson.E{Key: "$db", Value: db}))
	if _, err := c.Send(c.t.Context(), wire.Request{Body: body}); err != nil {
		c.t.Fatal(err)
	}
}

// receive waits for a reply that was asked for by send.
func (c raw) receive() bson.Raw {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	m, err := c.Receive(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	return m.Body
}

// refused runs a command that has to fail with a code, and returns the reply.
func (c raw) refused(code int32, db string, cmd bson.D) bson.Raw {
	c.t.Helper()
	reply := c.try(db, cmd)
	if got, _ := reply.Lookup("code").Int32OK(); got != code {
		c.t.Errorf("%v: got code %d, want %d: %s", cmd, got, code, reply)
	}
	return reply
}

func labels(reply bson.Raw) string {
	var names []string
	array, _ := reply.Lookup("errorLabels").ArrayOK()
	values, _ := array.Values()
	for _, v := range values {
		names = append(names, v.StringValue())
	}
	return strings.Join(names, " ")
}

// docs are the documents of a cursor's reply.
func docs(t *testing.T, reply bson.Raw) []bson.Raw {
	t.Helper()
	for _, name := range []string{"firstBatch", "nextBatch"} {
		if array, ok := reply.Lookup("cursor", name).ArrayOK(); ok {
			values := must.Get(array.Values())(t)
			out := make([]bson.Raw, len(values))
			for i, v := range values {
				out[i] = v.Document()
			}
			return out
		}
	}
	t.Fatalf("no cursor in %s", reply)
	return nil
}

func cursorID(reply bson.Raw) int64 { return reply.Lookup("cursor", "id").Int64() }

func stamp(doc bson.Raw, path ...string) bson.Timestamp {
	t, i, _ := doc.Lookup(path...).TimestampOK()
	return bson.Timestamp{T: t, I: i}
}

// insert inserts documents.
func insert(coll string, more d, documents ...any) d {
	return append(d{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A(documents)}}, more...)
}

func idDoc(id any) d { return d{{Key: "_id", Value: id}} }

// find reads a collection, named or by its UUID.
func find(coll any, more ...bson.E) d {
	return append(d{{Key: "find", Value: coll}}, more...)
}

// lsid makes a session id that is the same each time.
func lsid(n byte) d {
	return d{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)}}}
}

// inTxn makes a command part of a transaction, or its start.
func inTxn(session byte, number int64, start bool) d {
	out := d{{Key: "lsid", Value: lsid(session)}, {Key: "txnNumber", Value: number}, {Key: "autocommit", Value: false}}
	if start {
		out = append(out, bson.E{Key: "startTransaction", Value: true})
	}
	return out
}

// retryable makes a write one that is carried out once.
func retryable(session byte, number int64) d {
	return d{{Key: "lsid", Value: lsid(session)}, {Key: "txnNumber", Value: number}}
}

func commit(session byte, number int64, more ...bson.E) d {
	return append(append(d{{Key: "commitTransaction", Value: 1}}, inTxn(session, number, false)...), more...)
}

func abort(session byte, number int64) d {
	return append(d{{Key: "abortTransaction", Value: 1}}, inTxn(session, number, false)...)
}

func primaryOf(t *testing.T, set *mongosim.Set) (*mongosim.Member, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	p := must.Get(set.AwaitPrimary(ctx))(t)
	return p, slices.Index(set.Members(), p)
}

// w1 is the write concern of a write that may be lost.
var w1 = d{{Key: "writeConcern", Value: d{{Key: "w", Value: 1}}}}

// nearest lets any member answer.
var nearest = bson.E{Key: "$readPreference", Value: d{{Key: "mode", Value: "nearest"}}}

// arg is one more argument of a command.
func arg(name string, value any) bson.E { return bson.E{Key: name, Value: value} }

// readConcern is an argument that asks for a level and, if it is not zero, for a
// timestamp.
func readConcern(level, option string, at bson.Timestamp) bson.E {
	rc := d{{Key: "level", Value: level}}
	if !at.IsZero() {
		rc = append(rc, arg(option, at))
	}
	return arg("readConcern", rc)
}

// eventually waits until a condition holds that nothing tells of.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(60 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("still not: %s", what)
		}
	}
}

// settled waits until all members have and know the same.
func settled(t *testing.T, set *mongosim.Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	must.Succeed(t, set.AwaitSynced(ctx))
}

// writeError is the code of a reply's first write error, 0 if there is none.
func writeError(reply bson.Raw) int32 {
	code, _ := reply.Lookup("writeErrors", "0", "code").Int32OK()
	return code
}
