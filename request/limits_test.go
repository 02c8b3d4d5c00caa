package request

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// limited is a target with a document of limits.
type limited struct {
	mu  sync.Mutex // guards the rest
	doc bson.D
	err error
}

func (l *limited) say(err error, doc ...bson.E) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doc, l.err = doc, err
}

func (l *limited) Call(context.Context, mongo.Command) (bson.Raw, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	batch := bson.A{}
	if l.doc != nil {
		batch = append(batch, l.doc)
	}
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.requests"}, {Key: "firstBatch", Value: batch},
	}}, {Key: "ok", Value: 1}})
}

// TestLimitsLoop: each limit is the requested one or, where none is, the process's own. A
// read that fails is repeated. Limits that are damaged are reported, and those before them stay.
func TestLimitsLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		target := &limited{}
		s := New(links(t, target, "a"))
		var bytes, ops int64
		done, faults := make(chan error, 1), 0
		fault := func(err error) {
			if faults++; !strings.Contains(err.Error(), `request "a": field opsPerSecond`) || !strings.Contains(err.Error(), "replicator.requests") {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		go func() {
			done <- s.LimitsLoop(ctx, Requests{BytesPerSecond: 10, OpsPerSecond: 20}, func(b, o int64) { bytes, ops = b, o }, fault)
		}()
		want := func(b, o int64) {
			t.Helper()
			time.Sleep(limitsEvery + time.Second)
			synctest.Wait()
			if bytes != b || ops != o {
				t.Errorf("limits %d and %d, want %d and %d", bytes, ops, b, o)
			}
		}
		id := bson.E{Key: "_id", Value: "a"}
		want(10, 20)
		target.say(nil, id, bson.E{Key: bytesField, Value: int64(0)})
		want(0, 20)
		target.say(&mongo.LostError{Host: "a:1", Err: errors.New("reset")})
		want(0, 20)
		target.say(nil, id, bson.E{Key: opsField, Value: int64(7)})
		want(10, 7)
		target.say(nil)
		want(10, 20)
		target.say(nil, id, bson.E{Key: opsField, Value: int64(7)})
		want(10, 7)
		target.say(nil, id, bson.E{Key: opsField, Value: int64(-7)})
		want(10, 7)
		want(10, 7)
		if faults != 1 {
			t.Errorf("damaged: reported %d times", faults)
		}
		target.say(nil, id, bson.E{Key: opsField, Value: int64(8)})
		want(10, 8)
		target.say(nil, id, bson.E{Key: opsField, Value: int64(-7)})
		want(10, 8)
		target.say(servererr.New(servererr.Unauthorized, "planted"))
		if err := <-done; !servererr.IsDenied(err) || faults != 2 {
			t.Errorf("refused: %v, reported %d times", err, faults)
		}
	})
}

// TestLimitsStay: another copy in the process begins with the limits that were read last, if they
// cannot be read now.
func TestLimitsStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		target := &limited{}
		s := New(links(t, target, "a"))
		var ops []int64
		copied := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*limitsEvery)
			defer cancel()
			if err := s.LimitsLoop(ctx, Requests{OpsPerSecond: 0}, func(_, o int64) { ops = append(ops, o) }, func(err error) { t.Error(err) }); err != nil {
				t.Error(err)
			}
		}
		target.say(nil, bson.E{Key: "_id", Value: "a"}, bson.E{Key: opsField, Value: int64(7)})
		copied()
		target.say(&mongo.LostError{Host: "a:1", Err: errors.New("reset")})
		before := len(ops)
		copied()
		if len(ops) != before+1 || ops[before] != 7 {
			t.Errorf("limits %v, the last %d of them without the target", ops, len(ops)-before)
		}
	})
}
