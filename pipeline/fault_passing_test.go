package pipeline_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
)

// refusing makes the target refuse the next commands of a name with a code, times of
// them, or all if that is negative. It returns how many were refused since the last
// call.
func (w *world) refusing(command string, code, times int) (refused int64) {
	w.t.Helper()
	point := func(mode any) int64 {
		reply, err := w.target.on(w.t.Context(), 0, "admin", bson.D{
			{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: mode},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{command}}, {Key: "errorCode", Value: code}}},
		})
		if err != nil {
			w.t.Fatal(err)
		}
		return reply.Lookup("count").AsInt64()
	}
	before := w.refused
	w.refused = point("off")
	switch {
	case times > 0:
		point(bson.D{{Key: "times", Value: times}})
	case times < 0:
		point("alwaysOn")
	}
	return w.refused - before
}

// attemptsEnded returns the errors of the attempts that have ended with one.
func (w *world) attemptsEnded() (ended []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e, ok := e.event.(pipeline.AttemptEnded); ok {
			ended = append(ended, e.Err)
		}
	}
	return ended
}

// TestRefusedOnce: reads of the target's catalog, fencing of lanes and records of a
// copy are retried after a transient refusal: no attempt ends.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	w.play("source insert shop.a 1..200\nsource run shop {\"createIndexes\": \"a\", \"indexes\": [{\"key\": {\"x\": 1}, \"name\": \"x\"}]}")
	for _, code := range []int{11601, 251, 365, 50} {
		for _, command := range []string{"listDatabases", "listCollections", "listIndexes", "find", "update", "insert", "commitTransaction"} {
			if command == "commitTransaction" && code != 251 {
				continue // The outcome of the transaction is unknown then.
			}
			met := fmt.Sprintf("%s refused with %d", command, code)
			before := len(w.attemptsEnded())
			w.refusing(command, code, 1)
			w.play(fmt.Sprintf("start copy link=%s%d flush=20 drop-existing", command, code))
			w.play("await caught-up\nequal\ndrain")
			// The source writes a no-op every ten seconds, which may be on disk only.
			if err := w.links["a"].err; err != nil && !errors.Is(err, failure.ErrStopped) {
				t.Errorf("%s: %v", met, err)
			}
			if w.refusing("", 0, 0) == 0 {
				t.Errorf("%s: it was not met", met)
			}
			if ended := w.attemptsEnded()[before:]; len(ended) > 0 {
				t.Errorf("%s: an attempt ended: %v", met, ended)
			}
		}
	}
}

// TestDrainRefused: a drain continues after a transient refusal: everything that was
// read is applied, and the run ends in order.
func TestDrainRefused(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	for _, code := range []int{251, 365, 11600, 11602, 10107} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, opts, opts)
			w.play("start writers=2 flush=5 checkpoint=1h\nawait running\nsource insert shop.a 1..10\nawait applied")
			w.refusing("commitTransaction", code, -1)
			w.play("source insert shop.a 11..400\nawait fetched")
			l := w.links["a"]
			fetched := l.p.Snapshot().Fetched
			l.drain(nil)
			var refused int64
			if err := w.untilOf(l, "refusals", func() bool {
				refused += w.refusing("commitTransaction", code, -1)
				return refused > 2 && len(w.attemptsEnded()) > 2
			}); err != nil {
				w.fail("drain", "", err)
			}
			w.refusing("commitTransaction", code, 0)
			if err := w.end("ended", l); err != nil {
				w.fail("drain", "", err)
			}
			if l.err != nil {
				t.Errorf("it ended with: %v", l.err)
			}
			if l.reached.Before(fetched) {
				t.Errorf("the checkpoint is at %s, fetched was %s", l.reached, fetched)
			}
			if n, err := w.target.count(t.Context(), "shop.a"); err != nil || n != 400 {
				t.Errorf("%d documents, %v", n, err)
			}
		})
	}
}

// TestDrainRefusedDelay: with a delay, a drain that is refused applies the entries that are due.
func TestDrainRefusedDelay(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	w.play("start writers=2 flush=5 delay=2s checkpoint=1h\nawait running")
	w.refusing("commitTransaction", 11602, -1)
	w.play("source insert shop.a 1..40")
	l := w.links["a"]
	ended := func(n int) {
		t.Helper()
		if err := w.untilOf(l, "refusals", func() bool { return len(w.attemptsEnded()) > n }); err != nil {
			w.fail("drain", "", err)
		}
	}
	ended(0) // They were due.
	w.play("source insert shop.a 41..80\nawait fetched")
	l.drain(nil)
	ended(len(w.attemptsEnded()) + 1)
	w.refusing("commitTransaction", 11602, 0)
	if err := w.end("ended", l); err != nil || l.err != nil {
		w.fail("drain", "", errors.Join(err, l.err))
	}
	if n, err := w.target.count(t.Context(), "shop.a"); err != nil || n < 40 {
		t.Errorf("%d documents, %v", n, err)
	}
}

// TestDrainRefusedForGood: a drain that is refused permanently ends with its deadline.
func TestDrainRefusedForGood(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	cfg := pipeline.Config{Writers: 2, RetryMax: time.Second, CheckpointInterval: time.Hour}
	must.Succeed(t, w.start("a", cfg, scope.Config{}))
	l := w.links["a"]
	w.play("await running")
	w.refusing("commitTransaction", 11602, -1)
	w.play("source insert shop.a 1..10\nawait fetched")
	l.drain(nil)
	if err := w.untilOf(l, "refusals", func() bool { return len(w.attemptsEnded()) > 1 }); err != nil {
		w.fail("drain", "", err)
	}
	l.stop(failure.ErrStopped)
	if err := w.end("ended", l); err != nil || !errors.Is(l.err, failure.ErrStopped) {
		t.Error(err, l.err)
	}
}
