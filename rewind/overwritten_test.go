package rewind

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// overwritten is a member whose oplog is read up to an entry, and is overwritten beyond that while it is read.
type overwritten struct {
	finds int
	// left are the times of the entries that it has then.
	left []uint32
}

// Call implements mongo.Caller.
func (o *overwritten) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == "getMore" {
		return nil, servererr.New(servererr.CappedPositionLost, "its place was overwritten")
	}
	times, id := []uint32{1, 2}, int64(7)
	if o.finds++; o.finds > 1 {
		times, id = o.left, 0
	}
	docs := bson.A{}
	for _, t := range times {
		docs = append(docs, bson.D{{Key: "ts", Value: bson.Timestamp{T: t}}})
	}
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: id}, {Key: "ns", Value: "local.oplog.rs"}, {Key: "firstBatch", Value: docs}}}, {Key: "ok", Value: 1}})
}

// TestReadOverwritten: entries that are overwritten while the oplog is read are not passed over.
func TestReadOverwritten(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		left []uint32
		want error
	}{
		"the last entry is there":      {[]uint32{2, 3}, nil},
		"the last entry is gone":       {[]uint32{4, 5}, ErrTooOld},
		"nothing is after it any more": {nil, ErrTooOld},
	} {
		var seen []uint32
		err := read(t.Context(), &overwritten{left: tt.left}, bson.Timestamp{T: 1}, func(raw bson.Raw) (bool, error) {
			s, _, _ := raw.Lookup("ts").TimestampOK()
			seen = append(seen, s)
			return true, nil
		})
		if want := map[bool]int{true: 3, false: 2}[tt.want == nil]; !errors.Is(err, tt.want) || len(seen) != want {
			t.Errorf("%s: %v, read %d", name, err, seen)
		}
	}
}
