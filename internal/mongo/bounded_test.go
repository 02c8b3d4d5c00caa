package mongo_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// answering is a server that answers after a time.
type answering struct {
	after time.Duration
	err   error
	sent  mongo.Command
}

func (a *answering) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	a.sent = cmd
	select {
	case <-time.After(a.after):
		return cmd.Body, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestBounded: only a command that is not answered in time is lost: neither one whose caller gives
// up, nor one that the server has answered.
func TestBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := &answering{after: 29 * time.Second}
		b := mongo.Bounded{Caller: to, Limit: 30 * time.Second}
		ping := mongo.Command{DB: "admin", Body: must.Get(bson.Marshal(bson.D{{Key: "ping", Value: 1}}))(t)}
		must.Get(b.Call(t.Context(), ping))(t)
		if got := to.sent.Body.Lookup("maxTimeMS").AsInt64(); got != 22_500 {
			t.Errorf("the server has %d ms: it cannot answer that it gives up", got)
		}
		own := mongo.Command{DB: "admin", Body: must.Get(bson.Marshal(bson.D{{Key: "ping", Value: 1}, {Key: "maxTimeMS", Value: 7}}))(t)}
		if got := must.Get(b.Call(t.Context(), own))(t); got.Lookup("maxTimeMS").AsInt64() != 7 || len(must.Get(got.Elements())(t)) != 2 {
			t.Errorf("%s", got)
		}
		refused := servererr.New(servererr.MaxTimeMSExpired, "too late")
		to.err = refused
		if _, err := b.Call(t.Context(), ping); !errors.Is(err, refused) {
			t.Error(err)
		}
		to.after = time.Hour
		began := time.Now()
		_, err := b.Call(t.Context(), ping)
		if _, silent := errors.AsType[*mongo.SilentError](err); !silent || servererr.Classify(err) != servererr.Lost || time.Since(began) != 30*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
		defer cancel()
		if _, err := b.Call(ctx, ping); !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}
