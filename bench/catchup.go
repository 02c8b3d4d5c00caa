package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
)

// backlog is a source with a log to catch up with, and the target of that.
type backlog struct {
	cfg            Config
	source, target *place
	collections    []workload.Collection
	// start is the entry before the backlog, last the newest entry of it.
	start, last oplog.OpTime
	// ops is the number of its operations, bytes the size of their entries.
	ops, bytes int64
	// secondary: a secondary is timed on the same backlog.
	secondary bool
	// null is a calibrated target, nil for a set.
	null *ends.Null
	// cost is what the statements of each round cost a real server.
	cost []time.Duration
}

// CatchUp measures a whole link from its start before a backlog to the end of
// the backlog. With c.Mongod, ends that no connection string names are real
// servers.
func CatchUp(ctx context.Context, c Config) (*result.Run, error) {
	return catchUp(ctx, c, false)
}

// CatchUpWithSecondary measures CatchUp, and Secondary on the same backlog. It returns a
// ConfigError, before it measures anything, if a secondary is not comparable with the ends.
func CatchUpWithSecondary(ctx context.Context, c Config) (ours, secondary *result.Run, err error) {
	if ours, err = catchUp(ctx, c, true); err != nil {
		return nil, nil, err
	}
	secondary, err = Secondary(ctx, c)
	return ours, secondary, err
}

func catchUp(ctx context.Context, c Config, secondary bool) (_ *result.Run, err error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), catchUpEnds(c, secondary)); err != nil {
		return nil, fmt.Errorf("measure a catch-up: %w", err)
	}
	b := &backlog{cfg: c, secondary: secondary}
	defer b.close()
	defer func() {
		err = errors.Join(err, b.tidy(ctx))
	}()
	if err := b.open(ctx); err != nil {
		return nil, fmt.Errorf("measure a catch-up: %w", err)
	}
	run := newRun("catch-up", c)
	run.Source, run.Target = b.source.Is, b.target.Is
	run.Ops, run.Bytes = b.ops, b.bytes
	run.Notes = append(run.Notes, "timed from the start of the link until the backlog's newest entry is applied")
	if b.null == nil {
		run.Notes[0] += "; then the target is compared with the source"
	}
	var all rounds
	for i := range c.Rounds {
		say(c, "catch-up %d of %d: %d operations", i+1, c.Rounds, b.ops)
		usage, err := b.round(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("measure a catch-up, round %d: %w", i+1, err)
		}
		all = append(all, usage)
	}
	all.into(run)
	if b.null != nil {
		if err := b.predict(run, all); err != nil {
			return nil, fmt.Errorf("predict a catch-up: %w", err)
		}
	}
	return run, nil
}

// setsOnly returns an error for ends that are not replica sets.
func setsOnly(c Config) error {
	switch {
	case c.Target == nullEnd, c.Target == calibratedEnd, c.Source == memoryEnd:
		return &ConfigError{errors.New("both ends have to be sets")}
	case c.Source != "" && c.Source == c.Target:
		return &ConfigError{errors.New("the source and the target are the same set")}
	}
	return nil
}

// open makes both ends, and the backlog of the source.
func (b *backlog) open(ctx context.Context) error {
	var err error
	if b.collections, err = collectionsOf(b.cfg.Workload); err != nil {
		return err
	}
	if b.ops, b.bytes, err = logSize(b.cfg.Workload); err != nil {
		return err
	}
	if b.cfg.Target == calibratedEnd {
		err = b.openCalibrated(ctx)
	} else {
		b.target, err = openPlace(ctx, b.cfg, b.cfg.Target, targetSeed, 1)
	}
	if err != nil {
		return fmt.Errorf("the target: %w", err)
	}
	if err := b.target.free(ctx, b.cfg.Overwrite, b.collections); err != nil {
		return fmt.Errorf("the target: %w", err)
	}
	if b.cfg.Source == "" && b.cfg.Mongod == "" {
		err = b.play(ctx)
	} else {
		err = b.write(ctx)
	}
	if err != nil {
		return fmt.Errorf("the source: %w", err)
	}
	return nil
}

// play starts a source that has the backlog.
func (b *backlog) play(ctx context.Context) error {
	say(b.cfg, "playing a log of %d operations", b.ops)
	end, last, err := ends.Start(ctx, b.cfg.Serve, ends.What{Kind: ends.Played, Seed: sourceSeed, Workload: b.cfg.Workload})
	if err != nil {
		return err
	}
	b.source = &place{End: end, close: end.Close}
	b.start, b.last = ends.First, last
	return b.comparable()
}

// comparable returns an error if the secondary that is to be timed too is not comparable
// with the ends.
func (b *backlog) comparable() error {
	if !b.secondary {
		return nil
	}
	if why := noReference(&b.cfg, b.source.Is, b.target.Is); why != "" {
		return &ConfigError{errors.New(why)}
	}
	return nil
}

// write writes the backlog to a source as a plain client does.
func (b *backlog) write(ctx context.Context) error {
	var err error
	if b.source, err = openPlace(ctx, b.cfg, b.cfg.Source, sourceSeed, 1); err != nil {
		return err
	}
	if err := errors.Join(distinct(b.source, b.target), b.comparable()); err != nil {
		return err
	}
	if err := b.source.prepare(ctx, b.cfg.Overwrite, b.collections); err != nil {
		return err
	}
	if b.start, err = newest(ctx, b.source.Set); err != nil {
		return err
	}
	say(b.cfg, "writing a backlog of %d operations", b.ops)
	if err := writePlain(ctx, b.source.URI, b.cfg); err != nil {
		return err
	}
	b.last, err = newest(ctx, b.source.Set)
	return err
}

// close ends both ends.
func (b *backlog) close() {
	for _, p := range []*place{b.target, b.source} {
		if p != nil {
			p.close()
		}
	}
}

// writePlain writes a workload by the plain driver, as fast as possible.
func writePlain(ctx context.Context, uri string, c Config) error {
	work, err := plain.Prepare(c.Workload, c.Writers)
	if err != nil {
		return err
	}
	client, err := plain.Connect(ctx, uri)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	return client.Write(ctx, work, c.CeilingBatch)
}

// round runs one link, into a target that has the workload's initial documents.
func (b *backlog) round(ctx context.Context, n int) (usage meter.Usage, err error) {
	if err := b.prepare(ctx); err != nil {
		return usage, err
	}
	names, err := only(b.target.touched(b.collections))
	if err != nil {
		return usage, err
	}
	name := linkName("catch-up", n)
	var l *link
	usage, err = measure(b.cfg, b.cfg.profiles(n), func() error {
		if l, err = startLink(ctx, linkConfig(b.cfg, name, names, b.start), b.source.End, b.target.End); err != nil {
			return err
		}
		return l.reaches(ctx, b.last)
	})
	if l != nil {
		defer l.stop()
	}
	if err == nil {
		err = l.end()
	}
	if err != nil {
		return usage, err
	}
	if b.null != nil {
		return usage, b.counted(ctx)
	}
	return usage, same(ctx, b.source.End, b.target.End, name, b.collections)
}

// tidy removes everything from ends that a connection string names.
func (b *backlog) tidy(ctx context.Context) error {
	return errors.Join(b.source.tidy(ctx, b.collections), b.target.tidy(ctx, b.collections))
}

// logSize returns the number of operations and of bytes of a workload's log.
func logSize(w workload.Workload) (ops, bytes int64, err error) {
	log, err := workload.NewLog(w, ends.First)
	if err != nil {
		return 0, 0, err
	}
	for {
		entry, n, ok, err := log.Next()
		if err != nil || !ok {
			return ops, bytes, err
		}
		ops, bytes = ops+int64(n), bytes+int64(len(entry))
	}
}

// say reports progress.
func say(c Config, format string, args ...any) {
	_, _ = fmt.Fprintf(c.Progress, format+"\n", args...)
}
