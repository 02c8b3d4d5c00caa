package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/status"
)

// TestAskedAtOnce: where nobody answers at one of the places where a process may be, the other one is not asked later for that.
func TestAskedAtOnce(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	var late atomic.Bool
	var once sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "127.") {
			select {
			case <-asked:
			case <-r.Context().Done():
				select {
				case <-asked:
				default:
					late.Store(true)
				}
			}
			return
		}
		once.Do(func() { close(asked) })
		must.Succeed(t, json.NewEncoder(w).Encode(status.Snapshot{Link: "dr", Lease: &status.Lease{Process: "p"}, Verdict: status.Verdict{Name: "steady"}}))
	}))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	places := []place{{"127.0.0.1:" + port, ""}, {"localhost:" + port, ""}}
	s, at, err := new(asker).first(t.Context(), places, "dr", "p")
	if err != nil || s.Link != "dr" || at != places[1].address || late.Load() {
		t.Errorf("asked %s: %v; one after the other: %t", at, err, late.Load())
	}
	// Where both answer, the first one is preferred.
	for range 20 {
		if _, at, err := (&asker{next: time.Minute}).first(t.Context(), []place{places[1], {"[::ffff:127.0.0.1]:" + port, ""}}, "dr", "p"); err != nil || at != places[1].address {
			t.Fatalf("asked %s: %v", at, err)
		}
	}
	// Where nobody is at one of them, the next one is asked at once.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, at, err := (&asker{next: time.Hour}).first(ctx, []place{{"127.0.0.1:1", ""}, places[1]}, "dr", "p"); err != nil || at != places[1].address {
		t.Errorf("asked %s: %v", at, err)
	}
	if _, _, err := new(asker).first(t.Context(), []place{{"127.0.0.1:1", ""}, {"localhost:1", ""}}, "dr", "p"); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "localhost:1") {
		t.Errorf("nobody is there: %v", err)
	}
}

// TestStatusAsksAtOnce: the processes of several links are asked concurrently, and the links keep their order.
func TestStatusAsksAtOnce(t *testing.T) {
	t.Parallel()
	target := client.Open(t, driver.Config{URI: mongosim.StartTest(t, mongosim.Options{TTLInterval: -1}).URI(), AppName: mongosim.Stage})
	names := []string{"a", "b", "c"}
	var asked, late atomic.Int64
	all := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == int64(len(names)) {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
			late.Add(1)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	begin := oplog.NewOpTime(100, 1, 1)
	for _, name := range names {
		store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name, Process: srv.Listener.Addr().String() + ":1:1"}))(t)
		must.Succeed(t, store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: begin, FetchFrom: begin, Source: checkpoint.Source{SetName: "rs", ReplicaSetID: bson.RawValue{}}}))
		must.Get(store.Acquire(t.Context(), 0))(t)
	}
	c := &statusCommand{asker: &asker{}}
	c.MetadataDB = "replicator"
	var got []string
	for _, line := range must.Get(c.look(t.Context(), target))(t) {
		got = append(got, line.Link)
	}
	if !slices.Equal(got, names) || asked.Load() < int64(len(names)) || late.Load() > 0 {
		t.Errorf("%v: %d asked, %d of them one after the other", got, asked.Load(), late.Load())
	}
}
