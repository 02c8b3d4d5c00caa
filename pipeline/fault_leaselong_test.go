package pipeline_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/standby"
)

// TestLongTransaction: renewals of the lease do not wait for a transaction that stays open: neither for
// that of a flush, nor for that in which a collection is created, which also writes the document of the
// lease. One that was open for longer than the lease lasts would end it.
func TestLongTransaction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		gate  string
		write bson.D
	}{
		"a flush":  {"insert c", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}},
		"a create": {"create late", bson.D{{Key: "create", Value: "late"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quiet := func(seed int64) mongosim.Options {
				return mongosim.Options{Members: 1, Seed: seed, Moods: mongosim.NoMoods("only the gate makes it wait")}
			}
			w := newWorld(t, quiet(1), quiet(2))
			at := newGates(tt.gate)
			w.asTarget = at.around
			cfg := pipeline.Config{Writers: 1, Lease: standby.Options{TTL: 30 * time.Second, Every: 200 * time.Millisecond}}
			must.Succeed(t, w.start("a", cfg, scope.Config{}))
			l := w.links["a"]
			must.Succeed(t, w.caughtUp(l))
			must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
			must.Succeed(t, w.caughtUp(l))
			must.Succeed(t, w.source.write(t.Context(), "db", tt.write))
			<-at.shut[tt.gate].reached
			before := l.p.Snapshot()
			must.Succeed(t, w.untilOf(l, "the lease to be renewed", func() bool {
				s := l.p.Snapshot()
				return s.Term != before.Term || s.Lease.Renewals >= before.Lease.Renewals+3
			}))
			if s := l.p.Snapshot(); s.Term != before.Term || s.Lease.Left == 0 {
				t.Errorf("the lease was lost: term %d, then %d: %s", before.Term, s.Term, s.Reason)
			}
			close(at.shut[tt.gate].open)
			must.Succeed(t, w.caughtUp(l))
			if s := l.p.Snapshot(); s.Term != before.Term {
				t.Errorf("another attempt, in term %d: %s", s.Term, s.LastError)
			}
		})
	}
}
