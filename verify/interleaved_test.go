package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify/standing"
)

// step is what a process may do that waits before a command.
type step int

const (
	goOn step = iota
	dieBefore
	dieAfter
)

// turn is a process before a command to its metadata, or (cmd is nil) at its end.
type turn struct {
	p   *turns
	cmd mongo.Command
	may chan step
}

// turns is a verification of which the test decides when each of its commands to the metadata is sent.
type turns struct {
	mongo.Caller
	n    *nest
	name string
	at   chan turn
	// killed is closed when it is killed.
	killed chan struct{}
	once   sync.Once
	v      *Verifier
}

func (p *turns) kill() { p.once.Do(func() { close(p.killed) }) }

// Call implements mongo.Caller.
func (p *turns) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	name := simcaller.Name(cmd)
	coll, _ := rawbson.Lookup(cmd.Body, name)
	if text, _ := coll.Text(); text != "verified" {
		select {
		case <-p.killed:
			return nil, errNestKilled
		default:
			return p.Caller.Call(ctx, cmd)
		}
	}
	w := turn{p: p, cmd: cmd, may: make(chan step, 1)}
	select {
	case p.at <- w:
	case <-p.killed:
		return nil, errNestKilled
	}
	select {
	case s := <-w.may:
		if s == goOn {
			return p.Caller.Call(ctx, cmd)
		}
		if s == dieAfter {
			_, _ = p.Caller.Call(ctx, cmd)
		}
		p.kill()
		return nil, errNestKilled
	case <-p.killed:
		return nil, errNestKilled
	}
}

// begin begins a verification. It waits at its first command.
func (n *nest) begin(at chan turn, resume bool) *turns {
	n.begun++
	p := &turns{Caller: n.target, n: n, name: fmt.Sprintf("v%d", n.begun), at: at, killed: make(chan struct{})}
	n.log("%s begins, resumed %t", p.name, resume)
	v := must.Get(New(Config{
		Source: n.source, Target: p, Cuts: &rest{source: n.source, target: n.target}, Workers: 1, RangeBytes: 32,
		Scope: must.Get(scope.New(scope.Config{Include: []string{n.db + ".*"}}))(n.t),
		Found: func(d *Difference) error {
			if len(d.IDBSON) > 0 {
				n.log("%s finds %s in %s", p.name, d.id(), d.NS)
				n.mu.Lock()
				defer n.mu.Unlock()
				n.found[d.id().StringValue()] = true
			}
			return nil
		},
		Progress: &Progress{Target: p, DB: "replicator", Link: n.link, Resume: resume},
	}))(n.t)
	p.v = v
	go func() {
		_, err := v.Run(n.t.Context())
		n.log("%s ends: %v", p.name, err)
		select {
		case <-p.killed:
		default:
			if err != nil {
				n.fail("%s: %v", p.name, err)
			}
		}
		at <- turn{p: p}
	}()
	return p
}

// interleave runs verifications side by side: one command to their metadata at a time, in a random order.
func (n *nest) interleave() {
	at := make(chan turn)
	var held []turn
	live := 0
	// await waits until a process waits, or has ended.
	await := func(p *turns) {
		for !slices.ContainsFunc(held, func(h turn) bool { return h.p == p }) {
			w := <-at
			if w.may == nil {
				live--
				held = slices.DeleteFunc(held, func(h turn) bool { return h.p == w.p })
			} else {
				held = append(held, w)
			}
			if w.may == nil && w.p == p {
				return
			}
		}
	}
	for n.begun < mostNested || live > 0 {
		if n.failed() {
			for _, w := range held {
				w.p.kill()
			}
			for live > 0 {
				if w := <-at; w.may == nil {
					live--
				}
			}
			return
		}
		draw := n.rand.IntN(20)
		switch {
		case n.begun < mostNested && live < mostDepth && (live == 0 || draw == 0):
			live++
			await(n.begin(at, n.rand.IntN(2) == 0))
		case draw <= 3 || len(held) == 0:
			n.act()
		default:
			i := n.rand.IntN(len(held))
			w := held[i]
			held = slices.Delete(held, i, i+1)
			may := goOn
			if draw >= 19 && n.rand.IntN(3) == 0 {
				may = dieBefore + step(n.rand.IntN(2))
			}
			if n.rand.IntN(4) == 0 { // as the one in use is old
				n.log("%s: renews its cut", w.p.name)
				w.p.v.cuts.renew()
			}
			n.log("%s: %d: %s %s", w.p.name, may, w.cmd.Body, w.cmd.Docs)
			if may != goOn {
				held = slices.DeleteFunc(held, func(h turn) bool { return h.p == w.p })
			}
			w.may <- may
			await(w.p)
		}
		n.check()
	}
}

// TestInterleaved is TestNested with verifications that run side by side: each of their commands to the metadata, also those that read
// them, is sent in a random order.
func TestInterleaved(t *testing.T) {
	t.Parallel()
	source := &simcaller.Caller{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, TTLInterval: -1})}
	target := &simcaller.Caller{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, TTLInterval: -1})}
	for seed := range uint64(60) {
		n := newNest(t, source, target, "i", rand.NewPCG(2, seed), seed)
		n.interleave()
		if n.fault == "" {
			n.settle()
		}
		if n.fault != "" {
			t.Fatalf("seed %d: %s", seed, n.fault)
		}
		n.do(n.db, bson.D{{Key: "dropDatabase", Value: 1}}, source, target)
	}
}

// TestOlderCut: a verification that goes on with a collection in which another one has found a difference at a newer cut does not compare it
// at an older one, at which there is none, nor does it know better about the catalog, which it has listed before.
func TestOlderCut(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, source mongo.Caller){
		"a document": func(t *testing.T, source mongo.Caller) {
			insertRaw(t, source, "d.b", doc(element(t, "_id", 2)))
		},
		"an index": func(t *testing.T, source mongo.Caller) {
			index := bson.D{{Key: "name", Value: "x"}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}}
			must.Get(source.Call(t.Context(), mongo.Command{DB: "d", Body: must.Marshal(t, bson.D{{Key: "createIndexes", Value: "b"}, {Key: "indexes", Value: bson.A{index}}})}))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			olderCut(t, change)
		})
	}
}

func olderCut(t *testing.T, change func(t *testing.T, source mongo.Caller)) {
	t.Helper()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		for _, name := range []oplog.Namespace{"d.a", "d.b"} {
			insertRaw(t, c, name, doc(element(t, "_id", 1)))
		}
	}
	config := func() Config {
		return Config{
			Source: source, Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return nil }, Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: true},
		}
	}
	other := config()
	other.Found = func(*Difference) error { return errNestKilled }
	var met atomic.Bool
	slow := config()
	slow.Source = callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if coll, _ := cmd.Body.Lookup("find").StringValueOK(); coll == "a" && met.CompareAndSwap(false, true) {
			change(t, source)
			if _, err := must.Get(New(other))(t).Run(t.Context()); !errors.Is(err, errNestKilled) { //nolint:contextcheck // another process
				t.Error(err)
			}
		}
		return source.Call(ctx, cmd)
	})
	check(t, slow)
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); !met.Load() || st.Differences != 1 {
		t.Errorf("%+v", st)
	}
}

// TestOvertakenAtOlderCut: a verification that begins while another one reports a difference at a newer cut than its own does not hide that.
func TestOvertakenAtOlderCut(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{false, true} {
		t.Run(fmt.Sprintf("marked %t", marked), func(t *testing.T) {
			t.Parallel()
			source, target := cluster(t), cluster(t)
			for _, c := range []mongo.Caller{source, target} {
				insertRaw(t, c, "d.a", doc(element(t, "_id", 1)))
			}
			config := func(on mongo.Caller) Config {
				return Config{
					Source: source, Target: on, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
					Found: func(*Difference) error { return nil }, Progress: &Progress{Target: on, DB: "replicator", Link: "l"},
				}
			}
			check(t, config(target))
			if marked {
				must.Succeed(t, (&standing.Store{Target: target, DB: "replicator", Link: "l"}).Mark(t.Context(), "planted", "d.a"))
			}

			compares, goOn, killed := make(chan struct{}), make(chan struct{}), make(chan error)
			var met atomic.Bool
			earlier := config(callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
				if name := simcaller.Name(cmd); name == "update" && strings.Contains(fmt.Sprint(cmd.Docs), "pass.made") && met.CompareAndSwap(false, true) {
					close(compares)
					<-goOn
				}
				return target.Call(ctx, cmd)
			}))
			earlier.Found = func(*Difference) error { return errNestKilled }
			v := must.Get(New(earlier))(t)
			go func() {
				_, err := v.Run(t.Context())
				killed <- err
			}()
			<-compares

			var once atomic.Bool
			check(t, config(callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
				if simcaller.Name(cmd) == "update" && strings.Contains(fmt.Sprint(cmd.Docs), "begins") && once.CompareAndSwap(false, true) {
					insertRaw(t, source, "d.a", doc(element(t, "_id", 2))) //nolint:contextcheck // a command of the test
					v.cuts.renew()                                         // as the one in use is old
					close(goOn)
					if err := <-killed; !errors.Is(err, errNestKilled) {
						t.Error(err)
					}
				}
				return target.Call(ctx, cmd)
			})))
			read := func() standing.Standing { return must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t) }
			if st := read(); !once.Load() || st.AsOf != nil && st.Differences != 1 {
				t.Errorf("%+v", st)
			}
			check(t, config(target))
			if st := read(); st.AsOf == nil || st.Differences != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// idle makes cuts of a link whose source writes nothing: only their times of the target differ.
type idle struct{ rest }

// Next implements Cuts.
func (i *idle) Next(ctx context.Context) (Cut, error) {
	source, err := mongo.OperationTime(ctx, i.source)
	if err != nil {
		return Cut{}, err
	}
	tick := bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "upsert", Value: true}}}
	cmd, err := bson.Marshal(bson.D{{Key: "update", Value: "ticks"}, {Key: "updates", Value: tick}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	if err != nil {
		return Cut{}, err
	}
	if _, err := mongo.Twice(i.target).Call(ctx, mongo.Command{DB: "replicator", Body: cmd}); err != nil {
		return Cut{}, err
	}
	target, err := mongo.OperationTime(ctx, i.target)
	return Cut{Source: source, Target: target, At: time.Now()}, err
}

// TestBeginsAgainAtNewerCut: a verification that begins again, as another one has begun, does not use its earlier cut: the other one may have
// found a difference at a newer one.
func TestBeginsAgainAtNewerCut(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.a", doc(element(t, "_id", 1)))
	}
	config := func(on mongo.Caller) Config {
		return Config{
			Source: source, Target: on, Cuts: &idle{rest{source: source, target: target}}, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return nil }, Progress: &Progress{Target: on, DB: "replicator", Link: "l"},
		}
	}
	check(t, config(target))
	other := config(target)
	other.Found = func(*Difference) error { return errNestKilled }
	var once atomic.Bool
	check(t, config(callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if simcaller.Name(cmd) == "update" && strings.Contains(fmt.Sprint(cmd.Docs), "begins") && once.CompareAndSwap(false, true) {
			insertRaw(t, target, "d.a", doc(element(t, "_id", 2)))                                  //nolint:contextcheck // a command of the test
			if _, err := must.Get(New(other))(t).Run(t.Context()); !errors.Is(err, errNestKilled) { //nolint:contextcheck // another process
				t.Error(err)
			}
		}
		return target.Call(ctx, cmd)
	})))
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); !once.Load() || st.Differences != 1 {
		t.Errorf("%+v", st)
	}
}
