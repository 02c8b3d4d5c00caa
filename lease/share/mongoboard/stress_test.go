package mongoboard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/mongosim"
)

// cuttable is a connection that can be cut.
type cuttable struct {
	mongo.Caller
	cut atomic.Bool
}

func (c *cuttable) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if c.cut.Load() {
		return nil, context.DeadlineExceeded
	}
	return c.Caller.Call(ctx, cmd)
}

// group has what its members work on: whether each partition's last work has its lease still.
type group struct {
	t   *testing.T
	set mongo.Caller

	mu      sync.Mutex // guards the rest
	holds   map[string]func() error
	terms   map[string]int64
	running map[string]string
}

type member struct {
	net  *cuttable
	stop context.CancelCauseFunc
	done chan struct{}
}

func (g *group) start(name string) *member {
	ctx, cancel := context.WithCancelCause(context.Background())
	m := &member{net: &cuttable{Caller: g.set}, stop: cancel, done: make(chan struct{})}
	s := must.Get(share.New(share.Config{
		Store: mongostore.New(m.net, "replicator"), Board: New(m.net, "replicator"), Group: "g", Member: name, TTL: 5 * time.Second,
		Partitions: func(context.Context) (list []string, err error) {
			for i := range 24 {
				list = append(list, fmt.Sprintf("p.%d$", i))
			}
			return list, nil
		},
		Work: func(ctx context.Context, partition string, term int64) error {
			return g.work(ctx, name, partition, term)
		},
	}))(g.t)
	go func() {
		defer close(m.done)
		_ = s.Run(ctx)
	}()
	return m
}

// work fails the test if another work has its lease still. It asks the clocks, as a goroutine
// that should have ended may not have been scheduled.
func (g *group) work(ctx context.Context, name, partition string, term int64) error {
	g.mu.Lock()
	holds := func() error { return locks.Check(ctx) }
	if other := g.holds[partition]; other != nil && other() == nil && holds() == nil {
		g.t.Errorf("%s: %s works on it, and %s still", partition, name, g.running[partition])
	}
	if term <= g.terms[partition] {
		g.t.Errorf("%s: term %d of %s after %d", partition, term, name, g.terms[partition])
	}
	g.holds[partition], g.terms[partition], g.running[partition] = holds, term, name
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.terms[partition] == term {
		delete(g.holds, partition)
		delete(g.running, partition)
	}
	return nil
}

// settle waits until all partitions run, on n members evenly, and that is what the status says.
func (g *group) settle(n int) {
	g.t.Helper()
	store, board := mongostore.New(g.set, "replicator"), New(g.set, "replicator")
	var last string
	for began := time.Now(); time.Since(began) < 2*time.Minute; <-time.After(50 * time.Millisecond) {
		g.mu.Lock()
		count := map[string]int{}
		for _, name := range g.running {
			count[name]++
		}
		all := len(g.running)
		g.mu.Unlock()
		last = fmt.Sprint(count)
		isEven := len(count) == n && all == 24
		for _, c := range count {
			isEven = isEven && c == 24/n
		}
		if !isEven {
			continue
		}
		s, err := share.State(g.t.Context(), board, store, "g")
		if err != nil {
			continue
		}
		for _, p := range s.Partitions {
			isEven = isEven && p.Holder != nil && p.Holder.Member == p.Member
		}
		if last = fmt.Sprintf("%+v", s); isEven && s.Coordinator != nil {
			return
		}
	}
	g.t.Fatalf("not settled: %s", last)
}

// TestStress: members that shut down, are cut off, and start, on the embedded set, with an
// election.
func TestStress(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 5})
	g := &group{t: t, set: client.Open(t, driver.Config{URI: sim.URI()}), holds: map[string]func() error{}, terms: map[string]int64{}, running: map[string]string{}}
	all := map[string]*member{}
	for i := range 4 {
		name := "host.example.com:" + strconv.Itoa(i)
		all[name] = g.start(name)
	}
	g.settle(4)
	must.Succeed(t, sim.StepDown(t.Context()))
	first := "host.example.com:0"
	all[first].net.cut.Store(true)
	all[first].stop(errors.New("killed"))
	g.settle(3)
	all["host.example.com:1"].stop(errors.New("shutdown"))
	g.settle(2)
	board := New(g.set, "replicator")
	drain := func(how func(context.Context, share.Board, string, string) error) {
		for how(t.Context(), board, "g", "host.example.com:2") != nil && t.Context().Err() == nil {
			<-time.After(10 * time.Millisecond)
		}
	}
	drain(share.Drain)
	g.settle(1)
	drain(share.Undrain)
	g.settle(2)
	for _, m := range all {
		m.stop(errors.New("the end"))
	}
	for _, m := range all {
		<-m.done
	}
	list, _, err := board.Members(t.Context(), "g")
	for err != nil {
		list, _, err = board.Members(t.Context(), "g")
	}
	if len(list) > 1 || len(list) == 1 && list[0].Name != first {
		t.Errorf("%+v are on the board", list)
	}
}

// TestSizes: the largest plan there can be is smaller than a document of the server.
func TestSizes(t *testing.T) {
	t.Parallel()
	size := func(partitions, name, why int) int {
		p := &share.Plan{Version: 1, Term: 1}
		for i := range partitions {
			p.Assignments = append(p.Assignments, share.Assignment{
				Partition: fmt.Sprintf("%0*d", name, i), Member: "member-" + strconv.Itoa(i%(partitions/10)), Since: time.Now(), Why: strings.Repeat("w", why),
			})
		}
		return len(must.Get(planDoc("g", p))(t))
	}
	typical := size(2000, 20, 40) / 2000
	t.Logf("%d bytes for each partition with a name of 20 bytes and a reason of 40", typical)
	if typical < 80 || typical > 130 {
		t.Errorf("docs/scale.md says 100")
	}
	t.Logf("the largest: %d bytes", size(share.MaxPartitions, 255, 400))
}
