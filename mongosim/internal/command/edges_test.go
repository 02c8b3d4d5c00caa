package command

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/command/write"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func TestSetParameterWithoutAName(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.want(t, `{setParameter: 1, "": 1, $db: "admin"}`,
		`{ok: 0.0, errmsg: "attempted to set unrecognized parameter [], use help:true to see options ", code: 72, codeName: "InvalidOptions"}`)
}

func TestALimitHoldsBeyondADocumentThatDidNotFit(t *testing.T) {
	m := newMember(t, "5.0.7")
	for i := range int32(3) {
		doc := bsoncore.BuildDocument(nil, bsoncore.AppendBinaryElement(bsoncore.AppendInt32Element(nil, "_id", i), "b", 0, bytes.Repeat([]byte{1}, 10<<20)))
		cmd := marshal(t, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.Raw(doc)}}, {Key: "$db", Value: "d"}})
		if r := m.CallOn(t.Context(), m.conn, cmd); r.Lookup("ok").Double() != 1 {
			t.Fatal(r)
		}
	}
	r := m.run(t, `{find: "c", limit: 2, $db: "d"}`)
	first, _ := r.Lookup("cursor", "firstBatch").Array().Values()
	id := r.Lookup("cursor", "id").Int64()
	if len(first) != 1 || id == 0 {
		t.Fatalf("the first batch has %d documents, cursor %d", len(first), id)
	}
	r = m.CallOn(t.Context(), m.conn, marshal(t, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}, {Key: "$db", Value: "d"}}))
	next, _ := r.Lookup("cursor", "nextBatch").Array().Values()
	if len(next) != 1 || r.Lookup("cursor", "id").Int64() != 0 {
		t.Errorf("the second batch has %d documents, cursor %d", len(next), r.Lookup("cursor", "id").Int64())
	}
}

func TestSequenceOfAnArgumentThatIsNone(t *testing.T) {
	m := newMember(t, "5.0.7")
	out := m.Dispatch(t.Context(), m.conn, dispatch.Input{
		Body:      parse(t, `{find: "c", $db: "d"}`),
		Sequences: []dispatch.Sequence{{Name: "filter", Docs: []bson.Raw{parse(t, `{_id: 1}`)}}},
	})
	if out.Body.Lookup("ok").Double() == 1 {
		t.Errorf("a sequence filter was ignored: %s", out.Body)
	}
}

func TestListsLoseNothing(t *testing.T) {
	m := newMember(t, "5.0.7")
	r := &dispatch.Request{Server: m.Server, Conn: m.conn}
	doc := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "a", strings.Repeat("x", 1<<20))))
	last := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "a", strings.Repeat("x", 16<<20-15*len(doc)-13))))
	docs := []bson.Raw{}
	for range 15 {
		docs = append(docs, doc)
	}
	docs = append(docs, last)
	out := &dispatch.Reply{Buf: make([]byte, 4)}
	if err := read.ListCursor(t.Context(), r, "d.c", docs, -1, out); err != nil {
		t.Fatal(err)
	}
	n := 0
	out.Buf = append(out.Buf, 0)
	e, _ := rawbson.Lookup(bson.Raw(bsoncore.UpdateLength(out.Buf, 0, int32(len(out.Buf)))), "cursor")
	cur, _ := e.Document()
	e, _ = rawbson.Lookup(cur, "firstBatch")
	arr, _ := e.Array()
	it := rawbson.NewIter(arr)
	for it.Next() {
		n++
	}
	e, _ = rawbson.Lookup(cur, "id")
	if id, _ := e.Int64(); n != 16 && id == 0 {
		t.Errorf("%d documents of 16, and no cursor", n)
	}
}

func TestManyWriteErrorsFitIntoAReply(t *testing.T) {
	m := newMember(t, "5.0.7")
	insert := func(id string, n int) bson.Raw {
		docs := make([]bson.Raw, n)
		for i := range docs {
			docs[i] = bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "_id", id))
		}
		return m.Dispatch(t.Context(), m.conn, dispatch.Input{
			Body: parse(t, `{insert: "c", ordered: false, $db: "d"}`), Sequences: []dispatch.Sequence{{Name: "documents", Docs: docs}},
		}).Body
	}
	reply := insert("k", 100_000)
	list, err := reply.Lookup("writeErrors").Array().Values()
	if err != nil || len(list) != 99_999 || len(reply) > wire.MaxDocumentSize {
		t.Fatalf("%d errors in %d bytes: %v", len(list), len(reply), err)
	}
	first, last := list[0].Document().Lookup("errmsg").StringValue(), list[len(list)-1].Document().Lookup("errmsg").StringValue()
	if first == "" || last != "" {
		t.Errorf("the first error says %q, the last %q", first, last)
	}
	if code := codeOf(insert(strings.Repeat("k", 1000), 20_000)); code != servererr.BSONObjectTooLarge {
		t.Errorf("a reply that is too large whatever one does: %v", code)
	}
}

func TestAMemberThatStopsLetsGoOfItsTransactions(t *testing.T) {
	m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.TransactionLifetime = time.Hour })
	m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
	m.run(t, `{update: "c", updates: [{q: {_id: 1}, u: {$set: {a: 1}}}], `+sessionA+`, txnNumber: {$numberLong: "1"}, autocommit: false, startTransaction: true, $db: "d"}`)
	m.Close()
	again, err := New(m.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	reply := again.Call(t.Context(), parse(t, `{update: "c", updates: [{q: {_id: 1}, u: {$set: {a: 2}}}], maxTimeMS: 100, $db: "d"}`))
	if n, _ := reply.Lookup("n").AsInt64OK(); n != 1 {
		t.Errorf("%s", reply)
	}
	for _, s := range m.Sessions.All() {
		if s.Lifetime != nil {
			t.Error("the clock of a transaction that has ended goes on")
		}
	}
}

func TestACommitStopsTheClockOfItsTransaction(t *testing.T) {
	m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.TransactionLifetime = time.Hour })
	m.run(t, `{create: "c", $db: "d"}`)
	const txn = sessionA + `, txnNumber: {$numberLong: "1"}, autocommit: false, `
	m.run(t, `{insert: "c", documents: [{}], startTransaction: true, `+txn+`$db: "d"}`)
	s := m.Sessions.All()[0]
	if s.Lifetime == nil {
		t.Error("no clock runs")
	}
	m.run(t, `{commitTransaction: 1, `+txn+`$db: "admin"}`)
	if s.Lifetime != nil {
		t.Error("the clock goes on")
	}
}

func TestNoTransactionBeginsAfterAStepDown(t *testing.T) {
	m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.TransactionLifetime = time.Hour })
	m.run(t, `{create: "c", $db: "d"}`)
	m.SteppedDown()
	// A command that has seen the member as primary, and comes only now.
	const insert = `{insert: "c", documents: [{_id: 1}], ` + sessionA + `, txnNumber: {$numberLong: "1"}, autocommit: false, startTransaction: true, $db: "d"}`
	if code := codeOf(m.run(t, insert)); code != servererr.InterruptedDueToReplStateChange {
		t.Errorf("code %v", code)
	}
	if err := m.Config.Store.Write(func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		defer u.Abort()
		c, _ := u.View().Collection("d.c")
		_, err := u.Insert(c.UUID, parse(t, `{_id: 1}`))
		return err
	}); err != nil {
		t.Errorf("what the applier would meet: %v", err)
	}
}

func TestStatementsWithAnotherCollationThanTheirCollection(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "c", collation: {locale: "en", strength: 2}, $db: "d"}`)
	m.run(t, `{insert: "c", documents: [{_id: "a"}, {_id: "~b"}], $db: "d"}`)
	m.want(t, `{delete: "c", deletes: [{q: {_id: {$gt: "a"}}, limit: 0, collation: {locale: "simple"}}], $db: "d"}`, `{n: 1, ok: 1.0}`)
}

func TestAnInsertGoesOnWithoutItsClient(t *testing.T) {
	m := newMember(t, "5.0.7")
	docs := make([]bson.Raw, 3*write.Chunk)
	for i := range docs {
		docs[i] = dispatch.EmptyDocument
	}
	ctx, hangUp := context.WithCancelCause(t.Context())
	hangUp(wire.ErrHangup)
	m.Dispatch(ctx, m.conn, dispatch.Input{
		Body:      parse(t, `{insert: "c", writeConcern: {w: 1}, $db: "d"}`),
		Sequences: []dispatch.Sequence{{Name: "documents", Docs: docs}},
	})
	if n, _ := m.run(t, `{count: "c", $db: "d"}`).Lookup("n").AsInt64OK(); n != 3*write.Chunk {
		t.Errorf("%d documents of %d", n, 3*write.Chunk)
	}
}

func TestArgumentsThatWouldChangeSomething(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{}], $db: "d"}`)
	for _, tc := range []struct {
		cmd  string
		code servererr.Code
	}{
		{`{ping: 1, apiVersion: "1", apiStrict: true, $db: "d"}`, 0},
		{`{ping: 1, apiVersion: "2", $db: "d"}`, servererr.APIVersionError},
		{`{ping: 1, apiVersion: 1, $db: "d"}`, servererr.TypeMismatch},
		{`{distinct: "c", key: "a", apiVersion: "1", apiStrict: true, $db: "d"}`, servererr.APIStrictError},
		{`{distinct: "c", key: "a", hint: "_id_", $db: "d"}`, 40415},
		{`{dropDatabase: 1, help: true, $db: "d"}`, servererr.NotImplemented},
		{`{ping: 1, help: false, $db: "d"}`, 0},
		{`{find: "c", $maxTimeMS: 1, $db: "d"}`, servererr.InvalidOptions},
		{`{dbHash: 1, skipTempCollections: true, $db: "d"}`, servererr.NotImplemented},
	} {
		if got := codeOf(m.run(t, tc.cmd)); got != tc.code {
			t.Errorf("%s: code %d, want %d", tc.cmd, got, tc.code)
		}
	}
	m.want(t, `{count: "c", $db: "d"}`, `{n: 1, ok: 1.0}`)
	later := newMember(t, "8.0.4")
	later.run(t, `{insert: "c", documents: [{}], $db: "d"}`)
	if got := codeOf(later.run(t, `{distinct: "c", key: "a", hint: "none", $db: "d"}`)); got != servererr.BadValue {
		t.Errorf("a hint at no index: code %d", got)
	}
}

func TestAnOldHandshakeMayLogIn(t *testing.T) {
	m := newMember(t, "6.0.5")
	for cmd, want := range map[string]servererr.Code{
		`{ismaster: 1, $db: "admin"}`: 0, `{buildinfo: 1, $db: "admin"}`: 0,
		`{saslStart: 1, $db: "admin"}`: servererr.AuthenticationFailed, `{ping: 1, $db: "admin"}`: servererr.UnsupportedOpQueryCommand,
	} {
		if got := codeOf(m.Dispatch(t.Context(), m.conn, dispatch.Input{Body: parse(t, cmd), Legacy: true}).Body); got != want {
			t.Errorf("%s: code %d, want %d", cmd, got, want)
		}
	}
}

func TestNobodyGivesAwayRolesOfOthers(t *testing.T) {
	for cmd, want := range map[string]string{
		`{createUser: "x", pwd: "p", roles: ["read", {role: "root", db: "admin"}], $db: "app"}`: "createUser app; grantRole app",
		`{createUser: "x", pwd: "p", roles: [{role: "root", db: "admin"}], $db: "app"}`:         "createUser app; grantRole admin",
		`{grantRolesToUser: "x", roles: [{role: "root", db: "admin"}], $db: "app"}`:             "grantRole app",
	} {
		g := &gate{allowed: strings.Fields(want)[0]}
		if g.allowed == "grantRole" {
			g.allowed = ""
		}
		m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.Auth = g })
		m.run(t, cmd)
		if got := strings.Join(g.asked, "; "); got != want {
			t.Errorf("%s asks for %q, want %q", cmd, got, want)
		}
	}
}

// TestNullArguments: null is the same as an argument that is not given.
func TestNullArguments(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.want(t, `{"insert": "c", "documents": [{"_id": 1}], "$db": "app"}`, `{"n": 1, "ok": 1.0}`)
	m.want(t, `{"findAndModify": "c", "query": null, "sort": null, "fields": null, "arrayFilters": null, "update": {"$set": {"a": 1}}, "new": true, "$db": "app"}`,
		`{"lastErrorObject": {"n": 1, "updatedExisting": true}, "value": {"_id": 1, "a": 1}, "ok": 1.0}`)
}
