package request

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestLinkEnds: whoever waits for a request or for a cut learns at once that the link has ended, and that no process carries it out any
// more. A request that was carried out before stays that.
func TestLinkEnds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	l, h := create(t, g)
	s := New(l)
	open, closed := must.Get(s.Ask(ctx, Ask{Kind: Pause, By: "me"}))(t), must.Get(s.Ask(ctx, Ask{Kind: Resume, By: "me"}))(t)
	must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Control, metadata.Statement{
		Filter: metadata.ByID(s.record(closed.ID)),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "state", Done) })
		},
	}))))(t)
	if got := must.Get(s.Get(ctx, open.ID))(t); !got.Open() {
		t.Fatalf("%+v", got)
	}
	n := nextCut(ctx, s, time.Hour)
	asked(t, s, 3)
	must.Succeed(t, h.End(ctx, checkpoint.Over{At: time.Unix(5, 0).UTC(), By: "ann", Source: at(100)}))
	n.ends(t)
	_, err := s.Get(ctx, open.ID)
	for what, err := range map[string]error{"a cut": n.err, "a request": err} {
		if over, is := errors.AsType[*checkpoint.OverError](err); !is || over.Link != "a" || over.Over.By != "ann" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := must.Get(s.Get(ctx, closed.ID))(t); got.State != Done {
		t.Errorf("%+v", got)
	}
}
