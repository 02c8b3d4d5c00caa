package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// lateLink is a target in a process that is suspended when it is about to create its link.
type lateLink struct {
	pipeline.Cluster
	once sync.Once
	// before is the first command of the transaction instead of the insert.
	before bool
	// asleep is closed when it is suspended, wake when it is to continue.
	asleep, wake chan struct{}
}

func (s *lateLink) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	_, begins := cmd.Body.Lookup("startTransaction").BooleanOK()
	inserts := simcaller.Name(cmd) == "insert" && cmd.Body.Lookup("insert").StringValue() == metadata.Links
	if s.before && begins || !s.before && inserts {
		s.once.Do(func() {
			close(s.asleep)
			<-s.wake
		})
	}
	return s.Cluster.Call(ctx, cmd)
}

// lateCreations says of each case whether the process is suspended before the transaction that creates the link.
var lateCreations = map[string]bool{"before the insert": false, "before the transaction": true}

// aboutToCreate returns a world whose process a is suspended when it is about to create the link.
func aboutToCreate(t *testing.T, before bool) (*world, *lateLink) {
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	s := &lateLink{before: before, asleep: make(chan struct{}), wake: make(chan struct{})}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		s.Cluster = c
		return s
	}
	w.play(`
		source insert shop.a 1..50
		start a copy drop-existing lease=10s
	`)
	<-s.asleep
	w.asTarget = nil
	return w, s
}

// TestLateLink: a process is suspended when it is about to create the link. Another one creates it, copies the source, and is
// drained; then the link is removed, and applications use the target. When the first one continues, it neither creates the link again
// nor drops what it would copy.
func TestLateLink(t *testing.T) {
	t.Parallel()
	for name, before := range lateCreations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := aboutToCreate(t, before)
			w.play(`
				start b copy spool=other lease=10s
				await caught-up b
				drain b
				source insert shop.a 51..60
			`)
			must.Succeed(t, must.Get(w.metadata())(t).Remove(t.Context()))
			w.forget()
			w.hold("copy: creating collections")
			close(s.wake)
			a := w.links["a"]
			if err := w.until("the first process to end, or to drop what it would copy", func() bool {
				select {
				case <-a.done:
					return true
				default:
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.kept == w.free
			}); err != nil {
				w.fail("fault", "", err)
			}
			defer w.release()
			if n := must.Get(w.target.count(t.Context(), "shop.a"))(t); n != 50 {
				t.Errorf("the collection has %d documents after the first process has continued", n)
			}
			if links := must.Get(checkpoint.List(t.Context(), w.target.conn, ""))(t); len(links) != 0 {
				t.Fatalf("it has created %v", links)
			}
			w.awaitEnd(a)
			if !errors.Is(a.err, checkpoint.ErrRemoved) || failure.Classify(a.err).Code != failure.ExitCheck {
				t.Errorf("it ended with: %v", a.err)
			}
		})
	}
}

// TestLateLinkExists: the same while the other one still runs the link: the first one stands by.
func TestLateLinkExists(t *testing.T) {
	t.Parallel()
	for name, before := range lateCreations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := aboutToCreate(t, before)
			w.play(`
				start b copy spool=other lease=10s
				await caught-up b
			`)
			close(s.wake)
			w.play(`
				await standby a
				source insert shop.a 51..60
				await caught-up b
				equal b
				drain b
				await running a
				source insert shop.a 61..70
				await caught-up a
				equal a
				drain a
			`)
		})
	}
}
