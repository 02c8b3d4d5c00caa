package request

import (
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// limitsEvery is how often the requested limits are read.
const limitsEvery = 2 * time.Second

// LimitsLoop reads the limits that operators request for the copy, until ctx is done, and
// calls set with them. Where none is requested, that of own applies. It begins with those that it
// has read before, if there are any: if they cannot be read now, they stay.
func (s *Store) LimitsLoop(ctx context.Context, own Requests, set func(bytesPerSecond, opsPerSecond int64)) error {
	tick := time.NewTicker(limitsEvery)
	defer tick.Stop()
	if last := s.limits.Load(); last != nil {
		last.set(own, set)
	}
	for {
		all, err := s.Read(ctx)
		switch {
		case err == nil:
			s.limits.Store(&all)
			all.set(own, set)
		case ctx.Err() == nil && !passes(err):
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// set calls set with the limits; those of own apply where none is requested.
func (r *Requests) set(own Requests, set func(bytesPerSecond, opsPerSecond int64)) {
	bytes, ops := own.BytesPerSecond, own.OpsPerSecond
	if r.BytesPerSecond >= 0 {
		bytes = r.BytesPerSecond
	}
	if r.OpsPerSecond >= 0 {
		ops = r.OpsPerSecond
	}
	set(bytes, ops)
}

// passes reports whether the next read may succeed.
func passes(err error) bool {
	k := servererr.Classify(err)
	return k == servererr.Lost || k == servererr.Unconfirmed || k.Passes() || errors.Is(err, context.DeadlineExceeded)
}
