// Package drivertest is a conformance suite for every [mongo.Caller]: the real one, on
// the embedded set and on real servers, and its substitutes in tests.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Deployment is the deployment that the suite tests. The suite writes to the database
// "conformance".
type Deployment struct {
	// Primary runs commands on the primary.
	Primary mongo.Caller
	// Secondary runs commands on a secondary; nil skips the tests that need it.
	Secondary mongo.Caller
	// StepDown makes the primary step down, and returns once it has; nil skips the
	// tests that need it.
	StepDown func(ctx context.Context) error
}

const db = "conformance"

// Run runs the suite. Each test has a collection of its own.
func Run(t *testing.T, open func(t *testing.T) Deployment) {
	d := open(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, d *Deployment)
	}{
		{"reply", testReply},
		{"send by", testSendBy},
		{"refusal", testRefusal},
		{"write error", testWriteError},
		{"sequence", testSequence},
		{"large sequence", testLargeSequence},
		{"too large", testTooLarge},
		{"retried write", testRetriedWrite},
		{"transaction", testTransaction},
		{"labels", testLabels},
		{"ended context", testEndedContext},
		{"cancelled wait", testCancelledWait},
		{"deadline of a wait", testDeadline},
		{"a wait blocks no other call", testWaitsApart},
		{"concurrent callers", testConcurrent},
		{"secondary", testSecondary},
		{"step down", testStepDown},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &d) })
	}
}

// Doc encodes a bson.D or the like, for tests.
func Doc(t testing.TB, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func d(pairs ...any) bson.D {
	out := make(bson.D, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return out
}

func run(t *testing.T, c mongo.Caller, pairs ...any) (bson.Raw, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return c.Call(ctx, mongo.Command{DB: db, Body: Doc(t, d(pairs...))})
}

func mustRun(t *testing.T, c mongo.Caller, pairs ...any) bson.Raw {
	t.Helper()
	reply, err := run(t, c, pairs...)
	if err != nil {
		t.Fatalf("%v: %v", pairs[0], err)
	}
	return reply
}

func refusal(t *testing.T, err error, code servererr.Code) *servererr.Error {
	t.Helper()
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("the error is %v (%T), want code %d", err, err, code)
	}
	return e
}

func refused(t *testing.T, err error, code servererr.Code) {
	t.Helper()
	_ = refusal(t, err, code)
}

func count(t *testing.T, c mongo.Caller, coll string) int64 {
	t.Helper()
	n, ok := mustRun(t, c, "count", coll, "query", bson.D{}).Lookup("n").AsInt64OK()
	if !ok {
		t.Fatalf("count %s has no n", coll)
	}
	return n
}

// testSendBy: a command that could not be sent in time is not sent.
func testSendBy(t *testing.T, d *Deployment) {
	cmd := mongo.Command{DB: db, Body: Doc(t, bson.D{
		{Key: "insert", Value: "sendBy"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
	}), SendBy: time.Now().Add(-time.Millisecond)}
	if _, err := d.Primary.Call(t.Context(), cmd); !errors.Is(err, mongo.ErrTooLate) {
		t.Errorf("too late: %v", err)
	}
	if all, ok := d.Primary.(mongo.Pipeliner); ok {
		err := all.CallAll(t.Context(), []mongo.Command{cmd, cmd}, func(int, bson.Raw) error { return nil })
		if !errors.Is(err, mongo.ErrTooLate) {
			t.Errorf("too late, pipelined: %v", err)
		}
	}
	if n := count(t, d.Primary, "sendBy"); n != 0 {
		t.Errorf("it was sent: %d documents", n)
	}
	cmd.SendBy = time.Now().Add(time.Minute)
	if _, err := d.Primary.Call(t.Context(), cmd); err != nil {
		t.Error(err)
	}
}

func testReply(t *testing.T, d *Deployment) {
	body := Doc(t, bson.D{{Key: "ping", Value: int32(1)}})
	kept := bytes.Clone(body)
	first, err := d.Primary.Call(t.Context(), mongo.Command{DB: "admin", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Validate(); err != nil {
		t.Fatal(err)
	}
	copied := bytes.Clone(first)
	for range 50 {
		mustRun(t, d.Primary, "find", "reply", "filter", bson.D{})
	}
	if !bytes.Equal(first, copied) {
		t.Error("a reply was overwritten by a later call")
	}
	if !bytes.Equal(body, kept) {
		t.Error("the body of a command was changed")
	}
}

func testRefusal(t *testing.T, d *Deployment) {
	_, err := run(t, d.Primary, "noSuchCommand", 1)
	if e := refusal(t, err, servererr.CommandNotFound); !strings.Contains(e.Message, "noSuchCommand") {
		t.Errorf("the message is %q", e.Message)
	}
	_, err = run(t, d.Primary, "find", "refusal", "filter", bson.D{{Key: "$bogus", Value: 1}})
	refused(t, err, servererr.BadValue)
}

func testWriteError(t *testing.T, dep *Deployment) {
	docs := bson.A{d("_id", 1), d("_id", 1), d("_id", 2)}
	reply := mustRun(t, dep.Primary, "insert", "dups", "documents", docs, "ordered", false)
	errs, err := mongo.WriteErrors(reply)
	if err != nil || len(errs) != 1 || errs[0].Index != 1 || errs[0].Code != servererr.DuplicateKey {
		t.Fatalf("write errors are %v, %v", errs, err)
	}
	if n := count(t, dep.Primary, "dups"); n != 2 {
		t.Errorf("%d documents, want 2", n)
	}
}

func testSequence(t *testing.T, dep *Deployment) {
	docs := make([]bson.Raw, 1000)
	for i := range docs {
		docs[i] = Doc(t, d("_id", i, "x", strings.Repeat("x", i%17)))
	}
	reply, err := dep.Primary.Call(t.Context(), mongo.Command{
		DB: db, Body: Doc(t, d("insert", "sequence", "ordered", true)), Sequence: "documents", Docs: docs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := reply.Lookup("n").AsInt64OK(); n != 1000 {
		t.Fatalf("inserted %d: %s", n, reply)
	}
	batch := mustRun(t, dep.Primary, "find", "sequence", "sort", d("_id", 1), "batchSize", 1000).
		Lookup("cursor", "firstBatch").Array()
	values, err := batch.Values()
	if err != nil || len(values) != 1000 {
		t.Fatalf("%d documents, %v", len(values), err)
	}
	for i, v := range values {
		if !bytes.Equal(v.Value, docs[i]) {
			t.Fatalf("document %d is %s, was %s", i, v, docs[i])
		}
	}
}

// testLargeSequence sends more than twice the maximum size of a document.
func testLargeSequence(t *testing.T, dep *Deployment) {
	const n, size = 40, 1 << 20
	fill := strings.Repeat("0123456789abcdef", size/16)
	docs := make([]bson.Raw, n)
	for i := range docs {
		docs[i] = Doc(t, d("_id", i, "fill", fill))
	}
	reply, err := dep.Primary.Call(t.Context(), mongo.Command{
		DB: db, Body: Doc(t, d("insert", "large")), Sequence: "documents", Docs: docs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := reply.Lookup("n").AsInt64OK(); got != n {
		t.Fatalf("inserted %d: %s", got, reply)
	}
	if got := count(t, dep.Primary, "large"); got != n {
		t.Errorf("%d documents, want %d", got, n)
	}
	mustRun(t, dep.Primary, "drop", "large")
}

// testTooLarge: a command that is too large for any server is an error, and the caller
// stays usable.
func testTooLarge(t *testing.T, dep *Deployment) {
	doc := Doc(t, d("_id", 1, "fill", strings.Repeat("x", 12<<20)))
	_, err := dep.Primary.Call(t.Context(), mongo.Command{
		DB: db, Body: Doc(t, d("insert", "toolarge")), Sequence: "documents", Docs: []bson.Raw{doc, doc, doc, doc},
	})
	refused(t, err, servererr.BSONObjectTooLarge)
	if n := count(t, dep.Primary, "toolarge"); n != 0 {
		t.Errorf("%d documents, want none", n)
	}
}

func session(n byte) bson.D {
	return d("id", bson.Binary{Subtype: 4, Data: append(bytes.Repeat([]byte{0xc0}, 15), n)})
}

// testRetriedWrite: session and transaction number are sent unchanged.
func testRetriedWrite(t *testing.T, dep *Deployment) {
	mustRun(t, dep.Primary, "insert", "retried", "documents", bson.A{d("_id", 1, "n", 0)})
	for range 3 {
		mustRun(t, dep.Primary, "update", "retried",
			"updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))},
			"lsid", session(1), "txnNumber", int64(7)<<40)
	}
	docs := mustRun(t, dep.Primary, "find", "retried").Lookup("cursor", "firstBatch").Array()
	if n, _ := docs.Index(0).Document().Lookup("n").AsInt64OK(); n != 1 {
		t.Errorf("the write was carried out %d times", n)
	}
	_, err := run(t, dep.Primary, "update", "retried",
		"updates", bson.A{d("q", d("_id", 1), "u", d("$inc", d("n", 1)))},
		"lsid", session(1), "txnNumber", int64(6)<<40)
	refused(t, err, servererr.TransactionTooOld)
}

// testTransaction runs a transaction whose statements may use different network
// connections.
func testTransaction(t *testing.T, dep *Deployment) {
	if _, err := run(t, dep.Primary, "create", "txn"); err != nil {
		refused(t, err, servererr.NamespaceExists)
	}
	in := func(pairs ...any) []any {
		return append(pairs, "lsid", session(2), "txnNumber", int64(1), "autocommit", false)
	}
	mustRun(t, dep.Primary, append(in("insert", "txn", "documents", bson.A{d("_id", 1)}), "startTransaction", true)...)
	mustRun(t, dep.Primary, in("insert", "txn", "documents", bson.A{d("_id", 2)})...)
	if n := count(t, dep.Primary, "txn"); n != 0 {
		t.Errorf("%d documents before the commit", n)
	}
	body := Doc(t, d(in("commitTransaction", 1, "writeConcern", d("w", "majority"))...))
	if _, err := dep.Primary.Call(t.Context(), mongo.Command{DB: "admin", Body: body}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, dep.Primary, "txn"); n != 2 {
		t.Errorf("%d documents after the commit", n)
	}
}

func testLabels(t *testing.T, dep *Deployment) {
	_, err := run(t, dep.Primary, "insert", "labels", "documents", bson.A{d("_id", 1)},
		"lsid", session(3), "txnNumber", int64(1), "autocommit", false)
	e := refusal(t, err, servererr.NoSuchTransaction)
	if len(e.Labels) != 1 || e.Labels[0] != "TransientTransactionError" {
		t.Errorf("labels are %v", e.Labels)
	}
}

func testEndedContext(t *testing.T, dep *Deployment) {
	why := errors.New("why it ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := dep.Primary.Call(ctx, mongo.Command{DB: db, Body: Doc(t, d("ping", 1))}); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
}

// tail creates a capped collection and a tailable cursor at its end, and returns a
// getMore that waits for a minute.
func tail(t *testing.T, dep *Deployment, coll string) mongo.Command {
	t.Helper()
	if _, err := run(t, dep.Primary, "create", coll, "capped", true, "size", 4096); err != nil {
		refused(t, err, servererr.NamespaceExists)
	}
	mustRun(t, dep.Primary, "insert", coll, "documents", bson.A{d("x", 1)})
	reply := mustRun(t, dep.Primary, "find", coll, "tailable", true, "awaitData", true, "lsid", session(4))
	id, _ := reply.Lookup("cursor", "id").AsInt64OK()
	return mongo.Command{DB: db, Body: Doc(t, d(
		"getMore", id, "collection", coll, "maxTimeMS", int64(60_000), "lsid", session(4),
	))}
}

// slack is the largest duration that counts as immediate on a busy machine.
const slack = 2 * time.Second

func testCancelledWait(t *testing.T, dep *Deployment) {
	more := tail(t, dep, "cancelled")
	why := errors.New("why it ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	defer timer.Stop()
	endsBy(ctx, t, dep, more, why)
	mustRun(t, dep.Primary, "ping", 1)
}

// endsBy checks that a getMore that waits ends with why as soon as ctx does.
func endsBy(ctx context.Context, t *testing.T, dep *Deployment, more mongo.Command, why error) {
	t.Helper()
	began := time.Now()
	_, err := dep.Primary.Call(ctx, more)
	if !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	if took := time.Since(began); took > slack {
		t.Errorf("it took %v", took)
	}
}

func testDeadline(t *testing.T, dep *Deployment) {
	more := tail(t, dep, "deadline")
	why := errors.New("it took too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	endsBy(ctx, t, dep, more, why)
	mustRun(t, dep.Primary, "ping", 1)
}

func testWaitsApart(t *testing.T, dep *Deployment) {
	more := tail(t, dep, "apart")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var waits sync.WaitGroup
	var reply bson.Raw
	var err error
	waits.Go(func() { reply, err = dep.Primary.Call(ctx, more) })
	for i := range 20 {
		mustRun(t, dep.Primary, "ping", i+1)
	}
	mustRun(t, dep.Primary, "insert", "apart", "documents", bson.A{d("x", 2)})
	waits.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if docs, _ := reply.Lookup("cursor", "nextBatch").Array().Values(); len(docs) != 1 {
		t.Errorf("the reply is %s", reply)
	}
}

func testConcurrent(t *testing.T, dep *Deployment) {
	const callers, each = 32, 50
	var group sync.WaitGroup
	errs := make(chan error, callers)
	for c := range callers {
		group.Go(func() {
			for i := range each {
				body, err := bson.Marshal(d("insert", "concurrent", "documents", bson.A{d("_id", c*each+i)}))
				if err == nil {
					_, err = dep.Primary.Call(t.Context(), mongo.Command{DB: db, Body: body})
				}
				if err == nil {
					body, err = bson.Marshal(d("find", "concurrent", "filter", d("_id", c*each+i)))
				}
				var reply bson.Raw
				if err == nil {
					reply, err = dep.Primary.Call(t.Context(), mongo.Command{DB: db, Body: body})
				}
				if err == nil {
					got, ok := reply.Lookup("cursor", "firstBatch", "0", "_id").AsInt64OK()
					if !ok || got != int64(c*each+i) {
						err = fmt.Errorf("asked for %d and got %s", c*each+i, reply)
					}
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if n := count(t, dep.Primary, "concurrent"); n != callers*each {
		t.Errorf("%d documents, want %d", n, callers*each)
	}
}

func testSecondary(t *testing.T, dep *Deployment) {
	if dep.Secondary == nil {
		t.Skip("there is no secondary")
	}
	mustRun(t, dep.Primary, "insert", "secondary", "documents", bson.A{d("_id", 1)}, "writeConcern", d("w", "majority"))
	mustRun(t, dep.Secondary, "find", "secondary")
	_, err := run(t, dep.Secondary, "insert", "secondary", "documents", bson.A{d("_id", 2)})
	refused(t, err, servererr.NotWritablePrimary)
}

// testStepDown: the first call after a stepdown may fail on the old primary; the next
// one finds the new primary.
func testStepDown(t *testing.T, dep *Deployment) {
	if dep.StepDown == nil {
		t.Skip("the primary cannot be made to step down")
	}
	for i := range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := dep.StepDown(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		insert := []any{"insert", "stepdown", "documents", bson.A{d("_id", i)}}
		_, err := run(t, dep.Primary, insert...)
		if e, ok := errors.AsType[*servererr.Error](err); ok {
			t.Logf("the first call: %v", e)
			_, err = run(t, dep.Primary, insert...)
		}
		if err != nil {
			t.Fatalf("after step-down %d: %v", i+1, err)
		}
	}
}
