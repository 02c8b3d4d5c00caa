package bench

import (
	"errors"

	"github.com/oplogrep/replicator/bench/meter"
)

// profiles reports whether a round is the one of which a profile is taken.
func (c *Config) profiles(round int) bool { return c.Profile != "" && round == c.Rounds-1 }

// measure calls work and returns what it cost. It takes a CPU profile if profiled is true.
func measure(c Config, profiled bool, work func() error) (usage meter.Usage, err error) {
	m, err := meter.Start()
	if err != nil {
		return usage, err
	}
	// After the meter, which collects garbage first.
	ended := func() error { return nil }
	if profiled {
		if ended, err = meter.Profile(c.Profile); err != nil {
			return usage, err
		}
	}
	err = work()
	usage, stopped := m.Stop()
	return usage, errors.Join(err, stopped, ended())
}
