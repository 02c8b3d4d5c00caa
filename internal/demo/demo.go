package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/status"
)

const link = "demo"

// Config configures a Demo.
type Config struct {
	// Seed is the seed of the written data.
	Seed uint64
	// Writing is how long clients write. Default 12 s.
	Writing time.Duration
	// Documents is the number of documents in the source before the clients
	// write. Default 40,000.
	Documents int
	// Catchup is how long the target may take after that. Default 60 s.
	Catchup time.Duration
	// Out receives the output. With InPlace it is a terminal: progress stays on
	// one line. Otherwise there is a line each second.
	Out     io.Writer
	InPlace bool
	// Listen is the address to serve the page at, empty for none.
	Listen string
	// Keep leaves both sets and the link running after the comparison, until Run's context is
	// done.
	Keep bool

	// tamper, if not nil, may change the target before it is compared.
	tamper func(ctx context.Context, target *driver.Set) error
}

func (c *Config) setDefaults() {
	if c.Writing == 0 {
		c.Writing = 12 * time.Second
	}
	if c.Documents == 0 {
		c.Documents = 40_000
	}
	if c.Catchup == 0 {
		c.Catchup = time.Minute
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Out == nil {
		faults = append(faults, errors.New("demo: nowhere to show it"))
	}
	if c.Documents < 0 {
		faults = append(faults, fmt.Errorf("demo: begin with %d documents: want more than 0", c.Documents))
	}
	if c.Writing < 0 || c.Catchup < 0 {
		faults = append(faults, fmt.Errorf("demo: write for %s, catch up for %s: want more than 0", c.Writing, c.Catchup))
	}
	return errors.Join(faults...)
}

// Demo shows a link. Make one with New.
type Demo struct {
	cfg    Config
	screen *screen

	sourceSet, targetSet *mongosim.Set
	source, target       *driver.Set
	traffic              *traffic.Traffic
	pipeline             *pipeline.Pipeline
	registry             *prometheus.Registry
	tracker              *status.Tracker

	spoolDir string

	// kept is closed when all is left running.
	kept chan struct{}

	// written is closed when enough was written to the source for the link to
	// start.
	written chan struct{}
	// copied is closed when the target is consistent for the first time.
	copied     chan struct{}
	copiedOnce sync.Once

	result Result
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Demo, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Demo{
		cfg: cfg, screen: &screen{out: cfg.Out, inPlace: cfg.InPlace}, written: make(chan struct{}), copied: make(chan struct{}),
		kept: make(chan struct{}),
	}, nil
}

// Run runs the demo and returns its result, in which the sets may differ. When ctx
// is done it ends at once and returns the cause.
func (d *Demo) Run(ctx context.Context) (Result, error) {
	began := time.Now()
	defer d.screen.end()
	d.screen.line("starting two replica sets of three members each")
	err := d.start(ctx)
	defer d.close()
	if err != nil {
		return d.result, err
	}
	stop, err := d.servePage(ctx)
	if err != nil {
		return d.result, err
	}
	defer stop()
	if err := d.fill(ctx); err != nil {
		if ctx.Err() != nil {
			return d.result, context.Cause(ctx)
		}
		return d.result, err
	}
	err = d.mirror(ctx)
	select {
	case <-d.kept:
		return d.result, nil // it has been compared, and was ended
	default:
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return d.result, context.Cause(ctx)
	case err != nil:
		return d.result, err
	}
	if err := d.compare(ctx); err != nil {
		return d.result, err
	}
	d.result.Took = time.Since(began)
	d.screen.line("%s", d.result.String())
	return d.result, nil
}

// start starts both sets and connects to them.
func (d *Demo) start(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	begin := func(name string, set **mongosim.Set, conn **driver.Set) func() error {
		return func() error {
			s, err := mongosim.Start(ctx, mongosim.Options{
				Members: 3, SetName: name, Seed: int64(d.cfg.Seed),
			})
			if err != nil {
				return fmt.Errorf("demo: start the %s set: %w", name, err)
			}
			*set = s
			if err := s.AwaitSynced(ctx); err != nil {
				return fmt.Errorf("demo: wait for the %s set: %w", name, err)
			}
			o, err := driver.Parse(driver.Config{URI: s.URI(), AppName: "replicator-lab demo"})
			if err != nil {
				return fmt.Errorf("demo: %s: %w", name, err)
			}
			if *conn, err = driver.Open(ctx, o); err != nil {
				return fmt.Errorf("demo: connect to the %s set: %w", name, err)
			}
			return nil
		}
	}
	g.Go(begin("source", &d.sourceSet, &d.source))
	g.Go(begin("target", &d.targetSet, &d.target))
	if err := g.Wait(); err != nil {
		return err
	}
	return d.setUp()
}

// setUp makes the link and its clients.
func (d *Demo) setUp() error {
	sc, err := scope.New(scope.Config{})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.registry = prometheus.NewRegistry()
	d.tracker, err = status.New(status.Config{
		Version: "demo", Link: link, Source: d.source, Target: d.target, TargetPrimary: d.target.Primary, Registry: d.registry,
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if d.spoolDir, err = os.MkdirTemp("", "replicator-demo-*"); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.pipeline, err = pipeline.New(pipeline.Config{
		Link: link, Scope: sc, Observer: d.observe, Registry: d.registry,
		Copy: initialsync.Options{Wanted: true, SpoolDir: d.spoolDir, RangeBytes: 4 << 20},
	}, d.source, d.target)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.tracker.Follow(d.pipeline.Snapshot)
	d.traffic, err = traffic.New(traffic.Config{Cluster: d.source, Seed: d.cfg.Seed, ChainBytes: 17 << 20})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

func (d *Demo) observe(e event.Event) {
	d.tracker.Observe(e)
	// Until the target is consistent this is only set by the copy.
	if e, ok := e.(monitor.StateChanged); ok && (e.To == monitor.Steady || e.To == monitor.CatchingUp) {
		d.copiedOnce.Do(func() { close(d.copied) })
	}
}

func (d *Demo) close() {
	for _, conn := range []*driver.Set{d.source, d.target} {
		if conn != nil {
			conn.Close()
		}
	}
	for _, set := range []*mongosim.Set{d.sourceSet, d.targetSet} {
		if set != nil {
			set.Close()
		}
	}
	if d.spoolDir != "" {
		_ = os.RemoveAll(d.spoolDir) // the system removes the rest
	}
}

var errOver = errors.New("the demo is over")

// mirror runs the link, and concurrently the clients and the failovers.
func (d *Demo) mirror(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	soft, drain := context.WithCancelCause(ctx)
	defer drain(errOver)
	background, endBackground := context.WithCancelCause(ctx)
	defer endBackground(errOver)
	g.Go(func() error {
		select {
		case <-d.written:
		case <-soft.Done():
			return nil // the caller that ended it says why
		}
		if err := d.pipeline.Run(ctx, soft); err != nil {
			return fmt.Errorf("demo: mirror: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		_ = d.tracker.Run(background) // it returns the cause of our own cancellation
		return nil
	})
	g.Go(func() error {
		d.showLoop(background)
		return nil
	})
	g.Go(func() error {
		defer drain(errOver)
		defer endBackground(errOver)
		if err := d.play(ctx); err != nil || !d.cfg.Keep {
			return err
		}
		if err := d.compare(ctx); err != nil {
			return err
		}
		return d.keep(ctx)
	})
	err := g.Wait()
	s := d.pipeline.Snapshot()
	d.result.Ops, d.result.Attempts = s.Progress.Ops, s.Attempts
	return err
}

// compare compares the sets.
func (d *Demo) compare(ctx context.Context) error {
	if d.cfg.tamper != nil {
		if err := d.cfg.tamper(ctx, d.target); err != nil {
			return err
		}
	}
	d.screen.line("comparing every collection, index and document")
	// A busy machine may delay the heartbeats of a set, which then elects another primary.
	err := mongo.Retry{For: d.cfg.Catchup, Again: interrupted}.Do(ctx, func() error {
		deferred, err := deferredOf(ctx, d.target)
		if err != nil {
			return err
		}
		d.result.Compared, err = compare.Compare(ctx, compare.Cluster(d.source), compare.Cluster(d.target), compare.Options{Deferred: deferred})
		return err
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// interrupted reports whether reads fail only until a set has a primary again.
func interrupted(err error) bool {
	return mongo.PassesRead(err) || servererr.Classify(err) == servererr.NotPrimary
}
