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

// TestAnswerWithin: a command whose connection is dead, though the server is not, is given up if the
// server would have answered it by now. Others may take any time: for a majority, an index, a lock.
func TestAnswerWithin(t *testing.T) {
	for _, tt := range []struct {
		name, host, cmd string
		lost            bool
	}{
		{"a statement", "", `{"update": "c", "txnNumber": 1, "autocommit": false}`, true},
		{"a commit", "", `{"commitTransaction": 1, "writeConcern": {"w": 1}, "autocommit": false}`, true},
		{"a read", "", `{"find": "c"}`, true},
		{"a list", "", `{"listIndexes": "c", "cursor": {}}`, true},
		{"a question about its state", "", `{"hello": 1}`, true},
		{"a question about its state, by the old name", "", `{"isMaster": 1}`, true},
		{"a question about its settings", "", `{"getParameter": 1, "x": 1}`, true},
		{"a write without a session", "", `{"update": "c"}`, false},
		{"a build", "", `{"createIndexes": "c"}`, false},
		{"a drop", "", `{"drop": "c"}`, false},
		{"a drop with a time limit", "", `{"drop": "c", "maxTimeMS": 60000, "writeConcern": {"w": "majority"}}`, true},
		{"a read of a member, which has limits of its own", "h", `{"find": "c"}`, false},
		{"a search of the oplog, for entries that are rare", "", `{"find": "oplog.rs", "filter": {"op": "i"}}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w Waits
				c := w.watch(&slow{takes: time.Hour}, "target", tt.host)
				began := time.Now()
				cmd := Command{DB: "db", Body: bsongen.FromJSON(t, tt.cmd)}
				if strings.Contains(tt.cmd, "oplog.rs") {
					cmd.DB = "local"
				}
				_, err := c.Call(t.Context(), cmd)
				_, silent := errors.AsType[*SilentError](err)
				wants := answerWithin
				if strings.Contains(tt.cmd, "maxTimeMS") {
					wants += time.Minute
				}
				switch took := time.Since(began); {
				case tt.lost && (!silent || servererr.Classify(err) != servererr.Lost || took != wants):
					t.Errorf("%v after %s", err, took)
				case !tt.lost && (err != nil || took != time.Hour):
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}

// TestAnswerWithinStops: who calls gives up earlier.
func TestAnswerWithinStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, enough)
		defer cancel()
		if _, err := w.watch(&slow{takes: time.Hour}, "target", "").Call(ctx, Command{DB: "db", Body: bsongen.FromJSON(t, `{"find": "c"}`)}); !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}

// narrow is a slow line to a server: a part of the command or of its reply passes each minute.
type narrow struct{ minutes int }

func (n narrow) Call(ctx context.Context, _ Command) (bson.Raw, error) {
	for range n.minutes {
		select {
		case <-time.After(time.Minute):
			Passing(ctx)()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, nil
}

// TestAnswerWithinPassing: a command that takes long because the line is slow is not given up, whoever else watches it.
func TestAnswerWithinPassing(t *testing.T) {
	for _, cmd := range []string{
		`{"insert": "c", "txnNumber": 1, "autocommit": false}`,
		`{"find": "c"}`,
		`{"drop": "c", "maxTimeMS": 600000}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			var link, part Waits
			c := part.watch(link.watch(narrow{minutes: 30}, "target", ""), "target", "")
			if _, err := c.Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, cmd)}); err != nil {
				t.Errorf("%s: %v", cmd, err)
			}
		})
	}
}

// TestAnswerWithinPassed: the time limit of a command begins when it is sent.
func TestAnswerWithinPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		sent := callFunc(func(ctx context.Context) error {
			Passing(ctx)()
			<-ctx.Done()
			return context.Cause(ctx)
		})
		began := time.Now()
		_, err := w.watch(sent, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, `{"drop": "c", "maxTimeMS": 600000}`)})
		if _, silent := errors.AsType[*SilentError](err); !silent || time.Since(began) != 10*time.Minute+answerWithin {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

type callFunc func(ctx context.Context) error

func (f callFunc) Call(ctx context.Context, _ Command) (bson.Raw, error) { return nil, f(ctx) }

// stalling answers commands one after the other, each after a time, and then none.
type stalling struct {
	slow
	answers int
}

func (s *stalling) CallAll(ctx context.Context, cmds []Command, each func(int, bson.Raw) error) error {
	for i := range cmds {
		if i == s.answers {
			s.takes = 24 * time.Hour
		}
		reply, err := s.Call(ctx, cmds[i])
		if err == nil {
			err = each(i, reply)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestSilentErrorSays: that the outcome is not known is said of what may have an effect, and of nothing else.
func TestSilentErrorSays(t *testing.T) {
	const unknown = "; whether the command was executed is not known"
	find, list, update := `{"find": "c", "txnNumber": 1, "autocommit": false}`, `{"listIndexes": "c"}`, `{"update": "c", "txnNumber": 1, "autocommit": false}`
	for _, tt := range []struct {
		cmds []string
		want string
	}{
		{[]string{list}, ""},
		{[]string{update}, unknown},
		{[]string{find, find}, ""},
		{[]string{update, find}, unknown},
		{[]string{find, update}, unknown},
	} {
		synctest.Test(t, func(t *testing.T) {
			var cmds []Command
			for _, cmd := range tt.cmds {
				cmds = append(cmds, Command{DB: "db", Body: bsongen.FromJSON(t, cmd)})
			}
			var w Waits
			server := &slow{takes: time.Hour}
			says := func(err error, within time.Duration) {
				t.Helper()
				if want := "no reply within " + within.String() + tt.want; err == nil || err.Error() != want {
					t.Errorf("%s: %v, want %s", tt.cmds, err, want)
				}
			}
			if len(cmds) > 1 {
				says(w.watch(server, "target", "").(Pipeliner).CallAll(t.Context(), cmds, nil), answerWithin)
				return
			}
			_, err := w.watch(server, "target", "").Call(t.Context(), cmds[0])
			says(err, answerWithin)
			_, err = Bounded{Caller: server, Limit: time.Second}.Call(t.Context(), cmds[0])
			says(err, time.Second)
		})
	}
}

// TestAnswerWithinEach: of several commands each has the time, and all of them together more.
func TestAnswerWithinEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		statement := Command{DB: "db", Body: bsongen.FromJSON(t, `{"update": "c", "txnNumber": 1, "autocommit": false}`)}
		for answers, wants := range map[int]time.Duration{4: 4 * (answerWithin - time.Second), 2: 2*(answerWithin-time.Second) + answerWithin} {
			var w Waits
			s := &stalling{answers: answers}
			s.takes = answerWithin - time.Second
			began := time.Now()
			err := w.watch(s, "target", "").(Pipeliner).CallAll(t.Context(), []Command{statement, statement, statement, statement}, func(int, bson.Raw) error { return nil })
			if took := time.Since(began); (err == nil) != (answers == 4) || took != wants {
				t.Errorf("%d answers: %v after %s, want %s", answers, err, took, wants)
			}
		}
	})
}

// primary answers hello, and all else after a time. Of its entries, a second apart, a majority has those up to committed.
type primary struct {
	slow
	began     time.Time
	committed func(since time.Duration) time.Duration
	asked     int
	deaf      bool // it does not answer the first hello: that connection is dead, too
}

func (p *primary) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	if first, _ := cmd.Body.IndexErr(0); first.Key() != "hello" {
		return p.slow.Call(ctx, cmd)
	}
	if p.asked++; p.deaf && p.asked == 1 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	since := time.Since(p.began)
	at := func(d time.Duration) bson.D {
		return bson.D{{Key: "ts", Value: bson.Timestamp{T: uint32(1000 + d/time.Second), I: 1}}, {Key: "t", Value: int64(1)}}
	}
	return bson.Marshal(bson.D{{Key: "lastWrite", Value: bson.D{{Key: "opTime", Value: at(since)}, {Key: "majorityOpTime", Value: at(p.committed(since))}}}})
}

// TestMajorityAnswers: a write for a majority waits as long as there is none, and is given up if a majority has more
// than it has written.
func TestMajorityAnswers(t *testing.T) {
	for name, cmd := range map[string]string{
		"a commit": `{"commitTransaction": 1, "writeConcern": {"w": "majority"}, "autocommit": false}`,
		"a write":  `{"update": "c", "txnNumber": 1, "writeConcern": {"w": "majority"}}`,
	} {
		for has, tt := range map[string]struct {
			committed func(since time.Duration) time.Duration
			lost      time.Duration // 0 for never
		}{
			"everything":    {func(since time.Duration) time.Duration { return since }, answerWithin + majorityEvery*3},
			"a minute less": {func(since time.Duration) time.Duration { return since - time.Minute }, answerWithin + time.Minute + majorityEvery*3},
			"nothing":       {func(time.Duration) time.Duration { return 0 }, 0},
		} {
			t.Run(name+", and a majority has "+has, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var w Waits
					p := &primary{began: time.Now(), committed: tt.committed}
					p.takes = time.Hour
					_, err := w.watch(p, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, cmd)})
					took := time.Since(p.began)
					_, silent := errors.AsType[*SilentError](err)
					if silent != (tt.lost > 0) || silent && took > tt.lost || !silent && (err != nil || took != time.Hour) {
						t.Errorf("%v after %s", err, took)
					}
				})
			})
		}
	}
}

// replying is a primary that answers a write one second after it has said that a majority has it.
type replying struct {
	primary
	said chan struct{}
}

func (r *replying) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	if first, _ := cmd.Body.IndexErr(0); first.Key() == "hello" {
		if r.asked == 1 {
			close(r.said)
		}
		return r.primary.Call(ctx, cmd)
	}
	select {
	case <-r.said:
		return r.primary.Call(ctx, cmd)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestMajorityJustThere: a write is not given up because its reply is still on its way when the primary says that a
// majority has it.
func TestMajorityJustThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		r := &replying{said: make(chan struct{})}
		r.began, r.takes, r.committed = time.Now(), time.Second, func(since time.Duration) time.Duration { return since }
		_, err := w.watch(r, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, `{"update": "c", "writeConcern": {"w": "majority"}}`)})
		if err != nil || r.asked != 2 {
			t.Errorf("%v, asked %d times", err, r.asked)
		}
	})
}

// TestMajorityDeaf: that the primary is asked on another dead connection delays only a little that a write is given up.
func TestMajorityDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		p := &primary{began: time.Now(), deaf: true, committed: func(since time.Duration) time.Duration { return since }}
		p.takes = time.Hour
		_, err := w.watch(p, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, `{"update": "c", "writeConcern": {"w": "majority"}}`)})
		if _, silent := errors.AsType[*SilentError](err); !silent || time.Since(p.began) > answerWithin+majorityWithin+majorityEvery*5 {
			t.Errorf("%v after %s", err, time.Since(p.began))
		}
	})
}

// TestMajorityBuild: a build of an index, which has nothing that a majority could have, is awaited however long it takes.
func TestMajorityBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		p := &primary{began: time.Now(), committed: func(since time.Duration) time.Duration { return since }}
		p.takes = 5 * time.Hour
		if _, err := w.watch(p, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, `{"createIndexes": "c", "writeConcern": {"w": "majority"}}`)}); err != nil {
			t.Errorf("%v after %s", err, time.Since(p.began))
		}
	})
}

// TestMajorityUnasked: a write for a majority that is answered in time asks the primary for nothing.
func TestMajorityUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		p := &primary{began: time.Now()}
		p.takes = answerWithin - time.Second
		_, err := w.watch(p, "target", "").Call(t.Context(), Command{DB: "db", Body: bsongen.FromJSON(t, `{"update": "c", "writeConcern": {"w": "majority"}}`)})
		if err != nil || p.asked != 0 {
			t.Errorf("%v, asked %d times", err, p.asked)
		}
	})
}
