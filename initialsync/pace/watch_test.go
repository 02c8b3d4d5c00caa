package pace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// watched is a Pacer that runs.
type watched struct {
	*Pacer
	source, target server
	told           journal
}

// watch runs f with a Pacer that watches two healthy servers.
func watch(t *testing.T, f func(t *testing.T, w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{}
		w.source.say(bsongen.FromJSON(t, recorded(t)), nil)
		w.target.say(bsongen.FromJSON(t, recorded(t)), nil)
		registry := prometheus.NewRegistry()
		w.Pacer = newPacer(t, Config{Source: &w.source, Target: &w.target, Observer: w.told.observe, Registry: registry})
		ctx, end := context.WithCancelCause(t.Context())
		ended := errors.New("ended")
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		f(t, w)
		end(ended)
		if err := <-done; !errors.Is(err, ended) {
			t.Errorf("Run returned %v", err)
		}
		if s := w.Status(); s.Factor != 1 || s.Why != "" || w.shown(clone.Source)+w.shown(clone.Target) != 0 {
			t.Errorf("after the end: %+v", s)
		}
	})
}

// shown is the metric of a side's pressure.
func (w *watched) shown(side clone.Side) float64 {
	return testutil.ToFloat64(w.metrics.signs.WithLabelValues(string(side)))
}

// rounds lets the sides be asked n times.
func (w *watched) rounds(n int) {
	time.Sleep(time.Duration(n) * 2 * time.Second)
	synctest.Wait()
}

// events returns the events since the last call, as text.
func (w *watched) events() string {
	var list []string
	for _, e := range w.told.take() {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %v", e.Message(), e.LogValue())))
	}
	return strings.Join(list, "\n")
}

func TestSlowedAndRecovered(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.rounds(10)
		if s, events := w.Status(), w.events(); s.Factor != 1 || events != "" {
			t.Errorf("%+v %s", s, events)
		}
		w.source.say(bsongen.FromJSON(t, `{"globalLock": {"currentQueue": {"total": 40}}}`), nil)
		w.rounds(1)
		if s, events := w.Status(), w.events(); s != (Status{Factor: 0.5, Side: clone.Source, Why: "40 operations are queued"}) ||
			events != "copy is slowed down [side=source why=40 operations are queued factor=0.5]" {
			t.Errorf("%+v %s", s, events)
		}
		if n := w.shown(clone.Source); n != 1 {
			t.Errorf("pressure of the source: %v", n)
		}
		// The target goes first where both have enough.
		w.target.say(bsongen.FromJSON(t, `{"flowControl": {"isLagged": true}}`), nil)
		w.rounds(100)
		if s := w.Status(); s.Factor != 1./16 || s.Side != clone.Target {
			t.Errorf("%+v", s)
		}
		// Once for each step down, and no more.
		if events := w.events(); strings.Count(events, "\n") != 2 || !strings.HasSuffix(events, "factor=0.0625]") {
			t.Errorf("%s", events)
		}
		// A rise, and a fall below the earlier minimum, is announced once.
		w.target.say(bsongen.FromJSON(t, `{}`), nil)
		w.source.say(bsongen.FromJSON(t, `{}`), nil)
		w.rounds(4)
		if s := w.Status(); s.Factor != 5./16 || s.Why == "" {
			t.Errorf("%+v", s)
		}
		w.target.say(bsongen.FromJSON(t, `{"flowControl": {"isLagged": true}}`), nil)
		w.rounds(1)
		w.target.say(bsongen.FromJSON(t, `{}`), nil)
		w.rounds(1)
		if s, events := w.Status(), w.events(); s.Factor != 5./32+1./16 || events != "" {
			t.Errorf("%+v %s", s, events)
		}
		w.rounds(12)
		if s, events := w.Status(), w.events(); s.Factor >= 1 || events != "" {
			t.Errorf("%+v %s", s, events)
		}
		w.rounds(1)
		if s, events := w.Status(), w.events(); s != (Status{Factor: 1}) || events != "copy is at full speed again []" {
			t.Errorf("%+v %s", s, events)
		}
		if n := testutil.ToFloat64(w.metrics.slowed); n != 1 {
			t.Errorf("slowed down %v times", n)
		}
	})
}

// TestRefused: a server that refuses is reported once, and asked again later.
func TestRefused(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.source.say(nil, servererr.New(servererr.Unauthorized, "not authorized on admin to execute command"))
		w.target.say(nil, servererr.New(servererr.NotWritablePrimary, "not primary"))
		w.rounds(140) // less than 5 minutes
		if events := w.events(); !strings.HasPrefix(events, "no privilege for serverStatus") || strings.Contains(events, "\n") ||
			!strings.Contains(events, "side=source") {
			t.Errorf("%s", events)
		}
		if n := w.source.questions(); n != 1 {
			t.Errorf("the source was asked %d times", n)
		}
		if n := w.target.questions(); n != 140 {
			t.Errorf("the target was asked %d times", n)
		}
		w.rounds(20)
		if n := w.source.questions(); n != 2 || w.events() != "" {
			t.Errorf("the source was asked %d times", n)
		}
		w.source.say(bsongen.FromJSON(t, `{"flowControl": {"isLagged": true}}`), nil)
		w.rounds(150)
		if s := w.Status(); s.Side != clone.Source {
			t.Errorf("%+v", s)
		}
	})
}

// TestSilent: a server that does not answer is neither healthy nor under pressure.
// After a while the factor rises again.
func TestSilent(t *testing.T) {
	for name, fall := range map[string]func(*server){
		"error": func(s *server) { s.say(nil, &mongo.LostError{Host: "x:1", Err: errors.New("reset")}) },
		"hangs": (*server).hang,
	} {
		watch(t, func(t *testing.T, w *watched) {
			w.target.say(bsongen.FromJSON(t, `{"flowControl": {"isLagged": true}}`), nil)
			w.rounds(2)
			fall(&w.target)
			w.rounds(silences)
			if s := w.Status(); s.Factor != 0.25 || w.shown(clone.Target) != 1 {
				t.Errorf("%s: %+v, shown %v", name, s, w.shown(clone.Target))
			}
			w.rounds(30)
			if s := w.Status(); s.Factor != 1 || w.shown(clone.Target) != 0 {
				t.Errorf("%s, later: %+v, shown %v", name, s, w.shown(clone.Target))
			}
			if events := w.events(); strings.Count(events, "slowed") != 2 || strings.Count(events, "full speed") != 1 {
				t.Errorf("%s: %s", name, events)
			}
		})
	}
}

// work is some rounds of work with so many nanoseconds for each byte.
func (w *watched) work(rounds int, side clone.Side, cost float64) {
	for range rounds {
		for i := range 8 {
			docs, bytes := 1000, (1+i)<<20
			w.Took(side, time.Duration(cost*float64(bytes+docs*docCost+callCost)), docs, bytes)
		}
		w.rounds(1)
	}
}

func TestLatency(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.work(10, clone.Target, 10)
		w.work(10, clone.Target, 25) // two and a half times as long is none
		if s := w.Status(); s.Factor != 1 {
			t.Errorf("%+v", s)
		}
		w.work(20, clone.Target, 10)
		w.work(2, clone.Target, 40)
		w.work(1, clone.Target, 10)
		w.work(2, clone.Target, 40)
		if s := w.Status(); s.Factor != 1 {
			t.Errorf("after two samples: %+v", s)
		}
		w.work(1, clone.Target, 40)
		if s := w.Status(); s.Factor != 0.5 || s.Side != clone.Target || !strings.HasPrefix(s.Why, "writing takes 3.") {
			t.Errorf("%+v", s)
		}
		// Each sample counts once.
		w.rounds(5)
		if s := w.Status(); s.Factor != 0.5 {
			t.Errorf("without a sample: %+v", s)
		}
		// A long time without samples is not a sign of pressure.
		w.rounds(30)
		if s := w.Status(); s.Factor != 1 {
			t.Errorf("idle: %+v", s)
		}
		// A permanently slower cluster becomes the baseline.
		w.events()
		w.work(600, clone.Target, 100)
		if s := w.Status(); s.Factor != 1 || !strings.Contains(w.events(), "factor=0.0625") {
			t.Errorf("for good: %+v", s)
		}
		w.work(10, clone.Source, 10)
		w.work(3, clone.Source, 60)
		if s := w.Status(); s.Side != clone.Source || !strings.HasPrefix(s.Why, "reading takes 5.") && !strings.HasPrefix(s.Why, "reading takes 6.") {
			t.Errorf("%+v", s)
		}
	})
}

// TestSmallWork: a few small reads, however slow, are not a sample.
func TestSmallWork(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.work(10, clone.Target, 10)
		for range 100 {
			w.Took(clone.Target, time.Second, 3, 500)
			w.rounds(1)
		}
		if s := w.Status(); s.Factor != 1 {
			t.Errorf("%+v", s)
		}
	})
}
