package pace

import (
	"context"
	"os"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
)

// server gives the configured answer.
type server struct {
	mu    sync.Mutex
	reply bson.Raw
	err   error
	asked int
	hangs bool
}

func (s *server) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	s.asked++
	reply, err, hangs := s.reply, s.err, s.hangs
	s.mu.Unlock()
	if cmd.DB != "admin" || cmd.Body.Index(0).Key() != "serverStatus" {
		panic("asked for " + cmd.Body.String())
	}
	if hangs {
		<-ctx.Done()
		return nil, &mongo.LostError{Host: "a:1", Err: context.Cause(ctx)}
	}
	return reply, err
}

func (s *server) say(reply bson.Raw, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply, s.err, s.hangs = reply, err, false
}

func (s *server) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = true
}

func (s *server) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// journal keeps events.
type journal struct {
	mu   sync.Mutex
	list []event.Event
}

func (j *journal) observe(e event.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, e)
}

// take returns the events since the last call.
func (j *journal) take() []event.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.list
	j.list = nil
	return list
}

// recorded is the reply of an idle server.
func recorded(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/serverStatus.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func newPacer(t testing.TB, cfg Config) *Pacer {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
