package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/request"
)

// sleeper is a target in a process that is suspended, as by SIGSTOP, when it is about
// to send the named command. Other commands are not blocked: only the goroutine that
// sends that one matters.
type sleeper struct {
	pipeline.Cluster
	mu   sync.Mutex
	name string
	// asleep is closed when it is suspended, wake when it is to continue.
	asleep, wake chan struct{}
}

func (s *sleeper) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	elems, err := cmd.Body.Elements()
	s.mu.Lock()
	sleeps := err == nil && s.name != "" && elems[0].Key() == s.name
	if sleeps {
		s.name = ""
	}
	s.mu.Unlock()
	if sleeps {
		close(s.asleep)
		<-s.wake
		// It sends the command although its context may have ended.
		ctx = context.WithoutCancel(ctx)
		cmd.SendBy = cmd.SendBy.AddDate(1, 0, 0)
	}
	return s.Cluster.Call(ctx, cmd)
}

// TestLateDrop: a process is suspended when it is about to drop a collection. Another
// one takes the link over, drops the collection, creates it again and fills it. Then
// the first one continues. On a target that identifies the collection by UUID, its
// command does nothing; on any other, the collection is copied again, as the first
// process requests it.
func TestLateDrop(t *testing.T) {
	t.Parallel()
	for dialect, hits := range map[string]bool{"4.4": true, "5.0": true, "6.0": false, "8.0": false} {
		late := []oplog.Namespace{"shop.a"}
		if !hits {
			late = nil
		}
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			testLate(t, dialect, "drop", `source run shop {"drop": "a"}`, late)
		})
	}
}

// TestLateRename does the same with a rename over another collection: both differ from
// what the next process had left.
func TestLateRename(t *testing.T) {
	t.Parallel()
	testLate(t, "5.0", "renameCollection",
		`source run admin {"renameCollection": "shop.a", "to": "shop.b", "dropTarget": true}`, []oplog.Namespace{"shop.a", "shop.b"})
}

func testLate(t *testing.T, dialect, command, log string, late []oplog.Namespace) {
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2, Dialect: dialect})
	s := &sleeper{asleep: make(chan struct{}), wake: make(chan struct{})}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		s.Cluster = c
		return s
	}
	w.play(`
				source insert shop.a 1..50
				source insert shop.b 51..60
				start copy
				await told consistent
				await running
				await caught-up
			`)
	w.asTarget = nil
	s.mu.Lock()
	s.name = command
	s.mu.Unlock()
	w.play(log + "\nsource insert shop.a 100..200")
	<-s.asleep
	w.play("start b copy spool=other")
	a, b := w.links["a"], w.links["b"]
	if err := w.caughtUp(b); err != nil {
		close(s.wake)
		w.fail("fault", "", err)
	}
	close(s.wake)
	w.awaitEnd(a)
	if !errors.Is(a.err, lease.ErrFenced) {
		t.Errorf("it ended with: %v", a.err)
	}
	w.mu.Lock()
	var told []oplog.Namespace
	const asked = "a late command may have changed a collection: it is to be copied again"
	for _, e := range w.events {
		if e.event.Message() == asked {
			told = append(told, oplog.Namespace(event.Attr(e.event, "ns").String()))
		}
	}
	w.mu.Unlock()
	if !slices.Equal(told, late) {
		t.Errorf("its command was late for %v, it says for %v", late, told)
	}
	for _, ns := range late {
		w.awaitRequest(b, string(ns))
		w.play("await running b")
	}
	w.play("source insert shop.a 201..210")
	w.drainsEqual("b")
}

// awaitDocuments waits until some of the 600 documents of shop.a are copied again.
func (w *world) awaitDocuments() {
	w.t.Helper()
	if err := w.until("some documents to be copied", func() bool {
		n, err := w.target.count(w.t.Context(), "shop.a")
		return err == nil && n > 20 && n < 600
	}); err != nil {
		w.fail("fault", "", err)
	}
}

// TestHitWhileCopied: a collection that a late command hits while it is copied again is
// copied once more afterwards: the new request is not mistaken for the one in progress.
func TestHitWhileCopied(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		start copy flush=20 workers=1
		await running
		await caught-up
		limit 100
		resync shop.a
		await told copies again
		await resync copying shop.a
	`)
	w.awaitDocuments()
	w.play(`target run shop {"delete": "a", "deletes": [{"q": {}, "limit": 0}]}`)
	store, err := w.metadata()
	if err == nil {
		err = request.New(store).ResyncAgain(t.Context(), "shop.a")
	}
	if err != nil {
		t.Fatal(err)
	}
	w.play("limit 0\nsource update shop.a 1..10")
	w.awaitRequest(w.links["a"], "shop.a")
	w.play("await caught-up\nequal\ndrain")
}

// unremoved is a target that refuses, once, to remove a link.
type unremoved struct {
	pipeline.Cluster
	once sync.Once
}

// Call implements mongo.Caller.
func (u *unremoved) Call(ctx context.Context, cmd mongo.Command) (reply bson.Raw, err error) {
	if text, _ := cmd.Body.Lookup("delete").StringValueOK(); text == "links" {
		u.once.Do(func() { err = servererr.New(servererr.InterruptedAtShutdown, "once") })
	}
	if err != nil {
		return nil, err
	}
	return u.Cluster.Call(ctx, cmd)
}

// TestToldThoughNotRemoved: a collection that was merged back is announced, even if
// removing the link of its copy fails.
func TestToldThoughNotRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster { return &unremoved{Cluster: c} }
	w.play(`
		source insert shop.a 1..50
		start copy
		await running
		await caught-up
		resync shop.a
		await told copied again
		await resync done shop.a
		await caught-up
		equal
		drain
	`)
}
