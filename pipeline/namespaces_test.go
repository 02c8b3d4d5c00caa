package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestNamespacesThatEnd: the counts of a collection that was dropped end with it, those of one that was
// renamed go on under its new name, whatever either name had before, unless the link leaves that out, and nothing else is lost.
func TestNamespacesThatEnd(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..10
		start copy exclude=shop.out
		await caught-up
		source insert shop.a 11..14
		source insert shop.dropped 1..3
		source insert shop.again 1..3
		source insert shop.old 1..5
		source insert shop.tmp 1..2
		source insert shop.replaced 1..6
		source insert shop.leaves 1..2
		source insert gone.a 1..3
		source insert gone.b 1..3
		source insert goner.a 1..4
		await caught-up
		source run shop {"drop": "dropped"}
		source run shop {"drop": "again"}
		source insert shop.again 1..1
		source run admin {"renameCollection": "shop.old", "to": "shop.new"}
		source run admin {"renameCollection": "shop.tmp", "to": "shop.replaced", "dropTarget": true}
		source run admin {"renameCollection": "shop.leaves", "to": "shop.out"}
		source run gone {"dropDatabase": 1}
		await caught-up
	`)
	w.links["a"].counted(t, map[string]int64{"shop.a": 4, "shop.again": 1, "shop.new": 5, "shop.replaced": 8, "goner.a": 4}, 0)
	must.Succeed(t, w.end("drain", w.links["a"]))
}

// counted compares the operations that a link has counted, by namespace, and of others.
func (l *link) counted(t *testing.T, want map[string]int64, others int64) {
	t.Helper()
	got := map[string]int64{}
	list, rest := l.p.Snapshot().Namespaces.Top(100)
	for i := range list {
		got[string(list[i].NS)] = list[i].Ops
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || rest.Ops != others {
		t.Errorf("operations by namespace: %v, and %d of others, want %v, and %d", got, rest.Ops, want, others)
	}
}

// TestNamespacesLeftOut: a collection that is dropped while it is copied again, which the link leaves to another one, is not
// listed for ever.
func TestNamespacesLeftOut(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..10
		source insert shop.b 1..600
		start copy flush=20 workers=1
		await caught-up
		source insert shop.a 11..14
		source insert shop.b 601..603
		await caught-up
		limit 100
		resync shop.b
		await told copies again
		await resync copying shop.b
		source run shop {"drop": "b"}
		limit 0
	`)
	w.awaitRequest(w.links["a"], "shop.b")
	w.play("source insert shop.a 15..15\nawait caught-up")
	w.links["a"].counted(t, map[string]int64{"shop.a": 5}, 3)
	must.Succeed(t, w.end("drain", w.links["a"]))
}

// TestNamespacesTakenOver: a process that leads again does not list collections that were dropped or renamed while another one has
// led, and loses no count.
func TestNamespacesTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2, Moods: mongosim.GentleMoods("a lease ends in time")})
	f := w.freezable(`
		start a lease=10s
		await running a
		source insert shop.a 1..10
		source insert shop.old 1..5
		source insert shop.dropped 1..3
		await caught-up a
	`)
	w.play("start b lease=10s\nawait standby b")
	f.freeze()
	w.play(`
		await running b
		source run shop {"drop": "dropped"}
		source run admin {"renameCollection": "shop.old", "to": "shop.new"}
		await caught-up b
	`)
	f.thaw()
	w.play(`
		await standby a
		drain b
		await running a
		source insert shop.new 6..7
		source insert shop.a 11..14
		await caught-up a
	`)
	w.links["a"].counted(t, map[string]int64{"shop.a": 4, "shop.new": 2}, 18)
	w.play("drain a")
}
