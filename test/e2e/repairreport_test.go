package e2e

import (
	"context"
	"encoding/json"
	"math"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify"
)

// plantedPairs are values of documents on the source and, instead of them, on the target.
func plantedPairs(t *testing.T) (pairs [][2]any) {
	return [][2]any{
		{bson.Binary{Data: []byte{1, 2, 3}}, bson.Binary{Data: []byte{1, 2, 2}}},
		{int32(7), int64(7)},
		{int32(7), float64(7)},
		{0.0, math.Copysign(0, -1)},
		{math.Float64frombits(0x7ff8000000000000), math.Float64frombits(0x7ff8000000000001)},
		{bsongen.Decimal(t, "1.0"), bsongen.Decimal(t, "1.00")},
		{"a", bson.Symbol("a")},
		{nil, bson.Undefined{}},
		{bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}, bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}}},
		{bson.D{{Key: "a", Value: 1}, {Key: "a", Value: 2}}, bson.D{{Key: "a", Value: 1}}},
		{bson.A{1, 2}, bson.A{1, 2, 3}},
		{bson.A{bson.D{{Key: "b", Value: "x"}}}, bson.A{bson.D{{Key: "b", Value: "y"}}}},
		{bson.Timestamp{T: 1}, bson.Timestamp{T: 1, I: 1}},
	}
}

// TestRepairOfReport: each difference that verify finds in documents is repaired from its report,
// while a client goes on to write to the same documents, and the target has a failover; then verify finds
// none.
func TestRepairOfReport(t *testing.T) {
	t.Parallel()
	b := openBank(t, 3)
	b.mirror.cfg.ReportDivergence = true
	b.mirror.begin()
	defer b.mirror.end(errEnd)
	b.mirror.await(b.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
	source, target := connect(t, b.source.uriFor(admin)), connect(t, b.target.uriFor(admin))
	majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
	pairs := plantedPairs(t)
	docs, planted := bson.A{}, bson.A{}
	for id, pair := range pairs {
		docs = append(docs, bson.D{{Key: "_id", Value: int32(id)}, {Key: "x", Value: pair[0]}})
		planted = append(planted, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: int32(id)}}}, {Key: "u", Value: bson.D{{Key: "_id", Value: int32(id)}, {Key: "x", Value: pair[1]}}}})
	}
	docs = append(docs, bson.D{{Key: "_id", Value: "missing"}}, bson.D{{Key: "_id", Value: int32(100)}})
	command(t, source, bankDB, bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: docs}, majority})
	command(t, source, bankDB, bson.D{{Key: "create", Value: "b"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}, {Key: "strength", Value: 2}}}, majority})
	command(t, source, bankDB, bson.D{{Key: "insert", Value: "b"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "ä"}}, bson.D{{Key: "_id", Value: "B"}}, bson.D{{Key: "_id", Value: "c"}, {Key: "v", Value: 1}}}}, majority})
	b.mirror.await(b.limit, "the target has them", func(monitor.Snapshot) bool {
		reply, err := target.Call(t.Context(), bankCommand(bson.D{{Key: "count", Value: "b"}}))
		n, _ := reply.Lookup("n").AsInt64OK()
		return err == nil && n == 3
	})
	command(t, target, bankDB, bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: planted}, majority})
	remove := func(coll string, id any) {
		command(t, target, bankDB, bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "limit", Value: 1}}}}, majority})
	}
	remove("a", "missing")
	remove("a", 100)
	remove("b", "B")
	remove("b", "ä")
	command(t, target, bankDB, bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "extra"}}, bson.D{{Key: "_id", Value: int64(100)}}}}, majority})
	command(t, target, bankDB, bson.D{{Key: "insert", Value: "b"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "b"}, {Key: "v", Value: 1}}}}, majority})

	store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "cuts"}))(t)
	report := b.differences(t, source, target, store)
	if want := len(pairs) + 6; len(report) != want {
		t.Errorf("%d differences were planted, and %d are found", want, len(report))
	}
	ctx, stop := context.WithCancelCause(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop(errEnd)
	work.Go(func() {
		for n := 0; mongo.Pause(ctx, writePause) == nil; n++ {
			_, _ = source.Call(ctx, bankCommand(update("a", bson.D{{Key: "_id", Value: n % len(pairs)}}, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}})))
			_, _ = source.Call(ctx, bankCommand(update("a", bson.D{{Key: "_id", Value: "missing"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})))
		}
	})
	requests := request.New(store)
	for ns, ids := range byCollection(report) {
		args := must.Get(json.Marshal(request.RepairArgs{Namespace: string(ns), Target: string(ns), IDs: ids}))(t)
		r := ask(t, requests, request.Ask{Kind: request.Repair, By: "test", Args: args})
		if ns == bankDB+".a" {
			must.Succeed(t, b.target.stepDown(ctx))
		}
		if r = b.answered(t, requests, r); r.State != request.Done {
			t.Errorf("%s is %s: %s", ns, r.State, r.Outcome)
		}
	}
	if again := b.differences(t, source, target, store); len(again) > 0 {
		t.Errorf("%d differences after the repair: %+v", len(again), again)
	}
}

// answered waits for the end of a request, also while the target has no primary.
func (b *bank) answered(t *testing.T, requests *request.Store, r request.Record) request.Record {
	t.Helper()
	for until := time.Now().Add(b.limit); r.Open(); {
		if time.Now().After(until) {
			t.Fatalf("%s is %s: %s", r.ID, r.State, r.Outcome)
		}
		must.Succeed(t, mongo.Pause(t.Context(), 100*time.Millisecond))
		if now, err := requests.Get(t.Context(), r.ID); err == nil {
			r = now
		}
	}
	return r
}

func byCollection(report []verify.Difference) map[oplog.Namespace][][]byte {
	ids := map[oplog.Namespace][][]byte{}
	for i := range report {
		ids[report[i].SourceNS] = append(ids[report[i].SourceNS], report[i].IDBSON)
	}
	return ids
}

// differences compares at cuts.
func (b *bank) differences(t *testing.T, source, target mongo.Caller, store *checkpoint.Store) (all []verify.Difference) {
	t.Helper()
	v := must.Get(verify.New(verify.Config{
		Source: source, Target: target, Scope: must.Get(scope.New(scope.Config{}))(t),
		Cuts:  &verify.LinkCuts{Links: store, By: "test", Wait: auditLimit},
		Found: func(d *verify.Difference) error { all = append(all, *d); return nil },
	}))(t)
	summary := must.Get(v.Run(t.Context()))(t)
	if summary.Unchecked() > 0 {
		t.Errorf("not checked: %+v", summary.Collections)
	}
	return all
}
