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
// has read before, if there are any: if they cannot be read now, they stay. So they do while the document
// of the limits is damaged. fault is called with an error that says which documents are, once until it is another one.
func (s *Store) LimitsLoop(ctx context.Context, own Requests, set func(bytesPerSecond, opsPerSecond int64), fault func(error)) error {
	tick := time.NewTicker(limitsEvery)
	defer tick.Stop()
	if last := s.limits.Load(); last != nil {
		last.set(own, set)
	}
	said := ""
	for {
		all, err := s.Read(ctx)
		damaged := Damaged(err)
		if damaged && err.Error() != said {
			said = err.Error()
			fault(err)
		}
		switch {
		case err == nil, damaged && (!all.limitsDamaged || s.limits.Load() == nil):
			if err == nil {
				said = ""
			}
			s.limits.Store(&all)
			all.set(own, set)
		case damaged: // they stay
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
