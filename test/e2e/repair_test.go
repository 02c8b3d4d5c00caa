package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// Environment variables of TestRepair: the first seed, and how many.
const (
	envRepairSeed  = "REPAIR_SEED"
	envRepairSeeds = "REPAIR_SEEDS"
)

// TestRepair damages documents of the target that clients of the source write to all the time, and
// has them repaired, while members of both sets and the mirror itself are killed. At each cut
// that is told after that the target has exactly what the source had as of the cut's optime.
func TestRepair(t *testing.T) {
	first := number(t, envRepairSeed, 1)
	for seed := first; seed < first+number(t, envRepairSeeds, 1); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			t.Parallel()
			b := openBank(t, seed)
			b.mirror.cfg.ReportDivergence = true // the log meets damaged documents
			b.repaired(t)
		})
	}
}

func (b *bank) repaired(t *testing.T) {
	b.mirror.begin()
	defer b.mirror.end(errEnd)
	b.mirror.await(b.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
	b.found(t)
	source, target := connect(t, b.source.uriFor(admin)), connect(t, b.target.uriFor(admin))
	b.mirror.await(b.limit, "the target has the accounts", func(monitor.Snapshot) bool {
		n := 0
		for _, coll := range slices.Concat(accounts, counters) {
			reply, err := target.Call(t.Context(), bankCommand(bson.D{{Key: "find", Value: coll}}))
			if err != nil {
				return false
			}
			if batch, err := mongo.ReadBatch(reply); err == nil {
				n += len(batch.Docs)
			}
		}
		return n == len(accounts)*perCollection+len(counters)*3
	})
	ctx, stop := context.WithCancelCause(t.Context())
	writing, enough := context.WithCancelCause(ctx)
	var work, watch sync.WaitGroup
	defer func() {
		stop(errEnd)
		work.Wait()
		watch.Wait()
	}()
	for n := range 3 {
		work.Go(func() { b.transfers(ctx, writing, source, n) })
	}
	b.spoil(t, target)
	asked := b.askRepairs(t, target)
	b.hurt(t, func() (string, error) { return b.injury(t) })
	b.whole(t)
	requests := request.New(must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "cuts"}))(t))
	b.mirror.await(b.limit, "the documents are repaired", func(monitor.Snapshot) bool {
		for _, id := range asked {
			if r, err := requests.Get(ctx, id); err != nil || r.Open() {
				return false
			}
		}
		return true
	})
	for _, id := range asked {
		if r := recordOf(t, requests, id); r.State != request.Done {
			t.Errorf("%s: %s", r.State, r.Outcome)
		} else {
			t.Log(r.Outcome)
		}
	}
	// From here on nothing may diverge any more, and no cut may differ.
	b.mirror.end(errEnd)
	b.mirror.begin()
	watch.Go(func() { b.watch(ctx, t, target) })
	since := b.endOf(t, requests, asked)
	b.mirror.await(b.limit, "enough cuts are told", func(monitor.Snapshot) bool { return len(b.after(since)) >= 2*cutsWanted })
	enough(errEnd)
	work.Wait()
	stop(errEnd)
	watch.Wait()
	b.mirror.drain(b.limit, b.last(t))
	b.same(t)
	b.seen = b.after(since)
	b.prove(t)
}

// endOf returns the second in which the last repair was answered, by the target's clock.
func (b *bank) endOf(t *testing.T, requests *request.Store, asked []string) (end int64) {
	t.Helper()
	for _, id := range asked {
		end = max(end, recordOf(t, requests, id).ChangedAt.Unix())
	}
	return end
}

func recordOf(t *testing.T, requests *request.Store, id string) (r request.Record) {
	t.Helper()
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		r, err = requests.Get(t.Context(), id)
		return err
	}))
	return r
}

// ask makes a request. One that is made twice by an election does no harm.
func ask(t *testing.T, requests *request.Store, a request.Ask) (r request.Record) {
	t.Helper()
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		r, err = requests.Ask(t.Context(), a)
		return err
	}))
	return r
}

// after returns the sightings at cuts after a second of the target.
func (b *bank) after(second int64) []sighting {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.seen), func(s sighting) bool { return int64(s.cut.Target.T) <= second })
}

// spoil damages the accounts on the target in every way.
func (b *bank) spoil(t *testing.T, target mongo.Caller) {
	t.Helper()
	damage := []bson.D{
		{{Key: "$set", Value: bson.D{{Key: "v", Value: int64(1)}, {Key: "junk", Value: 1}}}},
		{{Key: "$set", Value: bson.D{{Key: "v", Value: 0.5}, {Key: "w", Value: bson.A{1}}}}},
		{{Key: "$unset", Value: bson.D{{Key: "v", Value: ""}}}},
		{{Key: "w", Value: 1}, {Key: "v", Value: 100}},
	}
	for _, coll := range accounts {
		var all bson.A
		for id, change := range damage {
			all = append(all, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: change}})
		}
		all = append(all, bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 99}}}, {Key: "u", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "upsert", Value: true}})
		command(t, target, bankDB, bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: all}})
		command(t, target, bankDB, bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 5}}}, {Key: "limit", Value: 1}}}}})
		command(t, target, bankDB, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: -1}}}}})
	}
}

// askRepairs asks for all accounts to be repaired: by _ids, and by a range.
func (b *bank) askRepairs(t *testing.T, target mongo.Caller) (asked []string) {
	t.Helper()
	requests := request.New(must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "cuts"}))(t))
	id := func(n int) []byte { return must.Get(bson.Marshal(bson.D{{Key: "_id", Value: n}}))(t) }
	for i, coll := range accounts {
		args := request.RepairArgs{Namespace: bankDB + "." + coll, From: id(-1), To: id(99)}
		if i == 0 {
			args.From, args.To = nil, nil
			for n := range perCollection {
				args.IDs = append(args.IDs, id(n))
			}
			args.IDs = append(args.IDs, id(-1), id(99))
		}
		asked = append(asked, ask(t, requests, request.Ask{Kind: request.Repair, By: "test", Args: must.Get(json.Marshal(args))(t)}).ID)
	}
	return asked
}
