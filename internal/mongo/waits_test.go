package mongo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// slow answers each command after a time, with an error if it is set.
type slow struct {
	takes time.Duration
	err   error
}

func (s *slow) Call(ctx context.Context, _ Command) (bson.Raw, error) {
	select {
	case <-time.After(s.takes):
		return nil, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *slow) CallAll(ctx context.Context, cmds []Command, _ func(int, bson.Raw) error) error {
	_, err := s.Call(ctx, cmds[0])
	return err
}

func ask(t *testing.T, c Caller, json string) {
	t.Helper()
	_, _ = c.Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, json)})
}

func waiting(w *Waits) string {
	var lines []string
	for _, one := range w.Longer(5 * time.Second) {
		lines = append(lines, one.String())
	}
	return strings.Join(lines, "\n")
}

// TestWaitsInFlight: a command without a reply is reported after a while, with the cause.
func TestWaitsInFlight(t *testing.T) {
	for _, tt := range []struct{ name, cmd, want string }{
		{
			"a commit", `{"commitTransaction": 1, "writeConcern": {"w": "majority"}}`,
			"waiting for the target's member h since 00:00:00 UTC: commitTransaction on db: a majority of the members has to have it",
		},
		{"a build", `{"createIndexes": "c"}`, "waiting for the target's member h since 00:00:00 UTC: createIndexes on db.c: an index is built"},
		{"a drop", `{"drop": "c"}`, "drop on db.c: it needs a lock that something else has"},
		{"a read", `{"find": "c"}`, "find on db.c: it does not answer, or a lock or a prepared transaction is in the way"},
		{"another", `{"ping": 1}`, "ping on db: it does not answer"},
		{"a read that may take long", `{"getMore": {"$numberLong": "1"}, "collection": "c", "maxTimeMS": 3000}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w Waits
				c := w.watch(&slow{takes: 7 * time.Second}, "target", "h")
				go ask(t, c, tt.cmd)
				<-time.After(5 * time.Second)
				if got := waiting(&w); got != "" {
					t.Errorf("after 5 s: %s", got)
				}
				<-time.After(time.Second)
				if got := waiting(&w); (got == "") != (tt.want == "") || !strings.HasSuffix(got, tt.want) {
					t.Errorf("got %q, want %q", got, tt.want)
				}
				<-time.After(time.Second)
				synctest.Wait()
				if got := waiting(&w); got != "" {
					t.Errorf("with an answer: %s", got)
				}
			})
		})
	}
}

// TestWaitsBelowLimit: a time limit is not an expected duration: a command that waits for a
// lock is reported before the limit ends.
func TestWaitsBelowLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		c := w.watch(&slow{takes: time.Minute, err: servererr.New(servererr.MaxTimeMSExpired, "no")}, "target", "")
		go func() {
			for range 3 {
				ask(t, c, `{"drop": "c", "maxTimeMS": 60000}`)
			}
		}()
		<-time.After(6 * time.Second)
		if got, want := waiting(&w), "waiting for the target since 00:00:00 UTC: drop on db.c: it needs a lock that something else has"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, try := range []string{"second", "third"} {
			<-time.After(time.Minute)
			if got := waiting(&w); !strings.Contains(got, "since 00:00:00 UTC: drop on db.c: refused: ") {
				t.Errorf("during the %s try: %q", try, got)
			}
		}
		<-time.After(50 * time.Second) // before its end
		if got := waiting(&w); !strings.Contains(got, "since 00:00:00 UTC: drop on db.c: refused: ") {
			t.Errorf("at the end of the third try: %q", got)
		}
		<-time.After(time.Minute)
	})
}

// TestWaitsNotForWhatWasLeft: a command that failed and is not retried does not wait: on a
// member that is no longer used, or with a closed cursor.
func TestWaitsNotForWhatWasLeft(t *testing.T) {
	for name, tries := range map[string]int{"once": 1, "several times at once": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w Waits
				s := &slow{takes: time.Second, err: servererr.New(servererr.InterruptedDueToReplStateChange, "no")}
				c := w.watch(s, "source", "h")
				for range tries {
					ask(t, c, `{"getMore": {"$numberLong": "1"}, "collection": "c"}`)
				}
				for range int(forgetAfter / time.Second) {
					<-time.After(time.Second)
					if got := waiting(&w); got != "" {
						t.Fatalf("got %q", got)
					}
				}
			})
		})
	}
}

// TestWaitsNotForMembersThatAreDown: a member that is down is checked forever, and nothing
// waits for that; a search for a primary is reported.
func TestWaitsNotForMembersThatAreDown(t *testing.T) {
	for host, want := range map[string]bool{"h": false, "": true} {
		for _, name := range []string{"hello", "isMaster"} {
			synctest.Test(t, func(t *testing.T) {
				var w Waits
				c := w.watch(&slow{takes: 10 * time.Second}, "source", host)
				go ask(t, c, `{"`+name+`": 1}`)
				<-time.After(6 * time.Second)
				if got := waiting(&w); (got != "") != want {
					t.Errorf("%s to %q: %q", name, host, got)
				}
				<-time.After(5 * time.Second)
			})
		}
	}
}

// TestWaitsPastPatience: a read that waits for data is reported if it takes longer than it
// was asked to wait.
func TestWaitsPastPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		c := w.watch(&slow{takes: 10 * time.Second}, "source", "h")
		go ask(t, c, `{"getMore": {"$numberLong": "1"}, "collection": "c", "maxTimeMS": 3000}`)
		<-time.After(8*time.Second + 1)
		if got := waiting(&w); !strings.Contains(got, "getMore on db.c") {
			t.Errorf("got %q", got)
		}
		<-time.After(2 * time.Second)
	})
}

// TestWaitsRefused: a command that is retried waits, too: from its first error until it
// succeeds, fails permanently, or is not retried any more.
func TestWaitsRefused(t *testing.T) {
	busy := servererr.New(servererr.LockTimeout, "no ticket")
	for _, tt := range []struct {
		name string
		then func(t *testing.T, s *slow, c Caller)
		over bool
	}{
		{"carried out", func(t *testing.T, s *slow, c Caller) { s.err = nil; ask(t, c, `{"drop": "c"}`) }, true},
		{"refused for good", func(t *testing.T, s *slow, c Caller) {
			s.err = servererr.New(servererr.Unauthorized, "no")
			ask(t, c, `{"drop": "c"}`)
		}, true},
		{"lost", func(t *testing.T, s *slow, c Caller) {
			s.err = &LostError{Err: errors.New("x")}
			ask(t, c, `{"drop": "c"}`)
		}, true},
		{"over", func(t *testing.T, s *slow, c Caller) {
			s.err = servererr.New(servererr.NoSuchTransaction, "no")
			ask(t, c, `{"drop": "c"}`)
		}, true},
		{"another one carried out", func(t *testing.T, s *slow, c Caller) { s.err = nil; ask(t, c, `{"drop": "d"}`) }, false},
		{"given up", func(*testing.T, *slow, Caller) { <-time.After(forgetAfter + time.Second) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w Waits
				s := &slow{err: busy}
				c := w.watch(s, "target", "")
				for range 6 {
					ask(t, c, `{"drop": "c"}`)
					<-time.After(time.Second)
				}
				want := "waiting for the target since 00:00:00 UTC: drop on db.c: refused: " + busy.Error()
				if got := waiting(&w); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				tt.then(t, s, c)
				if got := waiting(&w); (got == "") != tt.over {
					t.Errorf("then: %q", got)
				}
			})
		})
	}
}

// TestWaitsPipeliner: Watch returns a Pipeliner if its Caller is one, and only then.
func TestWaitsPipeliner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		p, ok := w.watch(&slow{takes: 7 * time.Second}, "target", "").(Pipeliner)
		if !ok {
			t.Fatal("it is none")
		}
		go func() {
			_ = p.CallAll(t.Context(), []Command{{DB: "db", Body: bsongen.FromJSON(t, `{"update": "c"}`)}}, nil)
		}()
		<-time.After(6 * time.Second)
		if got := waiting(&w); !strings.Contains(got, "update on db.c") {
			t.Errorf("got %q", got)
		}
		if _, ok := w.watch(struct{ Caller }{&slow{}}, "target", "").(Pipeliner); ok {
			t.Error("it became one")
		}
		<-time.After(time.Second)
	})
}

func TestWaitsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		over := w.Start(Wait{Side: "source", Command: "hello", Namespace: "admin", For: "nobody has answered"})
		<-time.After(6 * time.Second)
		if got := waiting(&w); got != "waiting for the source since 00:00:00 UTC: hello on admin: nobody has answered" {
			t.Errorf("got %q", got)
		}
		over()
		if got := waiting(&w); got != "" {
			t.Errorf("over: %q", got)
		}
	})
}

// TestSilent: a side is silent from the first unanswered command on, even if that is given up. Any
// answer ends it, also a refusal; a note does not.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		answers := w.watch(&slow{}, "target", "")
		hangs := w.watch(&slow{takes: time.Hour}, "target", "")
		refuses := w.watch(&slow{err: &servererr.Error{Code: servererr.LockTimeout}}, "target", "")
		since := func() time.Duration {
			if at := w.Silent("target"); !at.IsZero() {
				return time.Since(at)
			}
			return -1
		}
		wants := func(what string, want time.Duration) {
			t.Helper()
			if got := since(); got != want {
				t.Errorf("%s: silent for %s, want %s", what, got, want)
			}
		}
		wants("nothing was asked", -1)
		ask(t, answers, `{"ping": 1}`)
		time.Sleep(10 * time.Second)
		wants("answered", -1)
		ctx, give := context.WithTimeout(t.Context(), 2*time.Second)
		defer give()
		_, _ = hangs.Call(ctx, Command{DB: "db", Body: bsongen.FromJSON(t, `{"ping": 1}`)})
		wants("given up", 2*time.Second)
		over := w.Start(Wait{Side: "target", Command: "createIndexes", For: "a build"})
		over()
		wants("something was noted", 2*time.Second)
		go ask(t, hangs, `{"ping": 1}`)
		time.Sleep(3 * time.Second)
		wants("asked again", 5*time.Second)
		ask(t, refuses, `{"ping": 1}`)
		wants("refused", -1)
		time.Sleep(time.Minute)
		wants("not asked again, while one hangs", -1)
	})
}

// TestSilentUnlessAsked: nothing that is not asked is silent.
func TestSilentUnlessAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		ctx, give := context.WithTimeout(t.Context(), time.Second)
		defer give()
		_, _ = w.watch(&slow{takes: time.Hour}, "target", "").Call(ctx, Command{DB: "db", Body: bsongen.FromJSON(t, `{"ping": 1}`)})
		time.Sleep(40 * time.Second)
		if w.Silent("target").IsZero() {
			t.Error("it was asked, and did not answer")
		}
		time.Sleep(10 * time.Second)
		if at := w.Silent("target"); !at.IsZero() {
			t.Errorf("silent since %s, although nothing is asked", at)
		}
	})
}
