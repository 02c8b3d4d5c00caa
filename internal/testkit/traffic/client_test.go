package traffic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// server answers every command as configured, and records them.
type server struct {
	answer func(n int, name string) error

	mu   sync.Mutex
	cmds []string
}

func (s *server) Call(ctx context.Context, c mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmds = append(s.cmds, c.DB+" "+c.Body.String())
	if s.answer != nil {
		if err := s.answer(len(s.cmds), c.Body.Index(0).Key()); err != nil {
			return nil, err
		}
	}
	return bson.Raw("\x05\x00\x00\x00\x00"), nil
}

// run runs one client and the keeper against a server, for some time of a bubble.
func run(t *testing.T, s *server, seed uint64) (Stats, error) {
	t.Helper()
	w, err := New(Config{Cluster: s, Clients: 1, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	soft, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	err = w.Run(t.Context(), soft)
	return w.Stats(), err
}

// TestSeed: a seed decides the commands of a client; another one differs.
func TestSeed(t *testing.T) {
	t.Parallel()
	did := func(seed uint64) string {
		var s server
		w, err := New(Config{Cluster: &s, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		c := w.client(0)
		k := keeper{w.client(-1)}
		for range 500 {
			if err := errors.Join(c.step(t.Context()), k.step(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		for _, cmd := range s.cmds {
			// Session ids differ from run to run.
			cmd, _, _ = strings.Cut(cmd, `"lsid"`)
			out.WriteString(cmd + "\n")
		}
		return out.String()
	}
	one, again, other := did(1), did(1), did(2)
	if one != again {
		t.Error("the same seed gave other commands")
	}
	if one == other {
		t.Error("another seed gave the same commands")
	}
	for _, word := range []string{
		"insert", "update", "delete", "findAndModify", "commitTransaction", "abortTransaction", "create", "drop", "renameCollection",
		"createIndexes", "dropIndexes", "collMod", "dropDatabase", "viewOn", "capped", "collation", "$rename", "$push", "$replaceWith",
	} {
		if !strings.Contains(one, `"`+word+`"`) {
			t.Errorf("%s was never tried", word)
		}
	}
}

// TestRetries: lost commands are retried until they succeed.
func TestRetries(t *testing.T) {
	for name, err := range map[string]error{
		"lost":        &mongo.LostError{Host: "a:1", Err: errors.New("reset")},
		"no primary":  servererr.New(servererr.NotWritablePrimary, "not primary"),
		"interrupted": servererr.New(servererr.InterruptedDueToReplStateChange, "stepping down"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{answer: func(n int, _ string) error {
				if n <= 20 {
					return err
				}
				return nil
			}}
			stats, err := run(t, s, 1)
			if err != nil || stats.Lost == 0 || stats.Writes == 0 || stats.Commands == 0 {
				t.Errorf("%s: %v, %+v", name, err, stats)
			}
		})
	}
}

// TestRefusals: expected ones are counted, others end it.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ int, name string) error {
			if name == "update" {
				return servererr.New(servererr.DuplicateKey, "duplicate")
			}
			return nil
		}}
		if stats, err := run(t, s, 1); err != nil || stats.Refused == 0 {
			t.Errorf("%v, %+v", err, stats)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ int, name string) error {
			if name == "delete" {
				return servererr.New(servererr.CommandNotFound, "no such command")
			}
			return nil
		}}
		_, err := run(t, s, 1)
		if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.CommandNotFound {
			t.Error(err)
		}
	})
}

// TestStop: when ctx is done it does not wait for anybody.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(int, string) error { return &mongo.LostError{Err: errors.New("away")} }}
		w, err := New(Config{Cluster: s})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		time.AfterFunc(time.Second, func() { stop(why) })
		began := time.Now()
		if err := w.Run(ctx, t.Context()); !errors.Is(err, why) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Clients: -1, Keys: -1, ChainBytes: -1})
	if n := strings.Count(fmt.Sprint(err), "traffic: "); n != 4 {
		t.Errorf("%d faults: %v", n, err)
	}
}
