package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/mongod"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// Secondary measures how long a secondary takes for the backlog of CatchUp: a real one
// from c.Mongod, or else a member of an embedded set. It is timed from its first applied
// entry to its last, which leaves out its start; a link's is counted.
func Secondary(ctx context.Context, c Config) (*result.Run, error) {
	c.setDefaults()
	err := c.validate()
	run := newRun("secondary", c)
	if err == nil {
		run.Ops, run.Bytes, err = logSize(c.Workload)
	}
	if err != nil {
		return nil, fmt.Errorf("measure a secondary: %w", err)
	}
	// Settings that only a link has.
	delete(run.Settings, "writers")
	delete(run.Settings, "batch")
	delete(run.Settings, "flush")
	round := embeddedSecondary
	if c.Mongod != "" {
		round = realSecondary
	}
	var all rounds
	for i := range c.Rounds {
		say(c, "secondary %d of %d: %d operations", i+1, c.Rounds, run.Ops)
		usage, err := round(ctx, c, run)
		if err != nil {
			return nil, fmt.Errorf("measure a secondary, round %d: %w", i+1, err)
		}
		all = append(all, usage)
	}
	all.into(run)
	return run, nil
}

// noReference returns why the secondary that c would time is not comparable with a link with
// these ends, empty if it is. An embedded secondary is not comparable with real servers, nor a
// real one with embedded sets, and neither with a link from one to the other.
func noReference(c *Config, source, target result.End) string {
	if result.Mixed(&result.Run{Source: source, Target: target}) {
		return fmt.Sprintf("no secondary is a reference for a link of embedded and real ends (%s → %s)", source, target)
	}
	switch servers := c.Mongod != ""; {
	case !servers && source.Kind == result.EndReal:
		return fmt.Sprintf("an embedded secondary is no reference for real ends (%s → %s); a real one is started from the server's binary that --mongod names", source, target)
	case servers && source.Kind == result.EndEmbedded:
		return fmt.Sprintf("a real secondary is no reference for embedded ends (%s → %s); without --mongod an embedded one is timed", source, target)
	}
	return ""
}

// realSecondary is a round with real servers. Their cost is not measured, so that
// there is no usage.
func realSecondary(ctx context.Context, c Config, run *result.Run) (usage meter.Usage, err error) {
	set, err := mongod.Start(ctx, c.realSet(1))
	if err != nil {
		return usage, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	way, err := set.CatchUp(ctx, c.Workload, func(ctx context.Context, uri string) error {
		return writePlain(ctx, uri, c)
	})
	if err != nil {
		return usage, err
	}
	end, err := ends.Open(ctx, set.URI)
	if err != nil {
		return usage, err
	}
	defer end.Close()
	run.Source, run.Target = end.Is, end.Is
	run.Notes = append(run.Notes, fmt.Sprintf("a secondary of servers that --mongod names: %d entries at the rate that was seen, %d of them applied in the %s from its start to when it was first seen to have applied any, which the rate leaves out; the longest time in which it got no further was %s",
		way.Entries, way.Unseen, result.Duration(way.Start.Seconds()), result.Duration(way.Pause.Seconds())))
	return meter.Usage{Elapsed: way.Took}, nil
}

// embeddedSecondary is a round with an embedded set.
func embeddedSecondary(ctx context.Context, c Config, run *result.Run) (meter.Usage, error) {
	run.Notes = []string{"a member of an embedded set, from its first applied entry to its last; the figures of the process are of both members"}
	collections, err := collectionsOf(c.Workload)
	if err != nil {
		return meter.Usage{}, err
	}
	set, err := mongosim.Start(ctx, mongosim.Options{
		// The primary does not depend on the other one.
		MemberOptions: []mongosim.MemberOptions{{}, {NonVoting: true, NoPriority: true, Hidden: true}},
		Seed:          sourceSeed, TTLInterval: -1, OplogBytes: 4*run.Bytes + 64*mebibyte,
	})
	if err != nil {
		return meter.Usage{}, err
	}
	defer set.Close()
	s := &secondary{set: set, member: set.Member(1)}
	if s.end, err = ends.Open(ctx, set.URI()); err != nil {
		return meter.Usage{}, err
	}
	defer s.end.Close()
	run.Source, run.Target = s.end.Is, s.end.Is
	if err := s.fallBehind(ctx, c, collections); err != nil {
		return meter.Usage{}, err
	}
	return s.catchUp(ctx, c)
}

// secondary is a member of an embedded set that lags.
type secondary struct {
	set    *mongosim.Set
	member *mongosim.Member
	end    *ends.End
	// before is the entry before the backlog, last its newest.
	before, last oplog.OpTime
}

// fallBehind stops the member while the backlog is written.
func (s *secondary) fallBehind(ctx context.Context, c Config, collections []workload.Collection) error {
	if err := s.end.Fill(ctx, collections); err != nil {
		return err
	}
	if err := s.set.AwaitSynced(ctx); err != nil {
		return err
	}
	if err := s.member.Stop(ctx); err != nil {
		return err
	}
	var err error
	if s.before, err = newest(ctx, s.end.Set); err != nil {
		return err
	}
	if err := writePlain(ctx, s.set.URI(), c); err != nil {
		return err
	}
	s.last, err = newest(ctx, s.end.Set)
	return err
}

// catchUp starts it again, and returns how long it takes from its first entry to its
// last. Then all its documents are compared with the primary's.
func (s *secondary) catchUp(ctx context.Context, c Config) (usage meter.Usage, err error) {
	var took time.Duration
	usage, err = measure(c, false, func() error {
		if err := s.member.Start(); err != nil { //nolint:contextcheck // A member lives until it is stopped.
			return err
		}
		took, err = s.between(ctx)
		return err
	})
	if err != nil {
		return usage, err
	}
	usage.Elapsed = took
	report, err := compare.Compare(ctx, compare.Cluster(s.end.Set), compare.Cluster(s.end.Set.Member(s.member.Host())), compare.Options{MetaDB: ends.MetaDB})
	if err == nil && !report.Equal() {
		err = fmt.Errorf("the secondary is not what the primary is: %s", &report)
	}
	return usage, err
}

// statusEvery is the time between two polls of a secondary's status.
const statusEvery = 5 * time.Millisecond

// between times it from the last poll that found nothing of the backlog to the first
// that found all.
func (s *secondary) between(ctx context.Context) (time.Duration, error) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	since, began := time.Now(), false
	for {
		v, ok := s.member.Status()
		began = began || ok && v.LastApplied.After(s.before)
		if !began {
			since = time.Now()
		}
		if ok && !v.LastApplied.Before(s.last) {
			return time.Since(since), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait until the secondary has applied %s (it is at %s): %w", s.last, v.LastApplied, context.Cause(ctx))
		}
	}
}
