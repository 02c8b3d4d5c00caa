package pipeline_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
)

// fail ends a scenario whose act could not be done: with all goroutines, then all that was
// announced, and at the end, where it is seen first, where each link and each part stands.
func (w *world) fail(pos, line string, err error) {
	w.t.Helper()
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to memory
	w.t.Logf("goroutines, also those of other tests:\n%s", &stacks)
	stand := w.explain()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		w.t.Logf("%s %s: %s %s", e.at.Format("15:04:05.000"), e.link, e.event.Message(), e.event.LogValue())
	}
	w.t.Fatalf("%s: %s: %v\nat %s:\n%s", pos, line, err, time.Now().Format("15:04:05.000"), strings.Join(stand, "\n"))
}

// explain says where each link and each part stands, in a few lines each.
func (w *world) explain() (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("source: newest %s", w.newest())
	for _, name := range slices.Sorted(maps.Keys(w.links)) {
		s := w.links[name].p.Snapshot()
		say("link %s: %s since %s (%s), attempt %d, reads %q", name, s.State, s.Since.Format("15:04:05.000"), s.Reason, s.Attempts, s.SourceHost)
		say("  applied %s, durable %s, fetched %s, lag %s, ops %d", s.Log.Applied, s.Log.Durable, s.Fetched, s.Lag, s.Log.Ops)
		say("  buffer: %d replies, %d bytes held, waits for room: %t; lanes: %d bytes; the applier waits for %q", s.Buffer.Replies, s.Buffer.Buffered, s.Buffer.Waiting,
			s.Applier.WindowBytes, s.Applier.WaitsFor)
		if d := s.Spool; d != nil {
			say("  spooled: %s to %s, %d bytes, full: %t %s", d.First, d.Last, d.Bytes, d.Full, d.Why)
		}
		if c := s.Copy; c != nil {
			say("  copy %d: %s, stop %s", c.Number, c.Phase, c.Stop)
		}
		if s.Stands != nil {
			say("  nothing applied since %s: %s", s.Stands.Since.Format("15:04:05.000"), s.Stands.Why)
		}
		for _, wait := range s.Waits[:min(3, len(s.Waits))] {
			say("  %s", wait.String())
		}
		if s.LastError != "" {
			say("  last error at %s: %.300s", s.LastErrorAt.Format("15:04:05.000"), s.LastError)
		}
	}
	return append(append(lines, w.lastSteps()...), w.recorded()...)
}

// lastSteps says when each link, and each part, wrote a checkpoint last, and announced anything.
func (w *world) lastSteps() (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	checkpoints, others := map[string]string{}, map[string]string{}
	for _, e := range w.events {
		of, what := "link "+e.link, e.event
		if part, ok := what.(resync.PartEvent); ok {
			of, what = "part of "+string(part.NS), part.Event
		}
		text := fmt.Sprintf("%s %s %.200s", e.at.Format("15:04:05.000"), what.Message(), what.LogValue())
		if _, ok := what.(checkpoint.Advanced); ok {
			checkpoints[of] = text
		} else {
			others[of] = text
		}
	}
	for _, of := range slices.Sorted(maps.Keys(others)) {
		lines = append(lines, fmt.Sprintf("%s, last: %s", of, others[of]))
		if c := checkpoints[of]; c != "" {
			lines = append(lines, "  "+c)
		}
	}
	return lines
}

// recorded says what the metadata say, if the target answers.
func (w *world) recorded() (lines []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 5*time.Second)
	defer cancel()
	store, err := w.metadata()
	if err != nil {
		return []string{err.Error()}
	}
	if asked, err := request.New(store).Read(ctx); err != nil {
		lines = append(lines, "the requests: "+err.Error())
	} else {
		for _, r := range asked.Resync {
			lines = append(lines, fmt.Sprintf("request for %s: %s %q", r.NS, r.State, r.Why))
		}
	}
	find := bson.D{{Key: "find", Value: "links"}, {Key: "projection", Value: bson.D{{Key: "applied", Value: 1}, {Key: "keptBack", Value: 1}, {Key: "copy.phase", Value: 1}}}}
	body, err := bson.Marshal(find)
	if err != nil {
		return append(lines, err.Error())
	}
	reply, err := w.target.conn.Call(ctx, mongo.Command{DB: "replicator", Body: body})
	if err != nil {
		return append(lines, "the links: "+err.Error())
	}
	docs, _ := reply.Lookup("cursor", "firstBatch").Array().Values() // none, if it is not one
	for _, doc := range docs {
		lines = append(lines, fmt.Sprintf("recorded: %.400s", doc))
	}
	return lines
}

// TestExplains: what a scenario prints at the end when it fails names where the link stands.
func TestExplains(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("nothing is to happen but what is said")}
	w := newWorld(t, opts, opts)
	w.play("source insert shop.a 1..10\nstart copy\nawait running\nawait caught-up\nresync shop.a\nawait resync done shop.a\nsource insert shop.a 11..20\nawait steady\nawait caught-up")
	text := strings.Join(w.explain(), "\n")
	for _, want := range []string{
		"source: newest ", "link a: steady since ", "applied " + w.links["a"].p.Snapshot().Log.Applied.String(), "the applier waits for \"\"", "copy 1: ",
		"link a, last: ", "part of shop.a, last: ", "checkpoint written", "request for shop.a: done", "recorded: {\"_id\": \"mirror\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\n"); n > 35 {
		t.Errorf("%d lines are too many for the end of a log:\n%s", n, text)
	}
}
