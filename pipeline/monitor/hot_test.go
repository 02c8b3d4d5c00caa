package monitor

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/applier"
)

// TestHotDocuments: a document with a large part of its namespace's operations is named, with about
// its share; none is where the operations are spread, or were too few to know, or when it has cooled.
func TestHotDocuments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n Namespaces
		random := rand.New(rand.NewPCG(1, 2))
		count := func(seconds int, hot float64) {
			for range seconds {
				time.Sleep(time.Second)
				var sampled []applier.SampledOp
				for range 100 {
					doc := random.Uint32() | 1
					if random.Float64() < hot {
						doc = 7
					}
					sampled = append(sampled, applier.SampledOp{In: 1, Doc: doc}, applier.SampledOp{In: 0, Doc: random.Uint32()})
				}
				n.Count([]applier.NamespaceOps{{NS: "d.spread", Ops: 1600}, {NS: "d.a", Ops: 1600}, {NS: "d.few", Ops: 1}},
					append(sampled, applier.SampledOp{In: 2, Doc: 7}))
			}
		}
		look := func(what string, low, high float64) {
			t.Helper()
			list, _ := n.Top(3)
			for _, l := range list {
				switch {
				case l.NS != "d.a" && len(l.Hot) != 0:
					t.Errorf("%s: in %s %v are hot", what, l.NS, l.Hot)
				case l.NS != "d.a":
				case high == 0 && len(l.Hot) != 0:
					t.Errorf("%s: %v", what, l.Hot)
				case high != 0 && (len(l.Hot) != 1 || l.Hot[0].Hash != 7 || l.Hot[0].Share < low || l.Hot[0].Share > high):
					t.Errorf("%s: %v, want one between %v and %v", what, l.Hot, low, high)
				}
			}
		}
		count(20, 0)
		look("none", 0, 0)
		count(60, 0.4)
		look("40 %", 0.3, 0.5)
		count(60, 0.9)
		look("90 %", 0.8, 1)
		count(60, 0.01)
		look("it has cooled", 0, 0)
	})
}
