package monitor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/oplog"
)

// TestNamespaces: the busiest come first, by their rate, the rest is summed up, and no
// operation is lost.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Namespaces
		if list, rest := n.Top(10); len(list) != 0 || rest.Ops != 0 {
			t.Errorf("none: %v %v", list, rest)
		}
		n.Count([]applier.NamespaceOps{{NS: "d.old", Ops: 1_000_000, Bytes: 5}}, nil)
		if list, _ := n.Top(10); list[0].Rated {
			t.Errorf("a rate of no time: %+v", list)
		}
		for range 20 {
			time.Sleep(time.Second)
			n.Count([]applier.NamespaceOps{{NS: "d.a", Ops: 10, Bytes: 100}, {NS: "d.b", Ops: 30, Bytes: 300}, {NS: "d.c", Ops: 20, Bytes: 200}}, nil)
		}
		list, rest := n.Top(2)
		if len(list) != 2 || list[0].NS != "d.b" || list[1].NS != "d.c" || list[0].Ops != 600 || list[0].Bytes != 6000 ||
			!list[0].Rated || list[0].OpsPerSecond < 25 || list[0].OpsPerSecond > 40 {
			t.Errorf("%+v", list)
		}
		if rest.Ops != 1_000_200 || rest.Bytes != 2005 || rest.OpsPerSecond < 8 || rest.OpsPerSecond > 14 {
			t.Errorf("rest %+v", rest)
		}
		time.Sleep(11 * time.Second)
		n.Top(1)
		time.Sleep(6 * time.Second)
		if list, _ := n.Top(4); list[0].NS != "d.old" || list[0].OpsPerSecond != 0 {
			t.Errorf("at rest: %+v", list)
		}
	})
}

// TestNamespacesRenamed: the rate of a namespace goes on under its new name.
func TestNamespacesRenamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Namespaces
		n.Renamed("d.none", "d.b")
		n.Dropped("d.none")
		n.DroppedDatabase("d")
		for range 20 {
			time.Sleep(time.Second)
			n.Count([]applier.NamespaceOps{{NS: "d.a", Ops: 10}, {NS: "d.b", Ops: 20}, {NS: "dd.c", Ops: 1}}, nil)
		}
		n.Renamed("d.a", "d.b")
		n.Renamed("d.b", "d.b")
		if list, _ := n.Top(9); len(list) != 2 || list[0].NS != "d.b" || list[0].Ops != 600 || list[0].OpsPerSecond < 25 || list[0].OpsPerSecond > 40 {
			t.Errorf("%+v", list)
		}
		n.DroppedDatabase("d")
		if list, rest := n.Top(9); len(list) != 1 || list[0].NS != "dd.c" || rest.Ops != 0 {
			t.Errorf("%+v, and %+v", list, rest)
		}
	})
}

// TestNamespacesForgotten: the operations of a namespace whose name may be another one by now count among the others.
func TestNamespacesForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Namespaces
		all := func(oplog.Namespace) bool { return true }
		n.Forget(all)
		for range 20 {
			time.Sleep(time.Second)
			n.Count([]applier.NamespaceOps{{NS: "d.a", Ops: 10}, {NS: "d.b", Ops: 20}}, nil)
		}
		n.Forget(func(ns oplog.Namespace) bool { return ns == "d.a" })
		if list, rest := n.Top(9); len(list) != 1 || list[0].NS != "d.b" || rest.Ops != 200 || rest.OpsPerSecond < 9 || rest.OpsPerSecond > 12 {
			t.Errorf("%+v, and %+v", list, rest)
		}
		n.Count([]applier.NamespaceOps{{NS: "d.a", Ops: 1}}, nil)
		if list, rest := n.Top(9); len(list) != 2 || list[1].Ops != 1 || rest.Ops != 200 {
			t.Errorf("%+v, and %+v", list, rest)
		}
		n.Forget(all)
		if list, rest := n.Top(9); len(list) != 0 || rest.Ops != 601 {
			t.Errorf("%+v, and %+v", list, rest)
		}
	})
}

// TestManyNamespaces: the memory is bounded, and the sums stay right.
func TestManyNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Namespaces
		sums := map[oplog.Namespace]int64{}
		var all int64
		for i := range 20_000 {
			ns := oplog.Namespace(fmt.Sprintf("d.c%d", i))
			list := []applier.NamespaceOps{{NS: ns, Ops: 1}, {NS: "d.busy", Ops: 3}}
			n.Count(list, nil)
			sums[ns]++
			sums["d.busy"] += 3
			all += 4
			time.Sleep(time.Millisecond)
		}
		if len(n.known) > 2*mostNamespaces {
			t.Errorf("%d namespaces are known", len(n.known))
		}
		list, rest := n.Top(100)
		sum := rest.Ops
		for _, l := range list {
			sum += l.Ops
		}
		most := slices.MaxFunc(slices.Collect(maps.Keys(sums)), func(a, b oplog.Namespace) int { return cmp.Compare(sums[a], sums[b]) })
		if sum != all || len(list) != 100 || list[0].NS != most || list[0].Ops != sums[most] {
			t.Errorf("%d of %d operations, the first %+v", sum, all, list[0])
		}
		// One that is named is there although others have more, and not part of the rest.
		named, less := n.Top(1, "d.c19999", "d.unknown")
		if len(named) != 2 || named[1].NS != "d.c19999" || named[0].Ops+named[1].Ops+less.Ops != all {
			t.Errorf("%+v, and %+v", named, less)
		}
	})
}
