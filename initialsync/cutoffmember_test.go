package initialsync

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// uncommitted is a member that does not know its newest entry as majority-committed.
type uncommitted struct{ t *testing.T }

// Call implements mongo.Caller.
func (u uncommitted) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	if isMajority(cmd.Body) {
		return nil, servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
	}
	entry := bson.D{
		{Key: "op", Value: "n"},
		{Key: "ns", Value: ""},
		{Key: "o", Value: bson.D{}},
		{Key: "ts", Value: bson.Timestamp{T: 5, I: 1}},
		{Key: "t", Value: int64(1)},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(0)},
	}
	return must.Marshal(u.t, bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"}, {Key: "firstBatch", Value: bson.A{entry}},
	}}}), nil
}

// TestCutOffCounts: that a member does not know its entries as majority-committed counts as a fault of its reads, for which the copy leaves it in the end.
func TestCutOffCounts(t *testing.T) {
	t.Parallel()
	member := new(Members).observe(uncommitted{t}, "a:27017")
	err := origin.Settled(t.Context(), member, origin.Identity{})
	if _, counts := errors.AsType[*readError](err); !counts || !errors.Is(err, origin.ErrUncommitted) {
		t.Errorf("%T %v", err, err)
	}
}
