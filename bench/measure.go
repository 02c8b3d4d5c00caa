package bench

import (
	"errors"

	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
)

// measuring is a span being measured, with a profile if one is wanted.
type measuring struct {
	meter    *meter.Meter
	profiler *meter.Profiler
}

// profiles reports whether a round is the one of which a profile is taken.
func (c *Config) profiles(round int) bool {
	return round == c.Rounds-1 && (c.Profiled || c.Profile != "")
}

// measure starts a span.
func measure(c Config, profiled bool) (*measuring, error) {
	m := &measuring{}
	var err error
	if m.meter, err = meter.Start(); err != nil {
		return nil, err
	}
	// After the meter, which collects garbage first.
	if profiled {
		if m.profiler, err = meter.StartProfile(c.Profile); err != nil {
			_, stopped := m.meter.Stop()
			return nil, errors.Join(err, stopped)
		}
	}
	return m, nil
}

// stop ends the span. The profile is nil if none is wanted.
func (m *measuring) stop() (usage meter.Usage, profile *result.Profile, err error) {
	usage, err = m.meter.Stop()
	if m.profiler == nil {
		return usage, nil, err
	}
	profile, failed := m.profiler.Stop()
	return usage, profile, errors.Join(err, failed)
}
