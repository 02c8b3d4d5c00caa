package mongosim

import (
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// ended is a test whose functions of Cleanup are still referred to when it has ended, as
// those of a parallel test are by package testing.
type ended struct {
	*testing.T
	cleanups []func()
}

func (e *ended) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (e *ended) end() {
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
}

// TestForgets: the data of a set is garbage once the test that started it has ended.
func TestForgets(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	test := &ended{T: t}
	stores := func() (all []weak.Pointer[storage.Store]) {
		s := StartTest(test, Options{Members: 3, Seed: 1})
		c := dial(t, s.Primary())
		c.run(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "x", Value: make([]byte, 1<<20)}}}}})
		for _, m := range s.Members() {
			all = append(all, weak.Make(m.disk()))
		}
		test.end()
		return all
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(stores, func(p weak.Pointer[storage.Store]) bool { return p.Value() != nil }) {
		select {
		case <-tick.C:
			runtime.GC()
		case <-ctx.Done():
			t.Fatal("a store is still referred to")
		}
	}
	runtime.KeepAlive(test)
}
