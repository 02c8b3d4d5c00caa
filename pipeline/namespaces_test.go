package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestNamespacesThatEnd: the counts of a collection that was dropped end with it, those of one that was
// renamed go on under its new name, whatever either name had before, and nothing else is lost.
func TestNamespacesThatEnd(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..10
		start copy
		await caught-up
		source insert shop.a 11..14
		source insert shop.dropped 1..3
		source insert shop.again 1..3
		source insert shop.old 1..5
		source insert shop.tmp 1..2
		source insert shop.replaced 1..6
		source insert gone.a 1..3
		source insert gone.b 1..3
		source insert goner.a 1..4
		await caught-up
		source run shop {"drop": "dropped"}
		source run shop {"drop": "again"}
		source insert shop.again 1..1
		source run admin {"renameCollection": "shop.old", "to": "shop.new"}
		source run admin {"renameCollection": "shop.tmp", "to": "shop.replaced", "dropTarget": true}
		source run gone {"dropDatabase": 1}
		await caught-up
	`)
	got := map[string]int64{}
	list, rest := w.links["a"].p.Snapshot().Namespaces.Top(100)
	for i := range list {
		got[string(list[i].NS)] = list[i].Ops
	}
	want := map[string]int64{"shop.a": 4, "shop.again": 1, "shop.new": 5, "shop.replaced": 8, "goner.a": 4}
	if fmt.Sprint(got) != fmt.Sprint(want) || rest.Ops != 0 {
		t.Errorf("operations by namespace: %v, and %d of others, want %v", got, rest.Ops, want)
	}
	must.Succeed(t, w.end("drain", w.links["a"]))
}
