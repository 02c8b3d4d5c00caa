package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestSlowSourceAtFailover: when a leader ends, the source takes 2.5 s for an answer (a long
// line, a loaded disk), or does not answer at all. It is followed within seconds: no member of
// the source has said that its oplog begins too late. Until then the one that stands by does
// not say that another process leads.
func TestSlowSourceAtFailover(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"slow": 2500 * time.Millisecond, "away": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone := mongosim.NoMoods("replies take as long as the test says")
			w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: alone}, mongosim.Options{Members: 1, Seed: 2, Moods: alone})
			w.play("start a lease=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a\nstart b lease=2s\nawait standby b")
			cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "alwaysOn"}, {Key: "data", Value: bson.D{
				{Key: "failCommands", Value: bson.A{"find"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: int32(takes.Milliseconds())},
			}}}
			if _, err := w.source.on(t.Context(), 0, "admin", cmd); err != nil {
				t.Fatal(err)
			}
			a, b := w.links["a"], w.links["b"]
			a.stop(failure.ErrStopped)
			w.awaitEnd(a)
			saidFree := false
			if err := w.within(25*time.Second, "b to lead", func() bool {
				s := b.p.Snapshot()
				if s.State != monitor.Standby {
					return true
				}
				free := strings.HasPrefix(s.Reason, "the lease is free")
				if saidFree && (!free || s.Leader != nil) {
					t.Errorf("the lease is free, and the reason is %q, the leader %+v", s.Reason, s.Leader)
					return true
				}
				saidFree = saidFree || free
				return false
			}); err != nil {
				t.Errorf("%v: state %s, %q", err, b.p.Snapshot().State, b.p.Snapshot().Reason)
			}
			if !saidFree || !w.heard("the lease is free, and is left to") {
				t.Error("it led before the source could be asked")
			}
			if gaveUp := w.heard("this process leads although no member of the source has answered"); gaveUp != (name == "away") {
				t.Errorf("no member has answered: %t", gaveUp)
			}
		})
	}
}

// TestAwaySourceAtFailoverOfCopy: the source does not answer when the leader of a copy ends. A
// process without its spool does not lead before it knows whether the source still has the
// oplog, which it may lack; once a member says that it has, it continues the copy.
func TestAwaySourceAtFailoverOfCopy(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("the source is away as long as the test says")
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: alone}, mongosim.Options{Members: 1, Seed: 2, Moods: alone})
	w.play("source insert shop.a 1..600\nstart a copy flush=20 workers=1 ops=20 lease=2s\nawait copied 40\nstart b copy spool=other flush=20 workers=1 lease=2s\nawait standby b")
	find := func(mode string) {
		cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}, {Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"find"}}, {Key: "errorCode", Value: int32(6)},
		}}}
		if _, err := w.source.on(t.Context(), 0, "admin", cmd); err != nil {
			t.Fatal(err)
		}
	}
	find("alwaysOn")
	a, b := w.links["a"], w.links["b"]
	a.stop(failure.ErrStopped)
	w.awaitEnd(a)
	leads := func() bool { return b.p.Snapshot().State != monitor.Standby }
	if err := w.within(14*time.Second, "b to lead", leads); err == nil {
		t.Errorf("it leads before the source has answered: %s", b.p.Snapshot().State)
	}
	find("off")
	if err := w.untilOf(b, "it to go on", func() bool { return b.p.Snapshot().State == monitor.InitialSync }); err != nil {
		t.Fatalf("%v: state %s, %q", err, b.p.Snapshot().State, b.p.Snapshot().Reason)
	}
	if c := b.p.Snapshot().Copy; c == nil || c.Number != 1 {
		t.Errorf("the copy is %+v", c)
	}
}
