package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/mongo"
)

// Config describes the load.
type Config struct {
	// Cluster is the cluster to write to; required.
	Cluster mongo.Caller
	// DB is the name of the database, and the beginning of that of a second one.
	// Default "demo".
	DB string
	// Seed is the seed of all choices.
	Seed uint64
	// Clients is how many write at once, default 4. One more changes collections.
	Clients int
	// Keys is how many documents there are to choose from in each collection, more
	// or less. Default 400.
	Keys int
	// Pause is the mean time between two commands of a client, default 2 ms;
	// KeeperPause that of the one that changes collections, default 60 ms.
	// Negative means none.
	Pause, KeeperPause time.Duration
	// ChainBytes, if not 0, makes one transaction that is as large as this. Beyond
	// 16 MiB the log needs several entries for it.
	ChainBytes int
	// NoCappedKeys keeps capped collections from becoming those that clients write to by key: a target trims them itself, so that
	// updates and deletes may find nothing there.
	NoCappedKeys bool
	// NoTimeSeries leaves time series out: servers before 5.0 have none.
	NoTimeSeries bool
	// Before6 leaves out what a target before 6.0 cannot have: clustered collections, other sizes of a capped collection, and images
	// for change streams.
	Before6 bool
	// Rare adds clients for operations that are rare elsewhere: see Check. Embedded says that the cluster is an embedded set, which has not all commands for that.
	Rare, Embedded bool
	// OnceOnly leaves out deletes of buckets, users, roles and functions, which transactions refuse: a link may repeat them after a crash, and they find nothing then.
	OnceOnly bool
}

// Between leaves out what a mirror from a source of one major version to a target of another would not have.
func (c *Config) Between(source, target int) {
	c.Before6 = target < 6 && source > target
	c.NoCappedKeys = c.NoCappedKeys || c.Before6 // sources from 6.0 on change the sizes of documents there
	// The embedded set has no time series as 8.0 writes them.
	c.NoTimeSeries = min(source, target) < 5 || c.Embedded && source >= 8
}

func (c *Config) setDefaults() {
	if c.DB == "" {
		c.DB = "demo"
	}
	if c.Clients == 0 {
		c.Clients = 4
	}
	if c.Keys == 0 {
		c.Keys = 400
	}
	if c.Pause == 0 {
		c.Pause = 2 * time.Millisecond
	}
	if c.KeeperPause == 0 {
		c.KeeperPause = 60 * time.Millisecond
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Cluster == nil {
		faults = append(faults, errors.New("traffic: no cluster"))
	}
	if c.Clients < 0 {
		faults = append(faults, fmt.Errorf("traffic: %d clients", c.Clients))
	}
	if c.Keys < 1 {
		faults = append(faults, fmt.Errorf("traffic: %d keys: want 1 or more", c.Keys))
	}
	if c.ChainBytes < 0 {
		faults = append(faults, fmt.Errorf("traffic: a transaction of %d bytes", c.ChainBytes))
	}
	return errors.Join(faults...)
}

// Stats count the work done so far.
type Stats struct {
	// Writes are the statements that were carried out outside of transactions.
	Writes int64
	// Transactions were committed, Large of them with 100 statements or more, and
	// Aborted not.
	Transactions, Large, Aborted int64
	// Commands changed collections, indexes or views.
	Commands int64
	// Rare is how many commands the clients for rare writes have had carried out.
	Rare int64
	// Refused are commands and statements that the server refused, as such a
	// mixture brings.
	Refused int64
	// Lost are commands that got no answer, or met a member that is not primary.
	Lost int64
}

type stats struct {
	writes, transactions, large, aborted, commands, rare, refused, lost atomic.Int64
}

// Traffic is a load. Make one with New.
type Traffic struct {
	cfg   Config
	stats stats
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Traffic, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Traffic{cfg: cfg}, nil
}

// Stats returns the counts so far.
func (w *Traffic) Stats() Stats {
	s := &w.stats
	return Stats{
		Writes: s.writes.Load(), Transactions: s.transactions.Load(), Large: s.large.Load(), Aborted: s.aborted.Load(),
		Commands: s.commands.Load(), Rare: s.rare.Load(), Refused: s.refused.Load(), Lost: s.lost.Load(),
	}
}

// Run writes until soft is done; each client then completes its current command,
// and Run returns nil. When ctx is done it returns its cause at once. Any other
// error is an unexpected refusal.
func (w *Traffic) Run(ctx, soft context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range w.cfg.Clients {
		c := w.client(i)
		g.Go(func() error { return c.loop(ctx, soft, w.cfg.Pause, c.step) })
	}
	k := &keeper{client: w.client(-1)}
	g.Go(func() error {
		if err := k.prepare(ctx); err != nil {
			return err
		}
		return k.loop(ctx, soft, w.cfg.KeeperPause, k.step)
	})
	if w.cfg.Rare {
		g.Go(func() error { return w.rare(ctx, soft) })
		o := &wide{client: w.client(-3)}
		g.Go(func() error { return o.loop(ctx, soft, w.cfg.KeeperPause, o.step) })
	}
	return g.Wait()
}

func (w *Traffic) rare(ctx, soft context.Context) error {
	o := &rare{client: w.client(-2)}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	if err := o.loop(ctx, soft, w.cfg.KeeperPause, o.step); err != nil {
		return err
	}
	return o.finish(ctx)
}

func (w *Traffic) client(number int) *client {
	return &client{
		w: w, no: number, cfg: &w.cfg, cluster: w.cfg.Cluster,
		rnd: rand.New(rand.NewPCG(w.cfg.Seed, uint64(number+1))),
	}
}
