package clone

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// interruptEach copies collections that makes makes: the first one with the
// connection lost at the first command, then in a new attempt without; the next
// one with it lost at the second command, and so on, until one is copied before
// that. It does so for the source, and for the target with the lost command
// carried out or not. It returns how many interruptions there were.
func (w *world) interruptEach(
	makes func(ns oplog.Namespace) *checkpoint.CopyCollection, between func(ns oplog.Namespace), check func(ns oplog.Namespace),
) (interruptions int) {
	w.t.Helper()
	ctx := within(w.t)
	for i, side := range []*gate{w.source, w.target, w.target} {
		for k := 0; ; k++ {
			coll := makes(oplog.Namespace(fmt.Sprintf("d.c%d_%d", i, k)))
			w.begin(ctx)
			w.plan(ctx, coll)
			count, hit := 0, false
			side.intercept(func(call.Command) (error, bool) {
				count++
				hit = hit || count > k
				if hit {
					// Everything behind it fails, too: the process is gone.
					return errInjected, i == 1 && count == k+1
				}
				return nil, false
			}, nil)
			var before int64
			w.mu.Lock()
			w.docs = 0
			w.mu.Unlock()
			_, err := w.copyAll(ctx, coll)
			side.intercept(nil, nil)
			if err != nil && !errors.Is(err, errInjected) {
				w.t.Fatalf("command %d: %v", k, err)
			}
			before = w.docs
			w.begin(ctx)
			kept := int64(0)
			for _, r := range must[[]checkpoint.CopyRange](w.t)(w.rangesOf(ctx, coll)) {
				kept += r.Docs
			}
			if kept < before {
				w.t.Fatalf("command %d: %d documents were copied, %d are known of", k, before, kept)
			}
			if between != nil && hit {
				between(coll.NS)
			}
			must[bson.Timestamp](w.t)(w.copyAll(ctx, coll))
			check(coll.NS)
			if !hit {
				break
			}
			interruptions++
		}
	}
	return interruptions
}

// TestCopyInterrupted is that for collections in several ranges.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	for _, order := range []order{natural, byID} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if order == byID {
				w.idOrder(false)
			}
			w.cfg.FlushDocs, w.cfg.RangeBytes = 60, 1
			docs := mixed(t)
			var n int
			n = w.interruptEach(func(ns oplog.Namespace) *checkpoint.CopyCollection {
				insertRaw(t, w.source, ns, docs[:len(docs)/2]...)
				coll := w.collection(ns)
				w.cfg.RangeBytes = coll.Bytes / 3
				return coll
			}, nil, w.check)
			if n < 30 {
				t.Errorf("%d interruptions", n)
			}
		})
	}
}
