package status

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// records is a target that has the history of one link.
type records struct {
	mu     sync.Mutex // guards doc and away
	doc    bson.D
	away   bool
	writes atomic.Int64
}

func (m *records) Call(_ context.Context, c mongo.Command) (bson.Raw, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, errors.New("away")
	}
	out := bson.D{{Key: "ok", Value: 1}}
	switch c.Body.Index(0).Key() {
	case "find":
		batch := bson.A{}
		if m.doc != nil {
			batch = append(batch, m.doc)
		}
		out = append(out, bson.E{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: batch}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.history"}}})
	case "update":
		var s struct {
			U bson.D
			Q struct {
				Term struct {
					Not struct {
						Gt int64 `bson:"$gt"`
					} `bson:"$not"`
				}
			}
		}
		if err := bson.Unmarshal(c.Docs[0], &s); err != nil {
			return nil, err
		}
		if term, ok := m.termOf(); ok && term > s.Q.Term.Not.Gt {
			fault := bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 11000}, {Key: "errmsg", Value: "E11000 duplicate key"}}
			out = append(out, bson.E{Key: "n", Value: 0}, bson.E{Key: "writeErrors", Value: bson.A{fault}})
			break
		}
		m.doc = append(bson.D{{Key: "_id", Value: "l"}}, s.U...)
		m.writes.Add(1)
		out = append(out, bson.E{Key: "n", Value: 1})
	default:
		out = append(out, bson.E{Key: "setName", Value: "rs1"})
	}
	return bson.Marshal(out)
}

// term is that of the document.
func (m *records) term() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	term, _ := m.termOf()
	return term
}

func (m *records) termOf() (int64, bool) {
	for _, e := range m.doc {
		if term, ok := e.Value.(int64); ok && e.Key == "term" {
			return term, true
		}
	}
	return 0, false
}

func (m *records) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// process is a process of a link whose history is stored.
type process struct {
	*Tracker
	fakePipeline
	end func() // in order
}

func (m *records) process(t *testing.T, told event.Observer) *process {
	t.Helper()
	p := &process{Tracker: newTracker(t, Config{Link: "l", Target: m, MetaDB: "replicator", Observer: told})}
	p.Follow(func() monitor.Snapshot {
		s := p.fakePipeline.Snapshot()
		if !s.HeardAt.IsZero() {
			s.HeardAt = time.Now() // its source answers all the time
		}
		return s
	})
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	p.end = sync.OnceFunc(func() { stop(nil); <-done })
	t.Cleanup(p.end)
	time.Sleep(500 * time.Millisecond) // nothing is checked at the time of a tick
	return p
}

// leads lets a process lead under a term, with a lag.
func (p *process) leads(term int64, lag time.Duration) {
	p.set(func(s *monitor.Snapshot) {
		busy(s)
		s.Term, s.Lag, s.HeardAt = term, lag, time.Now()
	})
}

func (p *process) standsBy() {
	p.set(func(s *monitor.Snapshot) {
		*s = monitor.Snapshot{Link: "l", State: monitor.Standby, Since: time.Now(), Process: "x", Term: 3, Leader: &monitor.Leader{Process: "y"}}
	})
}

// lags are the known lags of the last hour.
func (p *process) lags(t *testing.T) map[float32]int {
	t.Helper()
	view := must.Get(p.History(time.Hour))(t)
	out := map[float32]int{}
	for _, v := range view.Series[history.LagSeconds] {
		if !math.IsNaN(float64(v)) {
			out[v]++
		}
	}
	return out
}

// TestHistoryOutlivesProcesses: what a process has seen is shown by one that stands by, by
// the next one that leads, and a late write of the first one does not destroy it.
func TestHistoryOutlivesProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m records
		first, second := m.process(t, nil), m.process(t, nil)
		first.leads(1, 2*time.Second)
		second.standsBy()
		first.Observe(memberAtFault("is down"))
		time.Sleep(10*time.Minute + time.Second)
		// A point has 5 s: a few less than 120, as the last minute is not stored yet.
		if got := second.lags(t); got[2] < 100 || len(got) != 1 {
			t.Errorf("a process that stands by shows %v", got)
		}
		if m.writes.Load() > 10 || m.writes.Load() < 9 {
			t.Errorf("%d writes in ten minutes", m.writes.Load())
		}
		// A client that follows the second one gets it, after the events that the second one had before the merge.
		list := second.EventsAfter(0)
		at := slices.IndexFunc(list, func(e history.Event) bool { return e.Message == "member unusable" })
		if at < 1 || list[at].Kind != history.OfSource || list[at].Fields["host"] != "c:3" || list[at].ID > list[0].ID {
			t.Errorf("%+v", list)
		}
		// The first one ends in order, and the second one takes over at once.
		first.leads(1, 9*time.Second)
		time.Sleep(20 * time.Second)
		before := m.writes.Load()
		second.leads(2, 30*time.Second)
		first.end()
		if m.writes.Load() != before+1 {
			t.Errorf("%d writes at the end", m.writes.Load()-before)
		}
		time.Sleep(5 * time.Minute)
		if got := second.lags(t); got[2] < 115 || got[9] < 3 || got[30] < 55 {
			t.Errorf("the next leader shows %v", got)
		}
		// One that does not know that it has lost the link.
		late := m.process(t, nil)
		late.leads(1, time.Hour)
		time.Sleep(5 * time.Minute)
		late.end()
		third := m.process(t, nil)
		time.Sleep(time.Minute)
		third.standsBy()
		time.Sleep(time.Minute)
		if got := third.lags(t); got[2] < 115 || got[30] < 110 || got[3600] != 0 {
			t.Errorf("after a late write: %v", got)
		}
		if term := m.term(); term != 2 {
			t.Errorf("the term is %d", term)
		}
	})
}

// TestDamagedHistory: what cannot be used is said once, is started over, and stops nothing.
func TestDamagedHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &records{doc: bson.D{{Key: "_id", Value: "l"}, {Key: "version", Value: 99}, {Key: "term", Value: "x"}}}
		var said atomic.Int64
		p := m.process(t, func(e event.Event) {
			if strings.Contains(e.Message(), "history") && e.Level() == slog.LevelWarn && strings.Contains(e.LogValue().String(), "another release") {
				said.Add(1)
			}
		})
		p.leads(1, time.Second)
		time.Sleep(3 * time.Minute)
		p.end()
		if m.writes.Load() < 2 || said.Load() != 1 {
			t.Errorf("%d writes, said %d times", m.writes.Load(), said.Load())
		}
		next := m.process(t, nil)
		next.leads(2, 3*time.Second)
		time.Sleep(10 * time.Second)
		if got := next.lags(t); got[1] == 0 || got[3] == 0 {
			t.Errorf("%v", got)
		}
	})
}

// TestLaterTerm: a process that goes on leading, and whose history cannot be stored because the
// stored one has a later term (metadata that were restored in part, or are damaged), says so
// once, also if it has said that the stored one cannot be used.
func TestLaterTerm(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]int{"of another release": 99, "damaged": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &records{doc: bson.D{{Key: "_id", Value: "l"}, {Key: "version", Value: version}, {Key: "term", Value: int64(50)}}}
				var unusable, lost atomic.Int64
				p := m.process(t, func(e event.Event) {
					switch message := e.Message(); {
					case strings.Contains(message, "cannot be used"):
						unusable.Add(1)
					case strings.Contains(message, "cannot be stored") && strings.Contains(e.LogValue().String(), "later leader"):
						lost.Add(1)
					}
				})
				p.leads(1, time.Second)
				time.Sleep(4 * time.Minute)
				if unusable.Load() != 1 || lost.Load() != 0 {
					t.Errorf("after 4 minutes: said %d times that it cannot be used, %d times that it cannot be stored", unusable.Load(), lost.Load())
				}
				time.Sleep(10 * time.Minute)
				if m.writes.Load() != 0 || unusable.Load() != 1 || lost.Load() != 1 {
					t.Errorf("%d writes; said %d times that it cannot be used, %d times that it cannot be stored", m.writes.Load(), unusable.Load(), lost.Load())
				}
			})
		})
	}
}

// TestTargetAway: while the target is away nothing is lost, and what it has is not
// overwritten by a process that could not read it.
func TestTargetAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m records
		first := m.process(t, nil)
		first.leads(1, 2*time.Second)
		time.Sleep(3 * time.Minute)
		first.end()
		var said atomic.Int64
		m.set(func() { m.away = true })
		p := m.process(t, func(e event.Event) {
			if strings.Contains(e.Message(), "cannot be stored") {
				said.Add(1)
			}
		})
		p.leads(2, 5*time.Second)
		before := m.writes.Load()
		time.Sleep(4 * time.Minute)
		if said.Load() != 0 {
			t.Error("said at once")
		}
		time.Sleep(4 * time.Minute)
		if said.Load() != 1 {
			t.Errorf("said %d times", said.Load())
		}
		m.set(func() { m.away = false })
		time.Sleep(30 * time.Second)
		if m.writes.Load() != before {
			t.Error("stored at once, before a minute")
		}
		time.Sleep(time.Minute)
		if got := p.lags(t); got[2] < 30 || got[5] < 90 || m.writes.Load() != before+1 {
			t.Errorf("%v, %d writes", got, m.writes.Load()-before)
		}
	})
}

// TestUnknownHistory: unknown values are null, and a process that stands by has no figures
// of its own.
func TestUnknownHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m records
		p := m.process(t, nil)
		p.leads(1, 0)
		p.set(func(s *monitor.Snapshot) { s.HeardAt = time.Time{} })
		time.Sleep(30 * time.Second)
		p.standsBy()
		time.Sleep(30 * time.Second)
		var out struct {
			StepSeconds int
			From        int64
			Series      map[string][]*float64
			Events      []map[string]any
		}
		must.Succeed(t, json.Unmarshal(must.Get(json.Marshal(must.Get(p.History(time.Hour))(t)))(t), &out))
		if out.StepSeconds != 5 || len(out.Series) != int(history.Count) || out.From != time.Now().Unix()/5*5-719*5 {
			t.Errorf("%d s from %d", out.StepSeconds, out.From)
		}
		known := 0
		for name, list := range out.Series {
			if len(list) != 720 {
				t.Errorf("%s has %d points", name, len(list))
			}
			for _, v := range list {
				switch {
				case v == nil:
				case name == "lagSeconds", strings.HasPrefix(name, "latency"), strings.HasPrefix(name, "copy"):
					t.Errorf("%s is %v", name, *v)
				case name == "bufferBytes":
					known++
				}
			}
		}
		if known < 5 || known > 7 {
			t.Errorf("%d points of 30 s", known)
		}
		if _, err := p.History(2 * time.Hour); err == nil {
			t.Error("there is a history of two hours")
		}
	})
}

// TestKinds: events are of the kind that an operator would look for.
func TestKinds(t *testing.T) {
	t.Parallel()
	const reason = "reason"
	line := func(message string, why ...string) event.Event {
		return event.NewLine(slog.LevelWarn, message, slog.String(reason, strings.Join(why, "")))
	}
	for _, tt := range []struct {
		e    event.Event
		want history.Kind
	}{
		{applier.CommandApplied{Command: "drop"}, history.OfDDL},
		{line("index built before the source's commit"), history.OfDDL},
		{syncsource.SourceChosen{}, history.OfSource},
		{line("member unusable"), history.OfSource},
		{line("primary of the source changed"), history.OfSource},
		{line("the oplog is spooled to disk until the target has caught up"), history.OfTarget},
		{line("waiting", mongo.Wait{Side: sideSource, Command: "find"}.String()), history.OfSource},
		{line("waiting", mongo.Wait{Side: sideTarget, Command: "insert"}.String()), history.OfTarget},
		{checkpoint.Acquired{}, history.OfLease},
		{line("the lease is lost, standing by"), history.OfLease},
		{line("the lease was not acquired, standing by"), history.OfLease},
		{line("taking the link over: writes of the process that has its lease are refused from now on, and it stands by"), history.OfLease},
		{line("target diverged"), history.OfDivergence},
		{monitor.Consistent{}, history.OfCopy},
		{resync.Began{}, history.OfCopy},
		{line("the copy is void and starts again"), history.OfCopy},
		{VerdictChanged{}, history.Other},
	} {
		if got := kindOf(tt.e); got != tt.want {
			t.Errorf("%s is of %s, want %s", tt.e.Message(), got, tt.want)
		}
	}
	tr := newTracker(t, Config{})
	tr.Observe(applier.CommandApplied{Command: "drop", NS: "d.c"})
	tr.Observe(checkpoint.Advanced{})
	tr.Observe(event.NewLine(slog.LevelInfo, "lease"))
	list := tr.EventsAfter(0)
	if len(list) != 2 || list[0].Kind != history.OfDDL || list[0].Level != "INFO" || list[0].Fields["ns"] != "d.c" || list[1].Kind != history.OfLease {
		t.Errorf("%+v", list)
	}
}
