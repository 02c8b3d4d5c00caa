package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// reopened is a member whose log has entries of these times, and which answers one command.
type reopened struct {
	t     *testing.T
	times []uint32
	asked bool
}

func (r *reopened) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	if r.asked {
		return nil, &mongo.LostError{Err: errors.New("gone")}
	}
	r.asked = true
	var from struct{ Filter struct{ TS bson.M } }
	must.Succeed(r.t, bson.Unmarshal(cmd.Body, &from))
	batch := bson.A{}
	for _, at := range r.times {
		after, exclusive := from.Filter.TS["$gt"].(bson.Timestamp)
		since, _ := from.Filter.TS["$gte"].(bson.Timestamp)
		if exclusive && at > after.T || !exclusive && at >= since.T {
			batch = append(batch, bson.D{{Key: "ts", Value: bson.Timestamp{T: at}}})
		}
	}
	return must.Marshal(r.t, bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(7)}, {Key: "ns", Value: "local.oplog.rs"}, {Key: "firstBatch", Value: batch},
	}}}), nil
}

// TestOplogRollsOver: after an interruption, entries that the source has deleted meanwhile
// are not skipped silently.
func TestOplogRollsOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times []uint32
		want  int
		lost  bool
	}{
		"has the last entry":       {[]uint32{4, 5, 8, 9}, 2, false},
		"has nothing new":          {[]uint32{4, 5}, 0, false},
		"has only the last entry":  {[]uint32{5}, 0, false},
		"no longer has that entry": {[]uint32{8, 9}, 0, true},
	} {
		var got []bson.Raw
		log := &tail{follow: true, filter: bson.D{}, each: func(doc bson.Raw) error {
			got = append(got, doc)
			return nil
		}}
		must.Succeed(t, log.hand([]bson.Raw{must.Marshal(t, bson.D{{Key: "ts", Value: bson.Timestamp{T: 5}}})}))
		got = nil
		err := log.read(t.Context(), &reopened{t: t, times: tt.times})
		if len(got) != tt.want || strings.Contains(err.Error(), "entries are missing") != tt.lost {
			t.Errorf("%s: %d entries, want %d: %v", name, len(got), tt.want, err)
		}
	}
}
