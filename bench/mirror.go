package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
)

// The latencies of a mirror.
const (
	// acknowledged is the latency of a write to the source with write concern 1.
	acknowledged = "acknowledged"
	// majority is the latency of a probe's write with write concern majority.
	majority = "majority"
	// commitToApplied is from an entry's wall clock to the acknowledgement of the
	// flush that it is in.
	commitToApplied = "commit-to-applied"
	// probed is from the majority's acknowledgement of a probe's write to when it can be
	// read in the target.
	probed = "probe"
	// stalled is how long the lanes waited for consistent cuts, at most.
	stalled = "stall"
)

// probeEvery is the time between two probes. A probe's reader polls without a pause,
// so that more probes would be a load of their own.
const probeEvery = 50 * time.Millisecond

// mirrorMembers is the number of members of a source started here. With one member the
// commit waits for its journal, up to 100 ms with write concern 1; with three, for the
// next batch of another member. With fewer a note says so.
const mirrorMembers = 3

// slowPace is the share of the rate below which a mirror notes that it was
// slower.
const slowPace = 0.9

// mirror is a link whose source is being written to.
type mirror struct {
	cfg            Config
	source, target *place
	collections    []workload.Collection
	acked, applied meter.Histogram
	// own are the latencies of the probes' acknowledgements, probes those from
	// acknowledgement to arrival.
	own, probes meter.Histogram
	// stalls are how long lanes waited for cuts.
	stalls meter.Histogram
}

// Mirror measures a whole link while its source is written to at c.Rate for
// c.Duration: how long after its commit an operation is applied. It is one round, as
// it has many measurements in it.
func Mirror(ctx context.Context, c Config) (_ *result.Run, err error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), setsOnly(c)); err != nil {
		return nil, fmt.Errorf("measure a mirror: %w", err)
	}
	c.Workload.Ops = max(1, int(c.Rate*c.Duration.Seconds()))
	m := &mirror{cfg: c}
	defer m.close()
	defer func() {
		err = errors.Join(err, m.tidy(ctx))
	}()
	run, err := m.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure a mirror: %w", err)
	}
	return run, nil
}

func (m *mirror) run(ctx context.Context) (*result.Run, error) {
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	run := newRun("mirror", m.cfg)
	run.Settings["rate"] = m.cfg.Rate
	run.Source, run.Target = m.source.Is, m.target.Is
	var err error
	if run.Ops, run.Bytes, err = logSize(m.cfg.Workload); err != nil {
		return nil, err
	}
	name := linkName("mirror", 0)
	l, err := m.start(ctx, name, func(cfg *pipeline.Config) {
		cfg.OnFlush, cfg.CutInterval = m.flushed, m.cfg.CutEvery
		cfg.OnCut = func(c checkpoint.Cut) { m.stalls.Record(c.Stall) }
	})
	if err != nil {
		return nil, err
	}
	defer l.stop()
	if err := l.steady(ctx); err != nil {
		return nil, err
	}
	say(m.cfg, "mirror: %d operations at %g/s", m.cfg.Workload.Ops, m.cfg.Rate)
	if err := m.measured(ctx, run, l); err != nil {
		return nil, err
	}
	if err := l.end(); err != nil {
		return nil, err
	}
	if err := same(ctx, m.source.End, m.target.End, name, m.collections); err != nil {
		return nil, err
	}
	run.Latencies = map[string]result.Latency{
		acknowledged: m.acked.Latency(), commitToApplied: m.applied.Latency(),
		majority: m.own.Latency(), probed: m.probes.Latency(),
	}
	if m.cfg.CutEvery > 0 {
		run.Latencies[stalled] = m.stalls.Latency()
	}
	run.Notes = m.notes(run)
	return run, nil
}

// start starts the link from the source's newest entry on, with the settings that change makes.
func (m *mirror) start(ctx context.Context, name string, change func(*pipeline.Config)) (*link, error) {
	start, err := newest(ctx, m.source.Set)
	if err != nil {
		return nil, err
	}
	names, err := only(m.target.touched(m.collections))
	if err != nil {
		return nil, err
	}
	cfg := linkConfig(m.cfg, name, names, start)
	change(&cfg)
	return startLink(ctx, cfg, m.source.End, m.target.End)
}

// withClients runs work with a client of each side.
func (m *mirror) withClients(ctx context.Context, work func(source, target *plain.Client) error) error {
	source, err := plain.Connect(ctx, m.source.URI)
	if err != nil {
		return err
	}
	defer source.Close(ctx)
	target, err := plain.Connect(ctx, m.target.URI)
	if err != nil {
		return err
	}
	defer target.Close(ctx)
	return work(source, target)
}

// notes describe the measurement, and deviations.
func (m *mirror) notes(run *result.Run) []string {
	var notes []string
	if pace := run.OpsPerSecond(); pace < slowPace*m.cfg.Rate {
		notes = append(notes, fmt.Sprintf("the pace was not kept: it was %.0f operations a second", pace))
	}
	if run.Source.Members < mirrorMembers {
		notes = append(notes, fmt.Sprintf("the source is %s: with fewer than %d members it is its journal that commits, up to 100 ms after a write with write concern 1", run.Source, mirrorMembers))
	}
	return append(notes,
		"commit-to-applied is from the wall clock of the oldest entry of a flush to the acknowledgement of that, counted for each of its operations: no entry is later than it says",
		"an entry's wall clock has whole milliseconds, so that up to 1 ms is counted too much, and is the source's, which has to be this machine's or as good",
		fmt.Sprintf("probe is from a write's own acknowledgement by a majority of the source, which is shown as majority, to the first read that finds it in the target; one is written every %s, and from its acknowledgement on read for without a pause", probeEvery))
}

// open makes both ends, with the workload's initial documents.
func (m *mirror) open(ctx context.Context) error {
	var err error
	if m.collections, err = collectionsOf(m.cfg.Workload); err != nil {
		return err
	}
	// Created beforehand: every writer waits for a command.
	m.collections = append(m.collections, workload.Collection{NS: oplog.NewNamespace(plain.ProbeDB, plain.ProbeCollection)})
	if m.source, m.target, err = openBoth(ctx, m.cfg, mirrorMembers, m.collections); err != nil {
		return err
	}
	for _, p := range []*place{m.source, m.target} {
		if err := p.prepare(ctx, m.cfg.Overwrite, m.collections); err != nil {
			return err
		}
	}
	return nil
}

// measured is the measured span: it writes to the source, and ends when
// everything is applied.
func (m *mirror) measured(ctx context.Context, run *result.Run, l *link) error {
	return m.withClients(ctx, func(source, target *plain.Client) error {
		usage, err := measure(m.cfg, m.cfg.profiles(m.cfg.Rounds-1), func() error {
			if err := m.write(ctx, source, target); err != nil {
				return err
			}
			last, err := newest(ctx, m.source.Set)
			if err != nil {
				return err
			}
			return l.reaches(ctx, last)
		})
		if err != nil {
			return err
		}
		rounds{usage}.into(run)
		return nil
	})
}

// write writes at the pace, and probes concurrently.
func (m *mirror) write(ctx context.Context, source, target *plain.Client) error {
	g, ctx := errgroup.WithContext(ctx)
	probing, enough := context.WithCancelCause(ctx)
	g.Go(func() error {
		return plain.Probe(probing, source, target, probeEvery, m.seen)
	})
	g.Go(func() error {
		defer enough(nil)
		return source.Pace(ctx, m.cfg.Workload, m.cfg.Rate, func(sent, acked time.Time) { m.acked.Record(acked.Sub(sent)) })
	})
	return g.Wait()
}

// seen is called for each probe that arrived.
func (m *mirror) seen(sent, acked, seen time.Time) {
	m.own.Record(acked.Sub(sent))
	m.probes.Record(seen.Sub(acked))
}

// flushed is called for each acknowledged flush. The clocks of an entry and of this
// process may be of two machines: an entry that seems applied before its commit
// counts as zero.
func (m *mirror) flushed(ops int, wall bson.DateTime, at time.Time) {
	took := max(0, at.Sub(wall.Time()))
	for range ops {
		m.applied.Record(took)
	}
}

func (m *mirror) close() {
	for _, p := range []*place{m.target, m.source} {
		if p != nil {
			p.close()
		}
	}
}

func (m *mirror) tidy(ctx context.Context) error {
	return errors.Join(m.source.tidy(ctx, m.collections), m.target.tidy(ctx, m.collections))
}
