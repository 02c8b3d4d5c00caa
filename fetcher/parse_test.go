package fetcher

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// sequential parses as entries does, one document after the other.
func sequential(docs []bson.Raw, skip int, after oplog.OpTime) (list []oplog.Entry, err error) {
	for _, doc := range docs[min(skip, len(docs)):] {
		e, err := oplog.ParseEntry(doc)
		if err != nil {
			return nil, err
		}
		if err := inOrder(e.OpTime, after); err != nil {
			return nil, err
		}
		after = e.OpTime
		list = append(list, e)
	}
	return list, nil
}

// TestPieces: a reply that several goroutines parse gives what one gives: the same
// entries, and the error of the first document at fault, wherever it is and whatever is
// wrong with later ones.
func TestPieces(t *testing.T) {
	unknown := func(i int) bson.Raw { return marshal(bson.D{{Key: "op", Value: fmt.Sprintf("?%d", i)}}) }
	edges := []int{0, 1, pieceEntries - 1, pieceEntries, pieceEntries + 1, 2 * pieceEntries, 3*pieceEntries - 1}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 2, pieceEntries, pieceEntries + 1, 2*pieceEntries + 7, 3 * pieceEntries}).Draw(t, "n")
		skip := rapid.IntRange(0, 1).Draw(t, "skip")
		docs := make([]bson.Raw, n)
		list := bson.A{}
		for i := range docs {
			docs[i] = marshal(entry(oplog.NewOpTime(1000, uint32(i+1), 1), ""))
		}
		for _, at := range rapid.SliceOfN(rapid.SampledFrom(edges), 0, 3).Draw(t, "faults") {
			switch {
			case at >= n:
			case rapid.Bool().Draw(t, "unknown"):
				docs[at] = unknown(at)
			case at > 0:
				docs[at] = docs[at-1] // out of order
			}
		}
		for _, doc := range docs {
			list = append(list, doc)
		}
		p, err := parsePage(marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(1)}, {Key: nextBatch, Value: list}}}}), nextBatch)
		must.Succeed(t, err)
		after := oplog.NewOpTime(1000, uint32(rapid.IntRange(0, 1).Draw(t, "after")), 1)
		want, wantErr := sequential(docs, skip, after)
		got, err := p.entries(skip, after)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || errors.Is(err, ErrOutOfOrder) != errors.Is(wantErr, ErrOutOfOrder) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if len(got) != len(want) {
			t.Fatalf("%d entries, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i].OpTime != want[i].OpTime || string(got[i].Raw) != string(want[i].Raw) {
				t.Fatalf("entry %d is %s, want %s", i, got[i].OpTime, want[i].OpTime)
			}
		}
	})
}

// TestPiecesTwoFaults: of two documents at fault, in two pieces, the first is reported.
func TestPiecesTwoFaults(t *testing.T) {
	list := bson.A{}
	for i := range 2*pieceEntries + 1 {
		doc := marshal(entry(oplog.NewOpTime(1000, uint32(i+1), 1), ""))
		if i == 1 || i == 2*pieceEntries {
			doc = marshal(bson.D{{Key: "op", Value: fmt.Sprintf("?%d", i)}})
		}
		list = append(list, bson.Raw(doc))
	}
	p, err := parsePage(marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(1)}, {Key: nextBatch, Value: list}}}}), nextBatch)
	must.Succeed(t, err)
	_, err = p.entries(0, oplog.OpTime{Term: oplog.UninitializedTerm})
	if err == nil || !strings.Contains(err.Error(), "?1") {
		t.Errorf("error %v, want that of document 1", err)
	}
}
