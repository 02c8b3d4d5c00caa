package repair

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a link, as far as a Manager sees it. It is safe for concurrent use.
type world struct {
	*Manager
	mu sync.Mutex // guards the rest
	// source and target are their documents. Uuid is that of the source's collection.
	source, target []bson.Raw
	uuid           byte
	clock          uint32
	// fail is asked about each command, by its name.
	fail func(side, name string) error
	held bool
	// busy is how often the lock is another one's.
	busy     int
	locked   map[string]bool
	kept     []int64
	cut      checkpoint.Cut
	cuts     int
	noCuts   bool
	proved   []bson.RawValue
	unproved error
}

func newWorld(set func(*Config)) *world {
	w := &world{uuid: 1, clock: 100, locked: map[string]bool{}, fail: func(string, string) error { return nil }}
	cfg := Config{
		Source: &side{w, "source"}, Target: &side{w, "target"}, Scope: w, Cuts: w, Locks: w,
		Held: func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.held },
		Proved: func(_ context.Context, ns oplog.Namespace, ids []bson.RawValue, _ *checkpoint.Cut) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if ns != "d.a" {
				panic("the collection is not named as on the source")
			}
			w.proved = append(w.proved, ids...)
			return w.unproved
		},
	}
	if set != nil {
		set(&cfg)
	}
	w.Manager = New(cfg)
	return w
}

// with changes, or reads, the world.
func (w *world) with(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// Target implements Scope.
func (*world) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	return "t" + ns, strings.HasPrefix(string(ns), "d.")
}

// Cut implements Cuts.
func (w *world) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts++
	if !w.noCuts {
		w.clock++
		w.cut = checkpoint.Cut{Source: optime(w.clock), Target: bson.Timestamp{T: w.clock}}
	}
}

// NewestCut implements Cuts.
func (w *world) NewestCut() (checkpoint.Cut, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut, "planted"
}

// Begin implements Locks.
func (*world) Begin(context.Context) {}

// End implements Locks.
func (*world) End(context.Context) {}

// Take implements Locks.
func (w *world) Take(_ int64, want jobs.Want) (*locks.Lock, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy > 0 {
		w.busy--
		return nil, &locks.BusyError{Record: locks.Record{Name: want.Name}}
	}
	w.locked[want.Name] = true
	return nil, nil //nolint:nilnil // The result is not used.
}

// Release implements Locks.
func (w *world) Release(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.locked, name)
}

// Keep implements Locks.
func (w *world) Keep(term int64, names map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(names) > 0 || len(w.locked) > 0 {
		panic("locks are swept while a repair goes on")
	}
	w.kept = append(w.kept, term)
}

func optime(t uint32) oplog.OpTime { return oplog.OpTime{TS: bson.Timestamp{T: t}, Term: 1} }

// side answers commands from the documents of a world.
type side struct {
	w    *world
	name string
}

// Call implements mongo.Caller.
func (s *side) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	name := cmd.Body.Index(0).Key()
	if err := w.fail(s.name, name); err != nil {
		return nil, err
	}
	reply := func(ns string, docs []bson.Raw) (bson.Raw, error) {
		return bson.Marshal(bson.D{
			{Key: "ok", Value: 1},
			{Key: "operationTime", Value: bson.Timestamp{T: w.clock}},
			{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: ns}, {Key: "firstBatch", Value: docs}}},
		})
	}
	docs := w.source
	if s.name == "target" {
		docs = w.target
	}
	switch name {
	case "listCollections":
		id := w.uuid
		if s.name == "target" {
			id = 200
		}
		if id == 0 {
			return reply("d.$cmd", []bson.Raw{})
		}
		info := marshal(bson.D{{Key: "name", Value: "a"}, {Key: "info", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: bytes.Repeat([]byte{id}, 16)}}}}})
		return reply("d.$cmd", []bson.Raw{info})
	case "hello":
		return bson.Marshal(bson.D{{Key: "ok", Value: 1}})
	case "find":
		filter := cmd.Body.Lookup("filter", "_id").Document()
		docs = slices.DeleteFunc(slices.Clone(docs), func(doc bson.Raw) bool {
			id := doc.Lookup("_id")
			if list, err := filter.LookupErr("$in"); err == nil {
				values, _ := list.Array().Values()
				return !slices.ContainsFunc(values, id.Equal)
			}
			n := id.AsInt64()
			return n < filter.Lookup("$gte").AsInt64() || n > filter.Lookup("$lte").AsInt64()
		})
		return reply("d.a", append([]bson.Raw{}, docs...))
	default:
		return nil, errors.New("not asked: " + name)
	}
}

func marshal(doc bson.D) bson.Raw {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic("a test's document cannot be marshalled: " + err.Error())
	}
	return raw
}

func docs(from, to int, v any) (all []bson.Raw) {
	for id := from; id < to; id++ {
		all = append(all, marshal(bson.D{{Key: "_id", Value: int32(id)}, {Key: "v", Value: v}}))
	}
	return all
}

// of are the arguments for documents with _ids.
func of(from, to int) request.RepairArgs {
	a := request.RepairArgs{Namespace: "d.a"}
	for _, doc := range docs(from, to, 0) {
		a.IDs = append(a.IDs, request.AppendID(idOf(doc)))
	}
	return a
}

// serve is the applier: it does groups as one says, or writes them.
func (w *world) serve(ctx context.Context, each func(n int, r *applier.Repair) (applier.Repaired, bool)) {
	for n := 0; ; n++ {
		select {
		case r := <-w.Groups():
			out, is := each(n, r)
			if !is {
				out = w.write(ctx, r)
			}
			r.Done(out)
		case <-ctx.Done():
			return
		}
	}
}

// write does a group.
func (w *world) write(ctx context.Context, r *applier.Repair) applier.Repaired {
	got, err := r.Read(ctx, bson.Timestamp{T: 100})
	if err != nil {
		return applier.Repaired{Why: err.Error()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = slices.DeleteFunc(w.target, func(doc bson.Raw) bool { return slices.ContainsFunc(r.IDs, doc.Lookup("_id").Equal) })
	w.target = append(w.target, got...)
	w.clock++
	return applier.Repaired{State: applier.RepairDone, Source: optime(w.clock), Target: bson.Timestamp{T: w.clock}, Rewritten: len(got)}
}

// asIs has every group written.
func asIs(int, *applier.Repair) (applier.Repaired, bool) { return applier.Repaired{}, false }

// run carries out one request, and returns its end and how long that took.
func (w *world) run(t *testing.T, args request.RepairArgs, each func(int, *applier.Repair) (applier.Repaired, bool)) (state, outcome string, took time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	all.Go(func() { w.Run(ctx) })
	all.Go(func() { w.serve(ctx, each) })
	synctest.Wait()
	began := time.Now()
	w.Leads(7)
	for state = request.Working; state == request.Working && time.Since(began) < 100*time.Hour; {
		state, outcome = w.Follow(7, "r", args, "")
		time.Sleep(time.Second)
	}
	took = time.Since(began)
	stop(nil)
	all.Wait()
	w.with(func() {
		if len(w.locked) > 0 || len(w.kept) == 0 || w.kept[0] != 7 {
			t.Errorf("locked: %v, swept in terms %v", w.locked, w.kept)
		}
	})
	return state, outcome, took
}

// scenario runs a test in a bubble.
func scenario(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, do)
}
