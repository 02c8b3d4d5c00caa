package scope

import (
	"sync"

	"github.com/oplogrep/replicator/oplog"
)

// generation is how many answers are kept at least, and half of how many at most.
const generation = 8192

// answer is what was decided of a namespace.
type answer struct {
	source, target oplog.Namespace // no views
	mirrored       bool
}

// cache keeps answers. There are two generations: when the young one is full it
// becomes the old one, and the old one is forgotten. So what is asked for again
// and again stays, and a source with endless names of temporary collections does
// not fill the memory.
type cache struct {
	mu         sync.RWMutex // guards both maps
	young, old map[oplog.Namespace]answer
}

// get looks for ns, which may be a view.
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
