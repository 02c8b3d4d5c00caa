package spool

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// Read hands on, on out, everything from the entry of Start on, in order, within
// the budget of memory, until ctx is done; then it returns the cause. It closes out.
// What is stored meanwhile, by one Store after the other, is handed on too. An empty
// spool has to be filled from the entry of Start on.
func (s *Spool) Read(ctx context.Context, out chan<- oplog.Reply) error {
	defer close(out)
	s.mu.Lock()
	isClosed, reading := s.isClosed, s.reading
	s.mu.Unlock()
	switch {
	case isClosed:
		return fmt.Errorf("spool: read: %w", ErrClosed)
	case reading:
		return fmt.Errorf("spool: read: %w", ErrRunning)
	}
	from, _, err := s.beginRun()
	if err != nil {
		return err
	}
	defer s.endRun()
	return s.handOnLoop(ctx, out, from)
}
