package continuous

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// hanging is a target that answers the first command after a failover only, with an error. It sends the times of commands.
type hanging struct {
	failover time.Duration
	asked    chan time.Time
}

func (h *hanging) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	h.asked <- time.Now()
	select {
	case <-time.After(h.failover):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h.failover = 0
	return nil, servererr.New(servererr.Unauthorized, "not retried")
}

// TestReadAfterFailover: a read that a failover of the target delays does not leave the results of verifications unread for long.
func TestReadAfterFailover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const failover = 20 * time.Second
		h := &hanging{failover: failover, asked: make(chan time.Time, 10)}
		w := NewWatcher(WatcherConfig{
			Store: standing.Store{Target: h, DB: "replicator", Link: "l"}, State: func() State { return State{Leads: true, Steady: true} },
		})
		ctx, end := context.WithCancelCause(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.Run(ctx)
		}()
		first := <-h.asked
		if again := (<-h.asked).Sub(first) - failover; again > readRest+2*tick {
			t.Errorf("it reads again after %s", again)
		}
		end(nil)
		<-ended
	})
}

// TestAnnouncedUnsure: what a comparison finds that does not count is announced once, and the differences that it has not found are
// not forgotten.
func TestAnnouncedUnsure(t *testing.T) {
	t.Parallel()
	var got []string
	w := NewWatcher(WatcherConfig{Observer: func(e event.Event) { got = append(got, fmt.Sprint(e.Message(), " ", e.LogValue())) }})
	look := func(verified bool, ids ...string) {
		d := standing.Differing{NS: "t.a", SourceNS: "s.a", Differences: int64(len(ids))}
		for _, id := range ids {
			d.Found = append(d.Found, standing.NewFound("missing", id, "", ""))
		}
		w.announce(nil, &standing.Standing{Differing: []standing.Differing{d}}, map[oplog.Namespace]standing.State{"s.a": {Differences: d.Differences, Verified: verified}})
	}
	look(true, "1", "2", "3")
	for range 3 {
		look(false, "1", "4")
	}
	look(false, "2", "3")
	look(true, "3", "4")
	want := []string{"the target differs from the source [ns=t.a kind=missing id=4]", "differences between source and target are gone [ns=t.a differences=1 left=2]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
