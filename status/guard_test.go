package status

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestNewestForeignWrite: the newest write that the verdict names is one of those that are open. Newer ones may be of
// namespaces that were copied again or cleared.
func TestNewestForeignWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		open oplog.Namespace
		more int64
		want string
	}{
		{"another one was dealt with", "store.a", 0, "3 writes to store.a; the newest at 1999-12-31 23:58:00 UTC: update of store.a {_id: 7}."},
		{"the new name of a rename", "store.c", 0, "3 writes to store.c; the newest at 1999-12-31 23:57:00 UTC: renameCollection of store.d."},
		{"renamed by the link", "store.y", 0, "3 writes to store.y; the newest at 1999-12-31 23:56:00 UTC: insert of store.e {_id: 8}, which the link has renamed to store.y."},
		{"it is not known any more", "store.z", 0, "3 writes to store.z."},
		{"not all that are open are listed", "store.z", 2, "the newest at 1999-12-31 23:59:00 UTC: drop of store.b."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				now := time.Now()
				tr := newTracker(t, Config{Link: "l"})
				var p fakePipeline
				tr.Follow(p.Snapshot)
				p.set(func(s *monitor.Snapshot) {
					steadily(s)
					s.Guard = &guard.Status{Mode: guard.Alarm, Watching: true, State: guard.State{
						Counts: map[string]int64{"update": 3, "command": 2},
						Writes: []guard.Write{
							{Wall: now.Add(-30 * time.Second), Kind: "insert", NS: "store.x", Gone: true},
							{Wall: now.Add(-time.Minute), Kind: "drop", NS: "store.b"},
							{Wall: now.Add(-2 * time.Minute), Kind: "update", NS: "store.a", ID: "7"},
							{Wall: now.Add(-3 * time.Minute), Kind: "renameCollection", NS: "store.d", To: "store.c"},
							{Wall: now.Add(-4 * time.Minute), Kind: "insert", NS: "store.e", Now: "store.y", ID: "8"},
							{Wall: now.Add(-5 * time.Minute), Kind: "insert", NS: "store.z", Gone: true},
						},
						Touched: []guard.Touched{{NS: tt.open, Source: tt.open, Count: 3, First: now.Add(-time.Hour), Last: now.Add(-2 * time.Minute)}},
						More:    tt.more,
					}}
				})
				if v := tr.Snapshot().Verdict; v.Name != "foreign-writes" || !strings.Contains(v.Sentence, tt.want) {
					t.Errorf("%+v", v)
				}
			})
		})
	}
}

// TestRenameIsOneForeignWrite: a write that two namespaces count is one; it stays one if the namespace that counts it first is dealt with.
func TestRenameIsOneForeignWrite(t *testing.T) {
	t.Parallel()
	touched := []guard.Touched{{NS: "store.a", Source: "shop.a", Count: 2}, {NS: "store.b", Source: "shop.b", Count: 2, Twice: 1}, {NS: "store.c", Source: "shop.c", Count: 1, Twice: 1}}
	for from, want := range []string{"to the target: 3 writes to ", "to the target: 1 write to ", "to the target: 1 write to "} {
		s := Snapshot{State: string(monitor.Failed)}
		addGuard(&s, &monitor.Snapshot{Guard: &guard.Status{Mode: guard.Alarm, State: guard.State{Touched: touched[from:]}}})
		if text, _ := foreign(&s); !strings.Contains(text, want) {
			t.Errorf("from %d: %s", from, text)
		}
	}
}
