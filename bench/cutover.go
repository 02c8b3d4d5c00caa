package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/request"
)

const (
	// downtime is from the last write that the source has acknowledged to the acknowledgement of the first
	// one that the target can be sent: after the commit point.
	downtime = "downtime"
	// moveWithin limits how long a cutover may take after the last write.
	moveWithin = time.Minute
)

// moving measures cutovers of a link whose source is written to.
type moving struct {
	*mirror
	link *link
	name string
	// moved: the link is cut over.
	moved bool
	// downtimes has one value of each round.
	downtimes meter.Histogram
}

// measureCutover measures cutovers of a link that has caught up while its source is written to at c.Rate for
// c.Duration: for how long clients can write to neither side. A command of the operator stops the
// clients, which every version of a server allows, and a way back is armed. Each round has sets of
// its own.
func measureCutover(ctx context.Context, c Config) (*result.Run, error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), setsOnly(c)); err != nil {
		return nil, fmt.Errorf("measure a cutover: %w", err)
	}
	c.Workload.Ops = max(1, int(c.Rate*c.Duration.Seconds()))
	run := newRun("cutover", c)
	run.Settings["rate"] = c.Rate
	var err error
	if run.Ops, run.Bytes, err = logSize(c.Workload); err != nil {
		return nil, err
	}
	m := &moving{mirror: &mirror{cfg: c}}
	if err := turns(ctx, c, &contender{
		run: run,
		prepare: func(ctx context.Context, round int) (func(context.Context) error, error) {
			if err := m.begin(ctx, run, round); err != nil {
				return nil, errors.Join(err, m.end(ctx))
			}
			return m.move, nil
		},
		after: m.end,
	}); err != nil {
		return nil, fmt.Errorf("measure a cutover: %w", err)
	}
	run.Latencies = map[string]result.Latency{downtime: m.downtimes.Latency()}
	run.Notes = []string{"downtime is from the acknowledgement of the last write to the source to that of a first one to the target, sent once the link has ended"}
	return run, nil
}

// begin starts sets and a link, and waits until it has caught up.
func (m *moving) begin(ctx context.Context, run *result.Run, round int) error {
	m.link = nil
	if err := m.open(ctx); err != nil {
		return err
	}
	run.Source, run.Target = m.source.Is, m.target.Is
	m.name, m.moved = linkName(run.Kind, round), false
	var err error
	m.link, err = m.start(ctx, m.name, func(cfg *pipeline.Config) {
		cfg.Filters = &checkpoint.Filters{Include: m.target.touched(m.collections)} // a way back is of them
	})
	if err != nil {
		return err
	}
	return m.link.steady(ctx)
}

// move writes to the source at the pace, and cuts the link over: the writes end as the command of the
// operator that stops them is executed.
func (m *moving) move(ctx context.Context) error {
	w := &lastWrite{}
	if err := m.withClients(ctx, func(source, target *plain.Client) error { return m.moveWith(ctx, source, target, w) }); err != nil {
		return err
	}
	m.moved = true
	m.downtimes.Record(w.first.Sub(w.last))
	return nil
}

// moveWith is move with a client of each side. It records the writes in w.
func (m *moving) moveWith(ctx context.Context, source, target *plain.Client, w *lastWrite) error {
	stopped := make(chan error, 1)
	go func() { stopped <- source.Pace(ctx, m.cfg.Workload, m.cfg.Rate, w.acked) }()
	err := m.cutOver(ctx, &cutover.Config{
		Shell: func(context.Context, string, []string) error { return <-stopped },
		Told: func(step record.Taken) {
			if step.Step == record.Commit && !step.Ended.IsZero() && w.first.IsZero() {
				w.first, w.failed = target.WriteProbe(ctx)
			}
		},
	})
	return errors.Join(err, w.failed)
}

// lastWrite has the times of the last write to the source, and of the first one to the target.
type lastWrite struct {
	mu   sync.Mutex
	last time.Time
	// first is zero until the target has acknowledged a write; failed is why it has not.
	first  time.Time
	failed error
}

func (w *lastWrite) acked(_, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at.After(w.last) {
		w.last = at
	}
}

// cutOver carries out the cutover. The link ends with it: its process loses the lease.
func (m *moving) cutOver(ctx context.Context, cfg *cutover.Config) error {
	store, err := checkpoint.New(checkpoint.Config{Target: m.target.Set, DB: ends.MetaDB, Link: m.name})
	if err != nil {
		return err
	}
	cfg.Target, cfg.MetaDB, cfg.Process = m.target.Set, ends.MetaDB, "bench"
	cfg.Drain = cutover.DrainConfig{
		Source: m.source.Set, Cuts: request.New(store), Link: m.name, By: "bench", Within: m.cfg.Duration + moveWithin,
		OnWait: func(what string) { say(m.cfg, "cutover: %s", what) },
	}
	o := &record.Options{Freeze: record.Command, FreezeCommand: "stop the writers"}
	lock := cutover.LockConfig{Target: m.target.Set, MetaDB: ends.MetaDB, Link: m.name, By: "bench", Why: "cutover", Said: cfg.Drain.OnWait}
	return cutover.Locked(ctx, lock, func(ctx context.Context) error {
		_, err := cutover.Run(ctx, cfg, o)
		return err
	})
}

// end ends what begin has started, once both sides have been compared.
func (m *moving) end(ctx context.Context) error {
	defer m.close()
	if m.link == nil {
		return nil
	}
	m.link.stop()
	var err error
	if m.moved {
		err = same(ctx, m.source.End, m.target.End, m.name, m.collections)
	}
	return errors.Join(err, m.tidy(ctx))
}

// cutover measures for how long clients cannot write while a link is cut over.
func (s *suite) cutover(ctx context.Context) error {
	c, err := s.config("mixed", 20_000, 20_000)
	if err != nil {
		return err
	}
	c.Rounds, c.Duration = 5, max(time.Second, time.Duration(s.cfg.Scale*float64(3*time.Second)))
	run, err := measureCutover(ctx, c)
	if err != nil {
		return err
	}
	s.add(run)
	s.most("cutover at 1,000 ops/s: downtime", "of 5, the longest time between the last write to the source and the first to the target under 2 s", "s", run.Latencies[downtime].Max, mostDowntime, result.OnEmbedded(run))
	return nil
}
