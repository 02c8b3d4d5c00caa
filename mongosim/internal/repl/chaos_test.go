package repl

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestNothingAcknowledgedIsLost cuts, kills and restarts members at random for ten
// minutes while clients write with majority. Acknowledged writes must be on
// every later primary; terms never go back, no member sees a second primary of one
// term, and in the end all oplogs are the same.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	seeds := 6
	switch {
	case race.Enabled:
		seeds = 1
	case testing.Short():
		seeds = 3
	}
	if v, err := strconv.Atoi(os.Getenv("REPL_TEST_SEEDS")); err == nil {
		seeds = v
	}
	first, _ := strconv.Atoi(os.Getenv("REPL_TEST_FIRST"))
	for seed := first; seed < first+seeds; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, uint64(seed)) })
		})
	}
}

type chaosLog struct {
	mu       sync.Mutex
	acked    []string
	primary  map[int64]string // by term
	rollback int
}

func chaos(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 3 + 2*int(seed%2)
	c := newCluster(t, n, func(cfg *Config) {
		cfg.ElectionTimeout = 2 * time.Second
		cfg.HeartbeatInterval = 500 * time.Millisecond
		cfg.Seed = int64(seed)
		if seed%3 == 2 {
			cfg.JournalDelay = 30 * time.Millisecond
		}
	})
	c.delay = time.Duration(seed%3) * 3 * time.Millisecond
	c.initiate(nil, nil)
	log := &chaosLog{primary: map[int64]string{}}
	ctx, stop := context.WithCancelCause(c.ctx)
	var clients sync.WaitGroup
	for i := range 4 {
		r := rand.New(rand.NewPCG(seed, uint64(100+i)))
		clients.Go(func() { writer(ctx, c, log, r, i) })
	}
	clients.Go(func() { watcher(ctx, c, log) })
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		time.Sleep(time.Duration(rng.IntN(15000)) * time.Millisecond)
		shake(c, rng)
	}
	stop(nil)
	clients.Wait()
	c.heal()
	p := c.settled()
	log.check(t, c, p, seed)
	t.Logf("%d members, %d acknowledged writes, %d terms with a primary, %d rollbacks", n, len(log.acked), len(log.primary), log.rollback)
}

// shake does one thing to a cluster.
func shake(c *cluster, rng *rand.Rand) {
	n := len(c.hosts)
	switch rng.IntN(5) {
	case 0, 1: // two groups that do not see each other
		c.heal()
		hosts := slices.Clone(c.hosts)
		rng.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
		k := 1 + rng.IntN(n-1)
		c.split(hosts[:k], hosts[k:])
	case 2: // one direction of one link
		a, b := c.hosts[rng.IntN(n)], c.hosts[rng.IntN(n)]
		c.mu.Lock()
		c.cut[[2]string{a, b}] = true
		c.mu.Unlock()
	case 3:
		host := c.hosts[rng.IntN(n)]
		durable := c.node(host).View().Durable
		store := c.kill(host)
		if rng.IntN(2) == 0 {
			// As if the power had failed: entries that were not durable are
			// gone. Stable ones stay, and then nothing is lost.
			_ = store.Write(func(w *storage.Writer) error { return w.RollbackTo(durable.TS) })
		}
		time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
		c.start(host, store)
	default:
		c.heal()
	}
}

// check compares the members at the end, and looks for every acknowledged write.
func (log *chaosLog) check(t *testing.T, c *cluster, p *testNode, seed uint64) {
	last := p.mustWrite("last")
	for _, h := range c.hosts {
		tn := c.node(h)
		c.until(h+" has everything", func() bool { return tn.View().Committed == last })
		if !slices.Equal(tn.entries(), p.entries()) {
			t.Errorf("seed %d: %s and %s differ at the end", seed, h, p.host)
		}
		if f := tn.Fatal(); f != "" {
			t.Errorf("seed %d: %s: %s", seed, h, f)
		}
		if rb := tn.View().RBID; rb > 1 {
			log.rollback += rb - 1
		}
	}
	words := map[string]bool{}
	for _, w := range p.words() {
		words[w] = true
	}
	for _, w := range log.acked {
		if !words[w] {
			t.Errorf("seed %d: %s was acknowledged and is gone", seed, w)
		}
	}
	if len(log.acked) < 100 || len(log.primary) < 3 {
		t.Errorf("seed %d: only %d writes and %d elections", seed, len(log.acked), len(log.primary))
	}
}

func writer(ctx context.Context, c *cluster, log *chaosLog, r *rand.Rand, id int) {
	for i := 0; ctx.Err() == nil; i++ {
		sleep(ctx, time.Duration(1+r.IntN(400))*time.Millisecond, nil)
		tn := c.node(c.hosts[r.IntN(len(c.hosts))])
		if tn == nil || ctx.Err() != nil {
			continue
		}
		word := fmt.Sprintf("%d-%d", id, i)
		at, err := tn.write(word)
		if err != nil {
			continue
		}
		err = tn.AwaitWriteConcern(ctx, at, WriteConcern{Mode: "majority", Timeout: 3 * time.Second})
		if err == nil {
			log.mu.Lock()
			log.acked = append(log.acked, word)
			log.mu.Unlock()
		}
	}
}

// watcher looks at every member all the time.
func watcher(ctx context.Context, c *cluster, log *chaosLog) {
	terms := map[*testNode]int64{}
	committed := map[*testNode]oplog.OpTime{}
	for ctx.Err() == nil {
		sleep(ctx, 20*time.Millisecond, nil)
		for _, h := range c.hosts {
			tn := c.node(h)
			if tn == nil {
				continue
			}
			v := tn.View()
			if v.Term < terms[tn] {
				c.t.Errorf("%s: the term went from %d to %d", h, terms[tn], v.Term)
			}
			terms[tn] = v.Term
			if v.Committed.Before(committed[tn]) && !v.Committed.IsNull() {
				c.t.Errorf("%s: the commit point went from %s to %s", h, committed[tn], v.Committed)
			}
			committed[tn] = v.Committed
			if v.Committed.After(v.Applied) {
				c.t.Errorf("%s: committed %s, applied %s", h, v.Committed, v.Applied)
			}
			if v.State == oplog.MemberPrimary {
				log.mu.Lock()
				if other, ok := log.primary[v.Term]; ok && other != h {
					c.t.Errorf("term %d has two primaries: %s and %s", v.Term, other, h)
				}
				log.primary[v.Term] = h
				log.mu.Unlock()
			}
		}
	}
}

// TestCommittedOplogsAgree compares the members' oplogs up to their commit points
// while the set is cut apart.
func TestCommittedOplogsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, func(cfg *Config) { cfg.ElectionTimeout = time.Second; cfg.HeartbeatInterval = 200 * time.Millisecond })
		c.initiate(nil, nil)
		rng := rand.New(rand.NewPCG(5, 5))
		upTo := func(tn *testNode) map[bson.Timestamp]int64 {
			at := tn.View().Committed
			all := map[bson.Timestamp]int64{}
			for _, e := range tn.entries() {
				if !e.After(at) {
					all[e.TS] = e.Term
				}
			}
			return all
		}
		for range 60 {
			hosts := slices.Clone(c.hosts)
			rng.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
			c.heal()
			k := 1 + rng.IntN(4)
			c.split(hosts[:k], hosts[k:])
			for range 20 {
				time.Sleep(200 * time.Millisecond)
				for _, h := range c.hosts {
					_, _ = c.node(h).write("x")
				}
			}
			for _, a := range c.hosts {
				for _, b := range c.hosts {
					mine, theirs := upTo(c.node(a)), upTo(c.node(b))
					for ts, term := range mine {
						if other, ok := theirs[ts]; ok && other != term {
							t.Fatalf("%s and %s have different entries at %v", a, b, ts)
						}
					}
				}
			}
		}
	})
}
