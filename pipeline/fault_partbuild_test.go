package pipeline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// TestPartBuild: a collection is copied again, and an index of it is built for hours. The link
// does not wait for that, neither to go on nor to end, and gets the collection back afterwards.
func TestPartBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	b := &building{world: w, b: 10}
	b.play(`
		source insert shop.b 1..10
		source insert shop.c 1..100
		start a copy
		await caught-up a
	`)
	must.Succeed(t, b.untilOf(b.links["a"], "the oplog to be read into memory", func() bool {
		s := b.links["a"].p.Snapshot()
		return s.Spool == nil && s.State == monitor.Steady
	}))
	b.hold("again: everything copied")
	b.play(`
		resync shop.c
		await held
		target failpoint hangAfterStartingIndexBuild alwaysOn
		source run shop {"createIndexes": "c", "indexes": [{"key": {"x": 1, "y": 1}, "name": "xy"}]}
		source insert shop.c 101..120
		await caught-up a
		release
	`) // the link is past the build, so that the part is not merged before it
	b.writes()
	if err := b.untilOf(b.links["a"], "the part to wait for its index", func() bool {
		store, err := b.metadata()
		must.Succeed(t, err)
		requests, err := request.New(store).Read(t.Context())
		return err == nil && len(requests.Resync) > 0 && strings.Contains(requests.Resync[0].Why, "shop.c")
	}); err != nil {
		t.Fatal(err)
	}
	b.writes()
	b.play("drain a")
	if err := b.links["a"].err; !errors.Is(err, failure.ErrStopped) {
		t.Errorf("it ended with %v", err)
	}
	b.play("start a copy")
	b.writes()
	b.play("target failpoint hangAfterStartingIndexBuild off\nawait resync done shop.c")
	b.play(built)
}
