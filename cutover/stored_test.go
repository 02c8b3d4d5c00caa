package cutover_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/status"
)

// TestUnaskedNext: what only a process knows that was not asked is not said to wait for the source, which nobody has asked.
func TestUnaskedNext(t *testing.T) {
	t.Parallel()
	m := cutover.Metadata{Link: "dr", Unasked: "ask vm:1: connection refused", At: time.Now()}
	list := m.Preconditions(status.ReadinessLimits{})
	for _, name := range []string{"steady", "lag", "foreign-writes", "oplog-window"} {
		i := slices.IndexFunc(list, func(p status.Precondition) bool { return p.Name == name })
		if p := list[i]; p.Standing != status.NotKnown || !strings.Contains(p.Next, "--at HOST:PORT") {
			t.Errorf("%s is %s: %s, next: %s", name, p.Standing, p.Value, p.Next)
		}
	}
}
