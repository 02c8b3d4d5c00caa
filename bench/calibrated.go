package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
)

// catchUpEnds returns an error for ends that no catch-up can have: it has two sets, or an
// embedded source and a calibrated target, for which no secondary can be timed.
func catchUpEnds(c Config, secondary bool) error {
	switch {
	case c.Target != calibratedEnd:
		return setsOnly(c)
	case c.Source != "", c.Mongod != "", secondary:
		return &ConfigError{errors.New("a calibrated target needs an embedded source, and no secondary is timed with it")}
	}
	return nil
}

// openCalibrated starts a calibrated target.
func (b *backlog) openCalibrated(ctx context.Context) error {
	dbs, err := databases(b.cfg.Workload)
	if err != nil {
		return err
	}
	if b.null, err = ends.StartNullAt(ctx, b.cfg.Serve, targetSeed, true); err != nil {
		return err
	}
	b.target = &place{End: b.null.End, dbs: dbs, close: b.null.Close}
	return nil
}

// prepare sets up the initial data of the target.
func (b *backlog) prepare(ctx context.Context) error {
	if b.null == nil {
		return b.target.prepare(ctx, b.cfg.Overwrite, b.collections)
	}
	if err := b.null.Arm(ctx, false); err != nil {
		return err
	}
	if err := b.target.prepare(ctx, b.cfg.Overwrite, b.collections); err != nil {
		return err
	}
	return b.null.Arm(ctx, true)
}

// errNothingWritten is the error of a calibrated target that got no statements.
var errNothingWritten = errors.New("the calibrated target got no statements")

// counted records what the statements of a round cost a real server.
func (b *backlog) counted(ctx context.Context) error {
	cost, err := b.null.Cost(ctx)
	if err == nil && cost == 0 {
		err = errNothingWritten
	}
	b.cost = append(b.cost, cost)
	return err
}

// predict adds the prediction for a real target. On the machine of the calibration all
// cores were busy, with a link as with a secondary, so that the rates are to one another
// as the reciprocals of the CPU time that an operation takes in all processes. That of
// this process is measured, that of the servers is known, and converted to this machine.
func (b *backlog) predict(run *result.Run, all rounds) error {
	speed, err := slowness()
	if err != nil {
		return err
	}
	const micro = float64(time.Microsecond)
	ops := float64(run.Ops) * micro
	for i, u := range all {
		p := result.Prediction{Program: float64(u.CPU) / ops / speed, Target: float64(b.cost[i]) / ops, Slowness: speed}
		total := p.Program + p.Target + ends.SourceCost/micro
		p.OpsPerSecond = ends.CalibrationCores * 1e6 / total
		p.OfSecondary = ends.SecondaryCost / micro / total
		// Other work on the machine disturbs the best round least.
		if i == 0 || p.OpsPerSecond > run.Predicted.OpsPerSecond {
			run.Predicted = &p
		}
	}
	p := run.Predicted
	run.Notes = append(run.Notes, fmt.Sprintf(
		"predicted for a real target: %.0f ops/s, %.2f of what a real secondary does on the mixed backlog; an operation takes %.2f µs of CPU in the program, %.2f in the target; this machine takes %.2f times as long as that of the calibration",
		p.OpsPerSecond, p.OfSecondary, p.Program, p.Target, p.Slowness))
	return nil
}

// slowness is how many times as long as the machine of the calibration this one takes for
// the same work: the least of several measurements, which other work disturbs least.
func slowness() (float64, error) {
	const (
		span  = 20 * time.Millisecond
		times = 5
	)
	least := 0.0
	for i := range times {
		m, err := meter.Start()
		if err != nil {
			return 0, err
		}
		ends.Work(span.Nanoseconds())
		u, err := m.Stop()
		if err != nil {
			return 0, err
		}
		if took := float64(u.CPU) / float64(span); i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// calibrated measures catch-ups with a target that costs what a real one does.
func (s *suite) calibrated(ctx context.Context) error {
	const (
		share, shareWant         = "catch-up of the mixed backlog, calibrated target: the program's own share", "at most 1.5 µs of CPU per operation"
		predicted, predictedWant = "catch-up of the mixed backlog, calibrated target: predicted", "at least as fast as a real secondary"
		equal, equalWant         = "catch-up of equal updates, calibrated target: predicted", "at least 1.8 × that of updates that differ"
	)
	runs := map[string]*result.Run{}
	for _, w := range []struct {
		preset         string
		ops, documents int
	}{{"backlog", 1_000_000, 0}, {"updates", 200_000, 200_000}, {"mass-update", 200_000, 200_000}} {
		c, err := s.config(w.preset, w.ops, w.documents)
		if err != nil {
			return err
		}
		c.Source, c.Mongod, c.Target = "", "", calibratedEnd
		run, err := CatchUp(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", w.preset, err)
		}
		runs[w.preset] = s.add(run)
	}
	if s.cfg.Serve == nil {
		const why = "the ends are of the same process"
		s.skip(share, shareWant, why)
		s.skip(predicted, predictedWant, why)
		s.skip(equal, equalWant, why)
		return nil
	}
	s.most(share, shareWant, "µs/op", runs["backlog"].Predicted.Program, mostShare, false)
	s.least(predicted, predictedWant, "× (predicted)", runs["backlog"].Predicted.OfSecondary, leastCatchUp, false)
	s.least(equal, equalWant, "× (predicted)",
		runs["mass-update"].Predicted.OpsPerSecond/runs["updates"].Predicted.OpsPerSecond, leastEqual, false)
	return nil
}
