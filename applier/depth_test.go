package applier

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// TestDepth: from the loop of a lane to the driver there are fewer than ten calls,
// including both (docs/design.md names them).
func TestDepth(t *testing.T) {
	t.Parallel()
	r := prepared(t, 4)
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 1)))
	var mu sync.Mutex
	var way []string
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) != "insert" && simcaller.Name(cmd) != "update" {
			return nil, false
		}
		var pcs [64]uintptr
		frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
		var names []string
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			names = append(names, f.Function[strings.LastIndex(f.Function, "/")+1:])
			if strings.HasSuffix(f.Function, "(*laneWriter).run") {
				mu.Lock()
				way = names[1:] // Call is the fake's
				mu.Unlock()
				break
			}
		}
		return nil, false
	})
	r.apply(t, l.batches(), nil)
	if len(way) == 0 || len(way) > 9 {
		t.Errorf("%d calls:\n%s", len(way), strings.Join(way, "\n"))
	}
}
