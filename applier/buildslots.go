package applier

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// IndexSlots limits the index builds that run concurrently with the writers of all appliers
// of a target that share it. The zero value is ready to use.
type IndexSlots struct {
	mu   sync.Mutex
	used int
	// freed is closed when one is released; nil if nothing waits.
	freed chan struct{}
}

// acquire blocks until fewer than limit builds run, or ctx is done. The caller must then call
// release, unless it returns an error.
func (s *IndexSlots) acquire(ctx context.Context, limit int) error {
	for {
		s.mu.Lock()
		if s.used < limit {
			s.used++
			s.mu.Unlock()
			return nil
		}
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *IndexSlots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// buildLimit returns how many builds may run concurrently with the writers. A server has a
// limit too, for all of its clients, and makes further builds wait: it must leave room for
// one that a command of the log requires, for which the writers wait.
func buildLimit(ctx context.Context, target mongo.Caller, limit int) int {
	const name = "maxNumActiveUserIndexBuilds"
	reply, err := target.Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(
		bsoncore.NewDocumentBuilder().AppendInt32("getParameter", 1).AppendInt32(name, 1).Build())})
	if err != nil {
		return min(limit, 1)
	}
	e, _ := rawbson.Lookup(reply, name)
	servers, isNumber := e.Int64()
	if !isNumber {
		return min(limit, 1)
	}
	return int(max(0, min(int64(limit), servers-1)))
}
