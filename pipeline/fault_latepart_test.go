package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/request"
)

// latePart is a target in a process that is suspended when it is about to create the link of a part. When it resumes, that write
// is the first.
type latePart struct {
	pipeline.Cluster
	once sync.Once
	mu   sync.Mutex
	// session is that of the write.
	session bson.RawValue
	// asleep is closed when it is suspended, wake when it is to continue, and awake when the rest of it continues.
	asleep, wake, awake chan struct{}
}

func (s *latePart) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	session := cmd.Body.Lookup("lsid")
	if _, err := cmd.Body.LookupErr("insert"); err == nil && len(cmd.Docs) == 1 && cmd.Docs[0].Lookup("of").Type == bson.TypeString {
		s.once.Do(func() {
			s.mu.Lock()
			s.session = session
			s.mu.Unlock()
			close(s.asleep)
			<-s.wake
		})
	}
	s.mu.Lock()
	late := s.session
	s.mu.Unlock()
	suspended := !late.IsZero() && !session.Equal(late)
	// A findAndModify has an "update" as well: the ping of a process that has been suspended for long.
	if suspended && simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == "requests" {
		<-s.awake
	}
	return s.Cluster.Call(ctx, cmd)
}

// TestLatePart: a process is suspended when it is about to create the link of a part. Another one takes the link over, copies the
// collection again, and gives it back to the link. When the first one continues, it neither creates the part nor drops
// the collection to copy it, although its own clocks do not tell it that it has lost the lease.
func TestLatePart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	s := &latePart{asleep: make(chan struct{}), wake: make(chan struct{}), awake: make(chan struct{})}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		s.Cluster = c
		return s
	}
	w.play(`
		source insert shop.a 1..50
		start copy
		await told consistent
		await running
		await caught-up
		resync shop.a
	`)
	<-s.asleep
	w.asTarget = nil
	w.play("start b copy spool=other")
	a, b := w.links["a"], w.links["b"]
	store := must.Get(w.metadata())(t)
	err := w.untilOf(b, "the collection to be copied again", func() bool {
		all, err := request.New(store).Read(t.Context())
		if err != nil || len(all.Resync) != 1 || all.Resync[0].State != request.Done {
			return false
		}
		parts, err := store.Parts(t.Context())
		return err == nil && len(parts) == 0
	})
	if err == nil {
		err = w.caughtUp(b)
	}
	w.forget()
	w.hold("again: copy: creating collections")
	close(s.wake)
	if err != nil {
		w.fail("fault", "", err)
	}
	if err := w.until("the first process to end, or to copy", func() bool {
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
	if n := must.Get(w.target.count(t.Context(), "shop.a"))(t); n != 50 {
		t.Errorf("the collection has %d documents after the first process has continued", n)
	}
	if parts := must.Get(store.Parts(t.Context()))(t); len(parts) != 0 {
		t.Errorf("it has created the part %v", parts)
	}
	w.release()
	close(s.awake)
	w.play("source insert shop.a 51..60")
	w.awaitEnd(a)
	if !errors.Is(a.err, lease.ErrFenced) {
		t.Errorf("it ended with: %v", a.err)
	}
	w.drainsEqual("b")
}
