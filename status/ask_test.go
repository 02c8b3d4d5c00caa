package status

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// blocker is a source that answers whether its writes are blocked, or nothing.
type blocker struct {
	mu     sync.Mutex // guards the rest
	docs   bson.A
	silent bool
}

func (b *blocker) set(silent bool, docs ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.docs, b.silent = docs, silent
}

// Call implements mongo.Caller.
func (b *blocker) Call(_ context.Context, c mongo.Command) (bson.Raw, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent || c.DB != "config" {
		return nil, errors.New("no answer")
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "config.user_writes_critical_sections"}, {Key: "firstBatch", Value: append(bson.A{}, b.docs...)},
	}}})
}

// cancelled is a target that has no record of a cutover.
func cancelled(cmd string) (bson.Raw, error) {
	if cmd != "find" {
		return nil, errors.New("no answer")
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.cutovers"}, {Key: "firstBatch", Value: bson.A{}}}}})
}

// TestCutoverEnds: a cutover that is shown, and the block of the source, are not shown any more a moment after they have
// ended.
func TestCutoverEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &blocker{}
		source.set(false, bson.D{{Key: "_id", Value: ""}, {Key: "blockUserWrites", Value: true}})
		tr := newTracker(t, Config{Link: "l", Source: source, Target: callerFunc(cancelled), MetaDB: "replicator"})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		ctx, stop := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tr.Run(ctx) }()
		time.Sleep(askEvery + followEvery/2)
		cutting(true)(t, tr, &p)
		if s := tr.Snapshot(); s.Verdict.Name != "cutover-interrupted" || s.Source.WritesBlocked == nil || !*s.Source.WritesBlocked {
			t.Errorf("%+v", s.Verdict)
		}
		source.set(false)
		time.Sleep(followEvery)
		synctest.Wait()
		if s := tr.Snapshot(); s.Cutover != nil || s.Source.WritesBlocked == nil || *s.Source.WritesBlocked {
			t.Errorf("%+v, and the cutover is %+v", s.Verdict, s.Cutover)
		}
		cutting(false)(t, tr, &p)
		time.Sleep(followEvery)
		synctest.Wait()
		if s := tr.Snapshot(); s.Cutover != nil {
			t.Errorf("%+v", s.Cutover)
		}
		stop(context.Canceled)
		<-done
	})
}

// TestStandsByInterruptedCutover: while a cutover that no process works on keeps every process from leading, those that
// stand by are the only ones that can say so: it is their verdict, by which alerts are made. While a process works on
// it, or another one leads, they stand by.
func TestStandsByInterruptedCutover(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		interrupted, led bool
		want             string
		level            Level
	}{
		{"interrupted", true, false, "cutover-interrupted", Attention},
		{"worked on", false, false, "standby-free", Working},
		{"another process leads", true, true, "standby", Good},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := newTracker(t, Config{Link: "l"})
				var p fakePipeline
				tr.Follow(p.Snapshot)
				cutting(tt.interrupted)(t, tr, &p)
				p.set(func(s *monitor.Snapshot) {
					s.State, s.Process, s.Reason = monitor.Standby, "vm:b", "a cutover converts its deferred options"
					if tt.led {
						s.Leader = &monitor.Leader{Process: "vm:a", Term: 4, Since: time.Now().Add(-time.Minute), Until: time.Now().Add(9 * time.Second), Renews: true}
					}
				})
				if v := tr.Snapshot().Verdict; v.Name != tt.want || v.Level != tt.level {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// TestSourceBlocked: a source whose writes are blocked is shown within ten seconds, by processes that
// stand by too, until it takes writes again; what it has not answered for long is not known.
func TestSourceBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &blocker{}
		tr := newTracker(t, Config{Link: "l", Source: source})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		ctx, stop := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tr.Run(ctx) }()
		shows := func(state monitor.State, want string, blocked bool) {
			t.Helper()
			p.set(func(s *monitor.Snapshot) {
				steadily(s)
				s.State = state
				s.HeardAt = time.Now()
			})
			synctest.Wait()
			s := tr.Snapshot()
			got := "unknown"
			if on := s.Source.WritesBlocked; on != nil {
				got = map[bool]string{true: "blocked", false: "open"}[*on]
			}
			also := s.Verdict.Name == "source-blocked"
			for _, text := range s.Verdict.Also {
				also = also || text == "Writes of applications to the source are blocked."
			}
			if got != want || also != blocked {
				t.Errorf("%s: %s, want %s; the verdict is %+v", state, got, want, s.Verdict)
			}
		}
		shows(monitor.Steady, "open", false)
		source.set(false, bson.D{{Key: "_id", Value: ""}, {Key: "blockUserWrites", Value: true}})
		time.Sleep(askEvery)
		shows(monitor.Steady, "blocked", true)
		shows(monitor.Standby, "blocked", true)
		source.set(true)
		time.Sleep((staleAnswers + 1) * askEvery)
		shows(monitor.Steady, "unknown", false)
		source.set(false)
		time.Sleep(askEvery)
		shows(monitor.Steady, "open", false)
		stop(context.Canceled)
		<-done
	})
}
