package pipeline_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// buildsForHours lets the target build an index of shop.a until built is played.
const (
	buildsForHours = `
		target failpoint hangAfterStartingIndexBuild alwaysOn
		source run shop {"createIndexes": "a", "indexes": [{"key": {"x": 1, "y": 1}, "name": "xy"}]}
		source insert shop.b 11..50
	`
	built = `
		target failpoint hangAfterStartingIndexBuild off
		await caught-up a
		equal a
		drain a
	`
)

// building is a link that keeps back shop.a while the target builds its index.
type building struct {
	*world
	b int64 // documents of shop.b
}

// newBuilding calls ready, if it is not nil, before the build begins.
func newBuilding(t *testing.T, ready func(w *world)) *building {
	t.Helper()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play(`
		source insert shop.a 1..50
		source insert shop.b 1..10
		source insert shop.c 1..10
		start a copy
		await caught-up a
	`)
	if ready != nil {
		ready(w)
	}
	b := &building{world: w, b: 50}
	w.play(buildsForHours)
	b.continues()
	return b
}

// continues checks that writes to shop.b are applied.
func (b *building) continues() {
	b.t.Helper()
	if err := b.within(time.Minute, "shop.b to be applied", func() bool {
		n, err := b.target.count(b.t.Context(), "shop.b")
		return err == nil && n == b.b
	}); err != nil {
		b.t.Fatal("all collections wait for the index build of shop.a: ", err)
	}
}

// writes checks that the next documents of shop.b are applied.
func (b *building) writes() {
	b.t.Helper()
	b.play(fmt.Sprintf("source insert shop.b %d..%d", b.b+1, b.b+10))
	b.b += 10
	b.continues()
}

// TestSpoolLeftDuringBuild: a build is committed shortly before the link leaves the spool of
// its copy. The other collections continue.
func TestSpoolLeftDuringBuild(t *testing.T) {
	t.Parallel()
	b := newBuilding(t, nil)
	if err := b.untilOf(b.links["a"], "the oplog to be read into memory", func() bool {
		s := b.links["a"].p.Snapshot()
		return s.Spool == nil && s.Attempts > 2
	}); err != nil {
		t.Fatal(err)
	}
	b.writes()
	b.play(built)
}

// TestResyncDuringBuild: another collection is copied again during a build. Neither the
// request nor the part that is ready stops the others; it is merged after the build.
func TestResyncDuringBuild(t *testing.T) {
	t.Parallel()
	b := newBuilding(t, func(w *world) {
		if err := w.untilOf(w.links["a"], "the oplog to be read into memory", func() bool {
			s := w.links["a"].p.Snapshot()
			return s.Spool == nil && s.State == monitor.Steady
		}); err != nil {
			t.Fatal(err)
		}
	})
	b.play("resync shop.c\nsource insert shop.c 11..20")
	must.Succeed(t, b.awaitResync(request.Copying, "shop.c"))
	b.writes()
	if err := b.untilOf(b.links["a"], "the part to be ready", func() bool {
		store, err := b.metadata()
		must.Succeed(t, err)
		requests, err := request.New(store).Read(t.Context())
		return err == nil && len(requests.Resync) > 0 && strings.HasPrefix(requests.Resync[0].Why, string(monitor.Steady)+", ")
	}); err != nil {
		t.Fatal(err)
	}
	inOrder := func() int { return b.links["a"].p.Snapshot().Attempts - len(b.attemptsEnded()) }
	looks, before := time.Now(), inOrder()
	for time.Since(looks) < 3*time.Second { // the requests are read each second
		b.writes()
	}
	if n := inOrder() - before; n > 0 {
		t.Errorf("%d attempts have ended in order since the part is ready", n)
	}
	b.play("target failpoint hangAfterStartingIndexBuild off")
	b.awaitRequest(b.links["a"], "shop.c")
	b.play(built)
}

// TestBuildOutlastsOplog: a build takes longer than the source has the oplog. The link
// switches to the spool, and continues to apply writes to other collections.
func TestBuildOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 72)
	must.Succeed(t, o.source.write(t.Context(), "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}))
	o.write(60)
	must.Succeed(t, o.caughtUp(o.links["a"]))
	o.play("target failpoint hangAfterStartingIndexBuild alwaysOn\n" +
		`source run db {"createIndexes": "a", "indexes": [{"key": {"x": 1, "y": 1}, "name": "xy"}]}`)
	at := o.newest()
	continues := func() {
		t.Helper()
		if err := o.untilOf(o.links["a"], "db.c to be applied", func() bool {
			n, err := o.target.count(t.Context(), "db.c")
			return err == nil && n == int64(o.docs)
		}); err != nil {
			t.Fatal(err, o.links["a"].p.Snapshot().Reason)
		}
	}
	if err := o.within(time.Minute, "the oplog to be spooled", func() bool {
		o.write(1) // the source deletes its oldest entries all the time
		time.Sleep(time.Second)
		return o.links["a"].p.Snapshot().Spool != nil
	}); err != nil {
		t.Fatal(err, o.links["a"].p.Snapshot().Reason)
	}
	continues()
	o.stored("a")
	o.followed("a", 72)
	continues()
	o.lost(at)
	o.play("target failpoint hangAfterStartingIndexBuild off")
	o.same("a")
}
