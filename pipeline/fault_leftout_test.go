package pipeline_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/status"
)

// startTold starts a link that begins with a copy and reports its progress to the
// source.
func (w *world) startTold(mode feedback.Mode, member int) {
	w.t.Helper()
	cfg := pipeline.Config{
		Writers: 4, RetryMax: time.Second, Await: time.Second, FlushDocs: 10, CoalesceWindow: 10,
		Feedback: mode, MemberID: member, KeepAlive: 100 * time.Millisecond,
	}
	cfg.Copy.Wanted, cfg.Copy.SpoolDir = true, w.spool("")
	must.Succeed(w.t, w.start("a", cfg, scope.Config{}))
}

// addMember adds the member that stands for the mirror.
func (w *world) addMember() int {
	w.t.Helper()
	config, err := feedback.ReadConfig(w.t.Context(), w.source.conn)
	if err != nil {
		w.t.Fatal(err)
	}
	next, id, err := feedback.AddMember(config, feedback.NewMember{ID: -1, Host: "127.0.0.1:1"})
	if err == nil {
		err = feedback.Reconfigure(w.t.Context(), w.source.conn, next)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// mirrored writes a document and reports whether the write concern of the mirror was
// satisfied in time.
func (w *world) mirrored(coll string, id int, within time.Duration) bool {
	w.t.Helper()
	body, err := bson.Marshal(bson.D{
		{Key: "insert", Value: coll},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: within.Milliseconds()}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	reply, err := w.source.conn.Call(w.t.Context(), mongo.Command{DB: "shop", Body: body})
	if err != nil {
		w.t.Fatal(err)
	}
	return mongo.ConcernError(reply) == nil
}

// leftOut waits until the link's document says that a collection is left out, and its
// copy has been dropped on the target, and returns that element of the document.
func (w *world) leftOut(ns string) checkpoint.LeftOut {
	w.t.Helper()
	store, err := w.metadata()
	if err != nil {
		w.t.Fatal(err)
	}
	var out checkpoint.LeftOut
	err = w.untilOf(w.links["a"], ns+" to be left out", func() bool {
		st, found, err := store.Load(w.t.Context())
		if err != nil || !found || len(st.LeftOut) != 1 {
			return false
		}
		out = st.LeftOut[0]
		n, err := w.target.count(w.t.Context(), ns)
		return err == nil && n < 300 && string(out.NS) == ns
	})
	if err != nil {
		w.fail("fault", "", err)
	}
	return out
}

// positions returns all reported positions of the link: none may exceed the position
// that everything mirrored has reached.
func (w *world) positions() map[string]oplog.OpTime {
	w.t.Helper()
	s := w.links["a"].p.Snapshot()
	all := map[string]oplog.OpTime{"snapshot applied": s.Progress.Applied, "snapshot durable": s.Progress.Durable}

	registry := prometheus.NewRegistry()
	tracker, err := status.New(status.Config{Link: "mirror", Registry: registry})
	if err != nil {
		w.t.Fatal(err)
	}
	tracker.Follow(w.links["a"].p.Snapshot)
	w.mu.Lock()
	for _, e := range w.events {
		tracker.Observe(e.event)
	}
	w.mu.Unlock()
	at := func(o *status.OpTime) oplog.OpTime {
		if o == nil {
			return oplog.OpTime{}
		}
		return oplog.NewOpTime(o.T, o.I, o.Term)
	}
	var shown status.Snapshot
	must.Succeed(w.t, json.Unmarshal(must.Get(json.Marshal(tracker.Snapshot()))(w.t), &shown))
	all["status applied"], all["status durable"] = at(shown.OpTimes.Applied), at(shown.OpTimes.Durable)
	all["status checkpoint"] = at(shown.Checkpoint.Applied)
	if shown.Consistent {
		w.t.Error("status: consistent")
	}
	families, err := registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case f.GetName() == "replicator_optime_seconds" && slices.Contains([]string{"applied", "durable"}, m.GetLabel()[0].GetValue()):
				all["metric "+m.GetLabel()[0].GetValue()] = oplog.NewOpTime(uint32(m.GetGauge().GetValue()), 0, 1)
			case f.GetName() == "replicator_consistent" && m.GetGauge().GetValue() != 0:
				w.t.Error("metrics: consistent")
			}
		}
	}

	store, err := w.metadata()
	if err != nil {
		w.t.Fatal(err)
	}
	st, _, err := store.Load(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	all["metadata, and replicator links"] = st.Reached().Applied
	if says, err := w.act("consistent"); err != nil || says != "consistent: false" {
		w.t.Error("metadata: ", says, err)
	}
	all["document for the source"] = w.toldDocument()
	return all
}

// toldDocument returns the position in the source's document, null if there is none.
func (w *world) toldDocument() oplog.OpTime {
	w.t.Helper()
	body, err := bson.Marshal(bson.D{{Key: "find", Value: "positions"}})
	if err != nil {
		w.t.Fatal(err)
	}
	var reply bson.Raw
	answered := func() bool { // after an election, too
		reply, err = w.source.conn.Call(w.t.Context(), mongo.Command{DB: "replicator", Body: body})
		return err == nil
	}
	if w.within(patience, "an answer", answered) != nil {
		w.t.Fatal(err)
	}
	doc, ok := reply.Lookup("cursor", "firstBatch", "0", "applied").DocumentOK()
	if !ok {
		return oplog.OpTime{}
	}
	t, i := doc.Lookup("ts").Timestamp()
	return oplog.NewOpTime(t, i, doc.Lookup("t").AsInt64())
}

func startSets(t *testing.T) *world {
	t.Helper()
	return newWorld(t, mongosim.Options{Members: 3, Seed: 1, TTLInterval: -1}, mongosim.Options{Members: 3, Seed: 2, TTLInterval: -1})
}

// TestPositionWhileLeftOut: while a collection is copied again, no reported position
// exceeds the one at which it was left out, no write concern is satisfied by a write
// that the target does not have, also after a restart, and a drain reports that not
// everything is applied.
func TestPositionWhileLeftOut(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]feedback.Mode{"member": feedback.Member, "document": feedback.Document} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startSets(t)
			member, next := 0, 9000
			// met reports whether a write to a collection that is not left out is
			// reported.
			met := func(within time.Duration) bool {
				next++
				if mode == feedback.Member {
					return w.mirrored("b", next, within)
				}
				w.play(fmt.Sprintf("source insert shop.b %d..%[1]d", next))
				want := w.newest()
				return w.within(within, "the document", func() bool { return !w.toldDocument().Before(want) }) == nil
			}
			if mode == feedback.Member {
				member = w.addMember()
			}
			w.play("source insert shop.a 1..400\nsource insert shop.b 1..10")
			w.startTold(mode, member)
			w.play("await caught-up")
			if !met(patience) {
				t.Fatal("the mirror is not told of")
			}
			w.play("limit 1\nresync shop.a\nawait told copies again: shop.a")
			out := w.leftOut("shop.a")
			check := func(when string) {
				t.Helper()
				w.play("source update shop.b 1..10\nawait applied")
				if met(1500 * time.Millisecond) {
					t.Errorf("%s: the source was told of what the target does not have", when)
				}
				for where, at := range w.positions() {
					// Earlier reports are not taken back.
					if at.TS.T > out.Since.TS.T+1 || !strings.Contains(where, "metric") && !strings.Contains(where, "document") && at.After(out.Since) {
						t.Errorf("%s: %s: %s, left out at %s", when, where, at, out.Since)
					}
				}
				s := w.links["a"].p.Snapshot()
				if s.State != monitor.CatchingUp || !strings.Contains(s.Reason, "shop.a") || s.Lag <= 0 {
					t.Errorf("%s: %s, %q, lag %s", when, s.State, s.Reason, s.Lag)
				}
			}
			// Optimes have a resolution of seconds.
			must.Succeed(t, w.until("the next second", func() bool { return time.Now().Unix() > int64(out.Since.TS.T)+2 }))
			check("copied again")
			w.play("drain")
			if err := w.links["a"].err; !errors.Is(err, failure.ErrStopped) || failure.Classify(err).Code != failure.ExitNotDrained || !strings.Contains(err.Error(), "shop.a") {
				t.Errorf("drained: %v", err)
			}
			w.startTold(mode, member)
			w.play("await running")
			check("after a restart")
			w.play("limit 0\nawait resync done shop.a")
			if !met(patience) {
				t.Error("the mirror is not told of any more")
			}
			w.play("await caught-up\nconsistent\nequal\ndrain")
			if err := w.links["a"].err; err != nil {
				t.Errorf("drained: %v", err)
			}
		})
	}
}
