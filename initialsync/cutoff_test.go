package initialsync_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/scope"
)

// cutOff is a member that answers, and does not hear of what its set commits: it does not show its newest entry as
// majority-committed.
type cutOff struct{ mongo.Caller }

// Call implements mongo.Caller.
func (c cutOff) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	coll, _ := cmd.Body.Lookup("find").StringValueOK()
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); coll == "oplog.rs" && level == "majority" {
		return nil, servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	return c.Caller.Call(ctx, cmd)
}

// unread is an oplog that has none of the entries of such a member.
type unread struct{ quiet }

// WaitFor implements inventory.Log.
func (unread) WaitFor(ctx context.Context, _ bson.Timestamp) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestCutOff: a copy of a member that is cut off from its set does not wait for its entries without a limit: the attempt ends
// with an error about the member, after some of which another one is read.
func TestCutOff(t *testing.T) {
	t.Parallel()
	source, target := start(t, 1, "5.0"), start(t, 2, "5.0")
	source.fill(t, "db", "a", 10, 10)
	l := newLink(t, source, target, scope.Config{})
	l.member, l.log = cutOff{source}, unread{}
	hung := errors.New("the copy waits")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, hung)
	defer cancel()
	if _, _, err := l.run(ctx, t); !errors.Is(err, origin.ErrUncommitted) {
		t.Error(err)
	}
}
