package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// answers is a source that answers from a list, whatever it is asked.
type answers struct {
	batches [][]bson.D
	asked   []string
}

// Call implements mongo.Caller.
func (a *answers) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	collection, _ := cmd.Body.Lookup("find").StringValueOK()
	level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK()
	asked := []string{cmd.DB, collection, level}
	if filter, ok := cmd.Body.Lookup("filter").DocumentOK(); ok && len(filter) > 5 {
		asked = append(asked, filter.String())
	}
	a.asked = append(a.asked, strings.Join(asked, " "))
	if len(a.batches) == 0 {
		return nil, errors.New("it has no more answers")
	}
	batch := bson.A{}
	for _, doc := range a.batches[0] {
		batch = append(batch, doc)
	}
	a.batches = a.batches[1:]
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: batch}, {Key: "id", Value: int64(0)}}}, {Key: "ok", Value: 1}})
}

// A link that begins now begins after an entry that a majority has, and reads from
// where the transactions begin that may still commit behind that.
func TestResolveStart(t *testing.T) {
	t.Parallel()
	entry := func(seconds uint32) bson.D {
		return bson.D{{Key: "ts", Value: bson.Timestamp{T: seconds, I: 1}}, {Key: "t", Value: int64(2)}, {Key: "wall", Value: bson.DateTime(7)}}
	}
	open := func(seconds uint32) bson.D {
		return bson.D{{Key: "_id", Value: 1}, {Key: "startOpTime", Value: entry(seconds)}}
	}
	at := func(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 2) }
	const newest, transactions = "local oplog.rs majority", `config transactions local {"state": {"$in": ["prepared","inProgress"]}}`
	now := []string{newest, transactions, newest}
	tests := map[string]struct {
		at      StartAt
		batches [][]bson.D
		want    startPoint
		asked   []string
	}{
		"nothing is open":     {StartAt{}, [][]bson.D{{entry(100)}, nil, {entry(103)}}, startPoint{at(103), 7, at(100)}, now},
		"a transaction":       {StartAt{}, [][]bson.D{{entry(100)}, {open(90)}, {entry(103)}}, startPoint{at(103), 7, at(90)}, now},
		"a later transaction": {StartAt{}, [][]bson.D{{entry(100)}, {open(101)}, {entry(103)}}, startPoint{at(103), 7, at(100)}, now},
		"a given point in time": {
			StartAt{Timestamp: bson.Timestamp{T: 50, I: 3}},
			[][]bson.D{{entry(49)}},
			startPoint{at(49), 7, at(49)},
			[]string{newest + ` {"ts": {"$lte": {"$timestamp":{"t":50,"i":3}}}}`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := &answers{batches: tt.batches}
			got, err := resolveStart(t.Context(), source, tt.at)
			if err != nil || got != tt.want {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
			if diff := cmp.Diff(tt.asked, source.asked); diff != "" {
				t.Errorf("-want +asked:\n%s", diff)
			}
		})
	}
	// Nothing in the log is a start that the log does not reach.
	if _, err := resolveStart(t.Context(), &answers{batches: [][]bson.D{nil}}, StartAt{Timestamp: bson.Timestamp{T: 1}}); !errors.Is(err, ErrStartTooOld) {
		t.Errorf("an empty log: %v", err)
	}
}
