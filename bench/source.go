package bench

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
)

// source is a log that is read from start on, up to last.
type source struct {
	upstream

	is         result.End
	ops, bytes int64
	// rewind makes it ready to be read again, close ends it.
	rewind, close func()
}

// openSource opens the source named by c.Source, memory or an embedded set, with the workload in its
// log.
func openSource(ctx context.Context, c Config) (*source, error) {
	s := &source{upstream: upstream{cfg: c, start: ends.First}, rewind: func() {}, close: func() {}}
	switch c.Source {
	case memoryEnd:
		say(c, "making a log of %d operations", c.Workload.Ops)
		m, err := ends.NewMemory(c.Workload, 0)
		if err != nil {
			return nil, err
		}
		s.is, s.member, s.last, s.rewind = result.End{Kind: result.EndMemory}, m, m.Last, m.Rewind
		s.ops, s.bytes = int64(m.Ops), m.Bytes
		return s, nil
	case "":
		return s, s.play(ctx)
	}
	return nil, &ConfigError{fmt.Errorf("the pipeline alone is read from memory or an embedded set, not from %q", c.Source)}
}

// play starts an embedded set that has the workload in its log.
func (s *source) play(ctx context.Context) (err error) {
	say(s.cfg, "playing a log of %d operations", s.cfg.Workload.Ops)
	if s.ops, s.bytes, err = logSize(s.cfg.Workload); err != nil {
		return err
	}
	end, last, err := ends.Start(ctx, s.cfg.Serve, ends.What{Kind: ends.Played, Seed: sourceSeed, Workload: s.cfg.Workload})
	if err != nil {
		return err
	}
	host, _ := end.Set.Primary()
	s.close, s.is, s.member, s.last = end.Close, end.Is, end.Set.Member(host), last
	return nil
}
