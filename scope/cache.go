package scope

import (
	"sync"

	"github.com/oplogrep/replicator/oplog"
)

// generation is the minimum number of cached answers, and half of the maximum.
const generation = 8192

// answer is the decision on a namespace.
type answer struct {
	source, target oplog.Namespace // not views
	mirrored       bool
}

// cache caches answers in two generations: when the young one is full it becomes the
// old one, and the old one is discarded. So namespaces that are looked up repeatedly
// stay, and a source that keeps creating temporary collections does not fill the
// memory.
type cache struct {
	mu         sync.RWMutex // guards both maps
	young, old map[oplog.Namespace]answer
}

// get looks up ns, which may be a view.
func (c *cache) get(ns oplog.Namespace) (answer, bool) {
	c.mu.RLock()
	a, ok := c.young[ns]
	var isOld bool
	if !ok {
		a, isOld = c.old[ns]
	}
	c.mu.RUnlock()
	if isOld {
		c.put(a)
	}
	return a, ok || isOld
}

func (c *cache) put(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= generation {
		c.old, c.young = c.young, make(map[oplog.Namespace]answer)
	}
	c.young[a.source] = a
}
