package replset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

// answers is a source that answers from a list, whatever the command.
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

// TestFindStart: a link that begins now begins after a majority-committed entry, and reads
// from the first entry of any transaction that may commit after it.
func TestFindStart(t *testing.T) {
	t.Parallel()
	entry := func(seconds uint32) bson.D {
		return bson.D{{Key: "ts", Value: bson.Timestamp{T: seconds, I: 1}}, {Key: "t", Value: int64(2)}, {Key: "wall", Value: bson.DateTime(7)}}
	}
	open := func(seconds uint32) bson.D {
		return bson.D{{Key: "_id", Value: 1}, {Key: "startOpTime", Value: entry(seconds)}}
	}
	at := func(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 2) }
	now := func(ctx context.Context, source mongo.Caller) (replset.Start, error) {
		return replset.FindStart(ctx, source, replset.Majority)
	}
	given := func(ctx context.Context, source mongo.Caller) (replset.Start, error) {
		return replset.StartAt(ctx, source, bson.Timestamp{T: 50, I: 3})
	}
	const newest, transactions = "local oplog.rs majority", `config transactions local {"state": {"$in": ["prepared","inProgress"]}}`
	const notLater = newest + ` {"ts": {"$lte": {"$timestamp":{"t":50,"i":3}}}}`
	asked := []string{newest, transactions, newest}
	tests := map[string]struct {
		find    func(context.Context, mongo.Caller) (replset.Start, error)
		batches [][]bson.D
		want    replset.Start
		err     error // of the same text
		asked   []string
	}{
		"nothing is open":     {now, [][]bson.D{{entry(100)}, nil, {entry(103)}}, replset.Start{Begin: at(103), Wall: 7, FetchFrom: at(100)}, nil, asked},
		"a transaction":       {now, [][]bson.D{{entry(100)}, {open(90)}, {entry(103)}}, replset.Start{Begin: at(103), Wall: 7, FetchFrom: at(90)}, nil, asked},
		"a later transaction": {now, [][]bson.D{{entry(100)}, {open(101)}, {entry(103)}}, replset.Start{Begin: at(103), Wall: 7, FetchFrom: at(100)}, nil, asked},
		// The commands go to the primary, which may be another one each time: the entries
		// between the two would not be read.
		"a source that went backwards": {now, [][]bson.D{{entry(100)}, nil, {entry(99)}}, replset.Start{}, &replset.WentBackError{Was: at(100), Is: at(99)}, asked},
		"an empty log":                 {now, [][]bson.D{nil}, replset.Start{}, fmt.Errorf("read the newest entry: %w", replset.ErrEmptyOplog), asked[:1]},
		"a given point in time":        {given, [][]bson.D{{entry(49)}}, replset.Start{Begin: at(49), Wall: 7, FetchFrom: at(49)}, nil, []string{notLater}},
		"before the log": {
			given, [][]bson.D{nil}, replset.Start{}, fmt.Errorf("find the entry to start after: %w", replset.ErrTooOld), []string{notLater},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := &answers{batches: tt.batches}
			got, err := tt.find(t.Context(), source)
			if got != tt.want || fmt.Sprint(err) != fmt.Sprint(tt.err) || errors.Is(tt.err, replset.ErrTooOld) != errors.Is(err, replset.ErrTooOld) {
				t.Errorf("got %v, %v, want %v, %v", got, err, tt.want, tt.err)
			}
			if diff := cmp.Diff(tt.asked, source.asked); diff != "" {
				t.Errorf("-want +asked:\n%s", diff)
			}
		})
	}
}

// TestChainStart: a chain is followed back from any of its entries to the first one, and an
// entry that is older than the oplog is an error.
func TestChainStart(t *testing.T) {
	t.Parallel()
	part := func(inc, prev uint32) bson.D {
		return bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: "admin.$cmd"},
			{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{}}, {Key: "partialTxn", Value: true}}},
			{Key: "ts", Value: bson.Timestamp{T: 10, I: inc}},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "wall", Value: bson.DateTime(1)},
			{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
			{Key: "txnNumber", Value: int64(1)},
			{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: min(prev, 10), I: prev}}, {Key: "t", Value: int64(1)}}},
		}
	}
	null := part(3, 0)
	null[len(null)-1].Value = bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}
	source := &answers{batches: [][]bson.D{{part(7, 5)}, {part(5, 3)}, {null}}}
	got, err := replset.ChainStart(t.Context(), source, oplog.NewOpTime(10, 7, 1))
	if err != nil || got != oplog.NewOpTime(10, 3, 1) {
		t.Errorf("it begins at %s, %v", got, err)
	}
	if _, err := replset.ChainStart(t.Context(), &answers{batches: [][]bson.D{{part(7, 5)}, nil}}, oplog.NewOpTime(10, 7, 1)); !errors.Is(err, replset.ErrTooOld) {
		t.Errorf("a chain that begins before the log: %v", err)
	}
}

// FuzzReply: no reply of a member causes a panic, and every optime that is read is valid.
func FuzzReply(f *testing.F) {
	reply, err := (&answers{batches: [][]bson.D{{{{Key: "ts", Value: bson.Timestamp{T: 1}}, {Key: "t", Value: int64(1)}}}}}).Call(f.Context(), mongo.Command{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(reply))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = replset.RollbackID(data)
		if doc, err := replset.First(data); err == nil && doc != nil {
			if e, err := replset.ReadEntry(doc); err == nil && e.OpTime.IsNull() {
				panic("a null entry")
			}
		}
	})
}
