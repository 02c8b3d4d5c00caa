package process

import (
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/mongosim"
)

// way is what a gate does with the traffic between a process and a set.
type way int

const (
	open way = iota
	// cut closes all connections, and new ones at once.
	cut
	// silent keeps what either side sends until the gate is open again. It then arrives
	// late, also if its sender is gone.
	silent
	// deaf delivers what the process sends, and keeps the replies.
	deaf
	ways
)

func (w way) String() string { return [...]string{"open", "cut", "silent", "deaf"}[w] }

// gate is the network between one process and one set: a proxy for each member, which
// the process finds by its --source-host-map or --target-host-map.
type gate struct {
	testing.TB
	// maps are the addresses, as MEMBER=ADDRESS.
	maps []string

	group sync.WaitGroup
	mu    sync.Mutex // guards what follows
	turn  sync.Cond  // broadcasts each change
	way   way
	ended bool
	conns map[net.Conn]struct{}
}

// newGate returns an open gate.
func newGate(t testing.TB, set *mongosim.Set) *gate {
	g := &gate{TB: t, conns: make(map[net.Conn]struct{})}
	g.turn.L = &g.mu
	var listeners []net.Listener
	for _, m := range set.Members() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		g.maps = append(g.maps, m.Host()+"="+l.Addr().String())
		g.group.Go(func() { g.accept(l, m.Address()) })
	}
	t.Cleanup(func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		g.mu.Lock()
		g.ended = true
		g.closeAll()
		g.mu.Unlock()
		g.group.Wait()
	})
	return g
}

// set changes what the gate does.
func (g *gate) set(w way) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.way = w; w == cut {
		g.closeAll()
	}
	g.turn.Broadcast()
}

// closeAll closes all connections. mu is held.
func (g *gate) closeAll() {
	for c := range g.conns {
		_ = c.Close()
	}
	clear(g.conns)
	g.turn.Broadcast()
}

// add registers connections, unless they have to be closed.
func (g *gate) add(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if g.ended || g.way == cut {
			_ = c.Close()
		} else {
			g.conns[c] = struct{}{}
		}
	}
	return !g.ended && g.way != cut
}

func (g *gate) accept(l net.Listener, member string) {
	for {
		front, err := l.Accept()
		if err != nil {
			return
		}
		back, err := net.Dial("tcp", member)
		if err != nil { // the member is down
			_ = front.Close()
			continue
		}
		if g.add(front, back) {
			g.pipe(front, back, cut, silent)
			g.pipe(back, front, cut, silent, deaf)
		}
	}
}

// pipe delivers the bytes of one connection to another one, but not while the gate is
// in one of these ways. Bytes received before the sender closed its end are delivered,
// too.
func (g *gate) pipe(from, to net.Conn, not ...way) {
	var pending [][]byte
	done := false // from is at its end
	g.group.Go(func() {
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			g.mu.Lock()
			if pending = append(pending, buf[:n]); err != nil {
				done = true
			}
			g.turn.Broadcast()
			g.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	g.group.Go(func() {
		defer g.drop(to)
		for {
			g.mu.Lock()
			for g.has(to) && (slices.Contains(not, g.way) || len(pending) == 0 && !done) {
				g.turn.Wait()
			}
			now, last, alive := pending, done, g.has(to)
			pending = nil
			g.mu.Unlock()
			for _, b := range now {
				if _, err := to.Write(b); err != nil {
					return
				}
			}
			if last || !alive {
				return
			}
		}
	})
}

// has reports whether a connection is open. mu is held.
func (g *gate) has(c net.Conn) bool {
	_, found := g.conns[c]
	return found
}

// drop closes a connection.
func (g *gate) drop(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = c.Close()
	delete(g.conns, c)
	g.turn.Broadcast()
}
