package verify

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestPatience: a side may not answer for as long as Config.Patience, whatever is read of it.
func TestPatience(t *testing.T) {
	t.Parallel()
	const tries = 4
	for _, ns := range []string{"d.c", ""} { // documents, and the list of databases
		for _, patience := range []time.Duration{time.Nanosecond, time.Hour} {
			source, target := cluster(t), cluster(t)
			insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
			insertRaw(t, target, "d.c", neighbours(t, 0, 10)...)
			var n atomic.Int64
			away := func(mongo.Command) error {
				if n.Add(1) < tries {
					return &mongo.LostError{Host: "a:1", Err: errors.New("planted")}
				}
				return nil
			}
			side := mongo.Caller(&hook{Caller: source, ns: "d.c", before: away})
			if ns == "" {
				side = &beginning{Caller: source, before: away}
			}
			v := must.Get(New(Config{
				Source: side, Target: target, Scope: everything(t), Patience: patience, Found: func(*Difference) error { return nil },
			}))(t)
			summary, err := v.Run(t.Context())
			switch stuck := servererr.Classify(err) == servererr.Stuck; {
			case patience < time.Second && (!stuck || n.Load() >= tries):
				t.Errorf("%q: it has ended after %d tries with %v", ns, n.Load(), err)
			case patience > time.Second && (err != nil || !summary.Equal() || summary.Unchecked() > 0):
				t.Errorf("%q: %v, %+v", ns, err, summary)
			}
		}
	}
}

// TestWaitsTold: that a side does not answer is told after a while, and from time to time, however many reads wait.
func TestWaitsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		began := time.Now()
		r := retrier{limit: 2 * time.Minute, waits: func(error) { told = append(told, time.Since(began)) }}
		var reads sync.WaitGroup
		for range 4 {
			reads.Go(func() {
				err := r.retry().Do(t.Context(), func() error { return &mongo.LostError{Host: "a:1", Err: errors.New("planted")} })
				if servererr.Classify(err) != servererr.Stuck || time.Since(began) < r.limit {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
			})
		}
		reads.Wait()
		if len(told) < 3 || len(told) > 4 || told[0] < waitsAfter || told[0] > waitsAfter+waitsEvery {
			t.Errorf("told after %s", told)
		}
		told = nil
		if err := r.retry().Do(t.Context(), func() error { return nil }); err != nil || told != nil {
			t.Errorf("told without need after %s: %v", told, err)
		}
	})
}

// beginning is a Caller that is asked before each listDatabases.
type beginning struct {
	mongo.Caller
	before func(mongo.Command) error
}

func (b *beginning) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == "listDatabases" {
		if err := b.before(cmd); err != nil {
			return nil, err
		}
	}
	return b.Caller.Call(ctx, cmd)
}
