package cutover

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
)

// slow is a source whose oplog takes several replies, each of which takes a while.
type slow struct {
	replies int
	takes   time.Duration
	// ns is what the last entry is of.
	ns string
	// silent: the last reply does not come.
	silent bool
}

// Call implements mongo.Caller.
func (s *slow) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.replies--
	if s.silent && s.replies == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	id, op, ns := int64(7), "n", ""
	if s.replies == 0 {
		id, op, ns = 0, "i", s.ns
	}
	batch := "nextBatch"
	if cmd.Body.Index(0).Key() == "find" {
		batch = "firstBatch"
	}
	entry := bson.D{{Key: "ts", Value: bson.Timestamp{T: 200, I: 1}}, {Key: "op", Value: op}, {Key: "ns", Value: ns}}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: id}, {Key: "ns", Value: "local.oplog.rs"}, {Key: batch, Value: bson.A{entry}},
	}}})
}

// TestLongOplog: the entries after the drain may take longer than one reply may, and are all read; a reply that does not come is that of
// a lost connection.
func TestLongOplog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source slow
		is     func(error) bool
		after  time.Duration
	}{
		"no write": {slow{8, answerWithin / 2, "config.x", false}, func(err error) bool { return err == nil }, 4 * answerWithin},
		"a write":  {slow{8, answerWithin / 2, "db.c", false}, func(err error) bool { return errors.Is(err, ErrWritten) }, 4 * answerWithin},
		"silent": {slow{4, answerWithin / 2, "db.c", true}, func(err error) bool {
			_, silent := errors.AsType[*mongo.SilentError](err)
			return silent && passing(err)
		}, 3*answerWithin/2 + answerWithin},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &work{cfg: &Config{Drain: DrainConfig{Source: &c.source}}, rec: &record.Record{
					Options: record.Options{Freeze: record.Stopped}, Drained: record.Drained{T: 100, I: 1},
				}}
				began := time.Now()
				if err := w.stopped(t.Context(), false); !c.is(err) || time.Since(began) != c.after {
					t.Errorf("after %s, want %s: %v", time.Since(began), c.after, err)
				}
			})
		})
	}
}
