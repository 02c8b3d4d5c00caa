package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// TestManyDiverged: a status names some of the diverged collections, and counts all of them, and all of their operations.
func TestManyDiverged(t *testing.T) {
	first := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	list := make([]checkpoint.Diverged, 250)
	for i := range list {
		ns := oplog.Namespace(fmt.Sprintf("shop.c%03d", i))
		list[i] = checkpoint.Diverged{NS: ns, Source: ns, Ops: 2, Since: first.Add(time.Duration(len(list)-1-i) * time.Hour), Until: first.Add(1000 * time.Hour)}
	}
	d := NewDiverged(list)
	if len(d.Namespaces) != mostNamespaces || d.More != 150 || d.Operations != 500 || !d.First.Equal(first) {
		t.Errorf("%d listed, %d more, %d operations since %v", len(d.Namespaces), d.More, d.Operations, d.First)
	}
	const want = "500 operations in shop.c000, shop.c001, shop.c002, shop.c003, shop.c004 and 245 more since 2026-11-20 10:00:00 UTC"
	if text, since := d.text(); text != want || !since.Equal(first) {
		t.Errorf("%s, %v, want %s", text, since, want)
	}
}
