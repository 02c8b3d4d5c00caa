package request

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// beforeLinks is a target that calls once before the links are read.
type beforeLinks struct {
	mongo.Caller
	once func()
}

func (b beforeLinks) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if name, _ := cmd.Body.Lookup("find").StringValueOK(); simcaller.Name(cmd) == "find" && name == metadata.Links {
		b.once()
	}
	return b.Caller.Call(ctx, cmd)
}

// TestClosedBeforeEnd: a request that was carried out just before the link has ended is not said to have ended with it.
func TestClosedBeforeEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	l, h := create(t, g)
	r := must.Get(New(l).Ask(ctx, Ask{Kind: Pause, By: "me"}))(t)
	s := New(links(t, beforeLinks{g, sync.OnceFunc(func() {
		must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Control, metadata.Statement{
			Filter: metadata.ByID(New(l).record(r.ID)),
			Change: func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "state", Done) })
			},
		}))))(t)
		must.Succeed(t, h.End(ctx, checkpoint.Over{At: time.Unix(5, 0).UTC(), By: "ann", Source: at(100)}))
	})}, "a"))
	if got, err := s.Get(ctx, r.ID); err != nil || got.State != Done {
		t.Errorf("%+v, %v", got, err)
	}
}
