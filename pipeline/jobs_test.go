package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/mongosim"
)

// locked fails the test unless exactly these named locks are locked in the target.
func (w *world) locked(want ...string) {
	w.t.Helper()
	var got []string
	for _, r := range must.Get(mongostore.New(w.target.conn, "replicator").List(w.t.Context(), ""))(w.t) {
		if r.IsLocked() {
			got = append(got, r.Name)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Errorf("locked: %q, want %q", got, want)
	}
}

// TestResyncWaitsForLock: an operator's command has the lock of a collection that is
// requested to be copied again. The status names the command and why it has the lock, the link continues, and the copy
// begins once the lock is free. While it goes on, its lock is that of the link.
func TestResyncWaitsForLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play("source insert shop.a 1..300\nstart copy flush=20 workers=1\nawait caught-up")
	operator := locks.NewElect(locks.ElectConfig{Store: mongostore.New(w.target.conn, "replicator"), Who: "lease exec", TTL: time.Minute})
	got := must.Get(operator.TryLock(t.Context(), jobs.Namespace("shop.a"), "rebuild by hand", func(ctx context.Context) { <-ctx.Done() }))(t)
	if !got {
		t.Fatal("the operator did not get the lock")
	}
	w.play("resync shop.a")
	a := w.links["a"]
	if err := w.untilOf(a, "it to say who has the lock", func() bool {
		return strings.Contains(a.p.Snapshot().Reason, "copying shop.a again waits: namespace/shop.a is locked by "+operatorOf(w)+" since ")
	}); err != nil {
		w.fail("locks", "", err)
	}
	w.play("await resync asked shop.a\nsource update shop.a 1..20\nawait caught-up\nequal\nlimit 100")
	operator.Close()
	w.play("await resync copying shop.a")
	w.locked("namespace/shop.a")
	w.play("drain\nstart b copy flush=20 workers=1\nlimit 0")
	w.awaitRequest(w.links["b"], "shop.a")
	w.play("await caught-up b\nequal b\ndrain b")
	w.locked()
}

// operatorOf returns the process that has the lock of shop.a.
func operatorOf(w *world) string {
	for _, r := range must.Get(mongostore.New(w.target.conn, "replicator").List(w.t.Context(), ""))(w.t) {
		if r.Name == jobs.Namespace("shop.a") {
			return r.Process
		}
	}
	return ""
}
