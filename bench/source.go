package bench

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
)

// source is a log that is read from start on, up to last.
type source struct {
	upstream

	is         result.End
	ops, bytes int64
	// rewind makes it ready to be read again, done ends it.
	rewind func()
	done   func(ctx context.Context) error
}

// openSource opens what c.Source says, with the workload in its log.
func openSource(ctx context.Context, c Config) (*source, error) {
	s := &source{upstream: upstream{cfg: c, start: ends.First}, rewind: func() {}}
	s.done = func(context.Context) error { return nil }
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
	return s, s.write(ctx)
}

// play starts an embedded set that has the workload in its log.
func (s *source) play(ctx context.Context) error {
	say(s.cfg, "playing a log of %d operations", s.cfg.Workload.Ops)
	ops, bytes, err := logSize(s.cfg.Workload)
	if err != nil {
		return err
	}
	s.ops, s.bytes = ops, bytes
	end, last, err := ends.Start(ctx, s.cfg.Serve, ends.What{Kind: ends.Played, Seed: sourceSeed, Workload: s.cfg.Workload})
	if err != nil {
		return err
	}
	s.done = func(context.Context) error {
		end.Close()
		return nil
	}
	host, _ := end.Set.Primary()
	s.is, s.member, s.last = end.Is, end.Set.Member(host), last
	return nil
}

// write writes the workload to the set that the connection string names, as a plain
// client does.
func (s *source) write(ctx context.Context) (err error) {
	c := s.cfg
	at, err := openPlace(ctx, c, c.Source, sourceSeed, 1)
	if err != nil {
		return err
	}
	collections, err := collectionsOf(c.Workload)
	s.done = func(ctx context.Context) error {
		defer at.close()
		return at.tidy(ctx, collections)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.done(ctx))
		}
	}()
	if err != nil {
		return err
	}
	if err := at.prepare(ctx, c.Overwrite, collections); err != nil {
		return err
	}
	if s.start, err = newest(ctx, at.Set); err != nil {
		return err
	}
	say(c, "writing %d operations to the source", c.Workload.Ops)
	client, err := plain.Connect(ctx, at.URI)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	work, err := plain.Prepare(c.Workload, c.Writers)
	if err == nil {
		err = client.Write(ctx, work, c.CeilingBatch)
	}
	if err != nil {
		return err
	}
	if s.last, err = newest(ctx, at.Set); err != nil {
		return err
	}
	s.ops, s.bytes = int64(work.Ops), work.Bytes
	if s.within, err = only(at.touched(collections)); err != nil {
		return err
	}
	host, _ := at.Set.Primary()
	s.is, s.member = at.Is, at.Set.Member(host)
	return nil
}
