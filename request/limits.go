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
// calls set with them. Where none is requested, that of own applies.
func (s *Store) LimitsLoop(ctx context.Context, own Requests, set func(bytesPerSecond, opsPerSecond int64)) error {
	tick := time.NewTicker(limitsEvery)
	defer tick.Stop()
	for {
		all, err := s.Read(ctx)
		switch {
		case err == nil:
			bytes, ops := own.BytesPerSecond, own.OpsPerSecond
			if all.BytesPerSecond >= 0 {
				bytes = all.BytesPerSecond
			}
			if all.OpsPerSecond >= 0 {
				ops = all.OpsPerSecond
			}
			set(bytes, ops)
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

// passes reports whether the next read may succeed.
func passes(err error) bool {
	k := servererr.Classify(err)
	return k == servererr.Lost || k == servererr.Unconfirmed || k.Passes() || errors.Is(err, context.DeadlineExceeded)
}
