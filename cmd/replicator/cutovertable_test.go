package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
)

// incident is what happens at a step of a cutover.
type incident string

const (
	toolKilled  incident = "the tool is killed"
	sourceFails incident = "the source fails over"
	targetFails incident = "the target fails over"
	sourceDies  incident = "the source's primary is killed"
	targetDies  incident = "the target's primary is killed"
)

// cell is one of the table: what happens at the begin or the end of a step, and what the operator does if the cutover
// is not done then.
type cell struct {
	step     record.Step
	end      bool
	incident incident
	cancel   bool
}

func (c *cell) String() string {
	return fmt.Sprintf("%s at the %s of %s, then %s", c.incident, map[bool]string{false: "begin", true: "end"}[c.end], c.step, map[bool]string{false: "resume", true: "cancel"}[c.cancel])
}

// tableCells returns the whole table.
func tableCells() (list []cell) {
	for _, step := range []record.Step{record.Freeze, record.Drain, record.Convert, record.Arm, record.Commit, record.Expire} {
		for _, what := range []incident{toolKilled, sourceFails, targetFails, sourceDies, targetDies} {
			for n := range 4 {
				list = append(list, cell{step, n&1 > 0, what, n&2 > 0})
			}
		}
	}
	return list
}

var errKilled = errors.New("the tool is killed")

// killable are the calls of a tool that can be killed: nothing is sent any more then.
type killable struct {
	mongo.Caller
	killed *atomic.Bool
}

// Call implements mongo.Caller.
func (k killable) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if k.killed.Load() {
		return nil, errKilled
	}
	return k.Caller.Call(ctx, cmd)
}

// TestCutoverTable: whatever happens at a step of a cutover, while applications write, it can be resumed or cancelled;
// both sides are equal and have every write that was acknowledged, and the source is blocked only if the cutover is
// done, or its record says so. REPLICATOR_CUTOVER_TABLE=all plays every cell, otherwise a few are.
func TestCutoverTable(t *testing.T) {
	list := []cell{{record.Freeze, true, toolKilled, true}, {record.Drain, false, sourceFails, false}, {record.Convert, false, targetFails, false}}
	if os.Getenv("REPLICATOR_CUTOVER_TABLE") == "all" {
		list = tableCells()
	}
	for i := range list {
		t.Run(list[i].String(), func(t *testing.T) {
			(&moved{cell: list[i]}).run(t)
		})
	}
}

// moved is a link that is cut over.
type moved struct {
	cell
	source, target *mongosim.Set
	from, to       mongo.Caller

	mu sync.Mutex
	// acked are the documents whose insert was acknowledged.
	acked map[int32]bool
}

func (m *moved) run(t *testing.T) {
	t.Helper()
	m.acked = map[int32]bool{}
	source, target := mongosim.Options{Members: 3, Moods: oneRun, SetName: "src", Seed: 1, Dialect: "6.0"}, mongosim.Options{Members: 3, Moods: oneRun, SetName: "dst", Seed: 2, Dialect: "6.0"}
	switch m.incident { // as a server by default: longer than the lock and the lease of the tool last
	case sourceDies:
		source.HeartbeatInterval, source.ElectionTimeout = 2*time.Second, 10*time.Second
	case targetDies:
		target.HeartbeatInterval, target.ElectionTimeout = 2*time.Second, 10*time.Second
	case toolKilled, sourceFails, targetFails:
	}
	m.source, m.target = mongosim.StartTest(t, source), mongosim.StartTest(t, target)
	m.from, m.to = client.Open(t, driver.Config{URI: m.source.URI()}), client.Open(t, driver.Config{URI: m.target.URI()})
	must.Get(m.from.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{
		{Key: "createIndexes", Value: "c"},
		{Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "name", Value: "n"}, {Key: "unique", Value: true}},
			bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"}, {Key: "expireAfterSeconds", Value: 86400}},
		}},
	}))(t)}))(t)
	l := startLink(t, "--source="+m.source.URI(), "--target="+m.target.URI(), "--link=dr", "--include=shop", "--await=100ms", "--listen=127.0.0.1:0")
	awaitLink(l)
	clients := m.write(t)
	m.cutOver(t)
	done := m.finish(t)
	if done {
		clients() // they were refused
	} else {
		m.unblocked(t)
		clients()
		m.caughtUp(t)
	}
	l.kill(failure.ErrStopped)
	l.end()
	m.equal(t)
	if blocked := must.Get(cutover.Blocked(t.Context(), m.from))(t); blocked != done {
		t.Errorf("the source is blocked: %t, the cutover is done: %t", blocked, done)
	}
}

// write inserts documents until a write is blocked, or the function is called, which waits for the end.
func (m *moved) write(t *testing.T) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	var writers sync.WaitGroup
	begun := make(chan struct{}, 2)
	app := &anApplication{set: m.from}
	for n := range int32(2) {
		writers.Go(func() {
			tick := time.NewTicker(3 * time.Millisecond)
			defer tick.Stop()
			for id := n; ctx.Err() == nil; id += 2 {
				err := app.send(ctx, "shop", bson.D{
					{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "n", Value: id}}}}, majority,
				})
				if err == nil {
					m.mu.Lock()
					m.acked[id] = true
					m.mu.Unlock()
				}
				if id/2 == 10 {
					begun <- struct{}{}
				}
				if errors.Is(err, servererr.New(servererr.UserWritesBlocked, "")) {
					return
				}
				<-tick.C
			}
		})
	}
	<-begun
	<-begun
	t.Cleanup(writers.Wait)
	return func() {
		stop(errors.New("enough"))
		writers.Wait()
	}
}

// config is that of a process that works on the cutover; killed is set when it is killed.
func (m *moved) config(t *testing.T, killed *atomic.Bool) *cutover.Config {
	t.Helper()
	source, target := killable{m.from, killed}, killable{m.to, killed}
	store := must.Get(checkpoint.New(checkpoint.Config{Target: target, DB: "replicator", Link: "dr"}))(t)
	return &cutover.Config{
		Target: target, MetaDB: "replicator", Process: "tool",
		Drain: cutover.DrainConfig{Source: source, Cuts: request.New(store), Link: "dr", By: "me", Within: 2 * time.Minute, OnWait: func(what string) { t.Log("tool: " + what) }},
	}
}

// cutOver carries the cutover out as far as that goes with what happens.
func (m *moved) cutOver(t *testing.T) {
	t.Helper()
	var killed atomic.Bool
	cfg := m.config(t, &killed)
	happened := false
	cfg.Told = func(at record.Taken) {
		if happened || at.Step != m.step || at.Ended.IsZero() == m.end {
			return
		}
		happened = true
		switch m.incident {
		case toolKilled:
			killed.Store(true)
		case sourceFails:
			must.Succeed(t, m.source.StepDown(t.Context()))
		case targetFails:
			must.Succeed(t, m.target.StepDown(t.Context()))
		case sourceDies:
			must.Succeed(t, m.source.Primary().Kill())
		case targetDies:
			must.Succeed(t, m.target.Primary().Kill())
		}
	}
	var r *record.Record
	lock := cutover.LockConfig{Target: cfg.Target, MetaDB: "replicator", Link: "dr", By: "me", Why: "cutover", Said: cfg.Drain.OnWait}
	err := cutover.Locked(t.Context(), lock, func(ctx context.Context) (err error) {
		r, err = cutover.Run(ctx, cfg, &record.Options{Freeze: record.Block})
		return err
	})
	t.Logf("run: %v, %v", r, err)
	if !happened {
		t.Fatal("nothing has happened")
	}
	if killed.Load() && err == nil {
		t.Fatal("it has ended although it was killed")
	}
	if err != nil && (m.incident == sourceDies || m.incident == targetDies) {
		t.Fatal(err) // the operator has nothing to do
	}
}

// finish resumes or cancels an unfinished cutover, and reports whether the link is cut over.
func (m *moved) finish(t *testing.T) (done bool) {
	t.Helper()
	var never atomic.Bool
	cfg := m.config(t, &never)
	records := &record.Store{Target: m.to, DB: "replicator"}
	r := must.Get(records.Get(t.Context(), "dr"))(t)
	if r.Open() && m.cancel {
		_, err := cutover.Cancel(t.Context(), cfg)
		t.Logf("cancel: %v", err)
		if err != nil && !errors.Is(err, cutover.ErrCommitted) {
			t.Fatal(err)
		}
		r = must.Get(records.Get(t.Context(), "dr"))(t)
	}
	if r.Open() {
		if _, err := cutover.Resume(t.Context(), cfg); err != nil {
			t.Fatalf("resume: %v", err)
		}
		r = must.Get(records.Get(t.Context(), "dr"))(t)
	}
	if want := map[bool][]record.State{false: {record.Done}, true: {record.Done, record.Cancelled}}[m.cancel]; !slices.Contains(want, r.State) {
		t.Fatalf("the cutover is %s, want %v", r, want)
	}
	return r.State == record.Done
}

// unblocked checks that the source can be written to after a cancellation.
func (m *moved) unblocked(t *testing.T) {
	t.Helper()
	m.put(t, -1)
}

// put writes a document, and returns once it cannot be rolled back.
func (m *moved) put(t *testing.T, id int32) {
	t.Helper()
	must.Succeed(t, client.ThroughElections(t.Context(), func() error {
		return (&anApplication{set: m.from}).send(t.Context(), "shop", bson.D{
			{Key: "update", Value: "c"},
			{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "n", Value: id}}}, {Key: "upsert", Value: true}}}},
			majority,
		})
	}))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked[id] = true
}

// caughtUp waits until the link has applied a last document and each before it: those of a batch have no order.
func (m *moved) caughtUp(t *testing.T) {
	t.Helper()
	m.put(t, -2)
	m.equal(t)
}

// equal waits until both sides have the same documents, among them all that were acknowledged: a new primary reads
// older ones until an entry of its own is committed.
func (m *moved) equal(t *testing.T) {
	t.Helper()
	var differ string
	defer func() {
		if differ != "" {
			t.Error(differ)
		}
	}()
	awaitThat(t, func() bool {
		from, to := m.ids(t, m.from), m.ids(t, m.to)
		if differ = cmp.Diff(from, to); differ != "" {
			return false
		}
		for id := range m.acked {
			if !slices.Contains(to, id) {
				differ = fmt.Sprintf("%d was acknowledged, and is not there", id)
				return false
			}
		}
		return true
	}, "the sides do not become equal (-source +target)")
}

func (m *moved) ids(t *testing.T, c mongo.Caller) []int32 {
	t.Helper()
	find := must.Get(bson.Marshal(bson.D{
		{Key: "find", Value: "c"},
		{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}))(t)
	var docs []bson.Raw
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		docs, err = mongo.Retry{}.ReadAll(t.Context(), c, nil, "shop", find)
		return err
	}))
	ids := make([]int32, len(docs))
	for i, doc := range docs {
		ids[i] = doc.Lookup("_id").Int32()
	}
	return ids
}
