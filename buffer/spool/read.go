package spool

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// Read hands on, on out, everything from the entry of Start on, in order, within
// the budget of memory, until ctx is done; then it returns the cause. It closes out.
// What is stored meanwhile, by one Store after the other, is handed on too. If the
// spool is empty, the first entry that Store takes has to be that of Start.
func (s *Spool) Read(ctx context.Context, out chan<- oplog.Reply) error {
	defer close(out)
	s.mu.Lock()
	isClosed := s.isClosed
	s.mu.Unlock()
	if isClosed {
		return fmt.Errorf("spool: read: %w", ErrClosed)
	}
	from, err := s.beginRun()
	if err != nil {
		return fmt.Errorf("spool: read: %w", err)
	}
	defer s.endRun()
	return s.handOnLoop(ctx, out, from)
}
