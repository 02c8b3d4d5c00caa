package checkpoint

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/oplog"
)

func opTimes() *rapid.Generator[oplog.OpTime] {
	return rapid.Custom(func(t *rapid.T) oplog.OpTime {
		return oplog.NewOpTime(rapid.Uint32().Draw(t, "seconds"), rapid.Uint32().Draw(t, "increment"), rapid.Int64Min(-1).Draw(t, "term"))
	})
}

// TestDocuments: what is written is read again.
func TestDocuments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := linkDoc{State: first(rapid.IntRange(1, MaxWriters).Draw(t, "writers"))}
		want.instance, want.holder = rapid.StringMatching(`[A-Z0-9]*`).Draw(t, "instance"), rapid.StringMatching(`[A-Z0-9]*`).Draw(t, "holder")
		want.Term, want.Fingerprint = rapid.Int64().Draw(t, "term"), rapid.StringMatching(`.*`).Draw(t, "fingerprint")
		want.Applied, want.FetchFrom = opTimes().Draw(t, "applied"), opTimes().Draw(t, "fetchFrom")
		want.AppliedWall = rapid.Int64().Draw(t, "wall")
		if rapid.Bool().Draw(t, "exact") {
			want.CopiedUntil = oplog.OpTime{}
		}
		if rapid.Bool().Draw(t, "no id") {
			want.Source.ReplicaSetID = bson.RawValue{}
		}
		got := must[linkDoc](t)(readLink("a", want.marshal("a")))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(linkDoc{})); diff != "" {
			t.Error(diff)
		}
		lane := laneDoc{id: laneID("a", 3), term: want.Term, position: Position{OpTime: want.Applied, Op: rapid.Int64().Draw(t, "op")}}
		if rapid.Bool().Draw(t, "begun") {
			lane.begun = Position{OpTime: want.FetchFrom, Op: AllOps}
		}
		gotLane := must[laneDoc](t)(readLane("a", lane.marshal()))
		if diff := cmp.Diff(lane, gotLane, cmp.AllowUnexported(laneDoc{})); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPosition(t *testing.T) {
	t.Parallel()
	ordered := []Position{{}, at(1, 0), at(1, 7), at(1, AllOps), at(2, 0), {OpTime: oplog.NewOpTime(1, 1, 2)}}
	for i, p := range ordered {
		for j, q := range ordered {
			if got, want := p.Compare(q), cmpInts(i, j); got != want {
				t.Errorf("%s and %s: %d, want %d", p, q, got, want)
			}
		}
	}
	if got := at(1, 7).String() + ", " + at(1, AllOps).String(); got != "1:1 t1#7, 1:1 t1" {
		t.Error(got)
	}
}

func cmpInts(i, j int) int { return min(1, max(-1, i-j)) }

// FuzzDocuments: no document makes a reader panic, nor a reply.
func FuzzDocuments(f *testing.F) {
	link := linkDoc{State: first(2)}
	f.Add([]byte(link.marshal("a")))
	lane := laneDoc{id: "a/0", begun: at(1, 1)}
	f.Add([]byte(lane.marshal()))
	f.Add([]byte(document(func(dst []byte) []byte {
		return appendDoc(dst, "cursor", func(dst []byte) []byte {
			return appendDoc(dst, "firstBatch", func(dst []byte) []byte { return appendDoc(dst, "0", byID("a/0")) })
		})
	})))
	f.Fuzz(func(t *testing.T, data []byte) {
		if l, err := readLink("a", data); err == nil && (l.Writers < 1 || l.Writers > MaxWriters) {
			t.Errorf("a link of %d writers", l.Writers)
		}
		_, _ = readLane("a", data)
		_, _ = readLanes("a", 2, data)
		_, _ = written(data)
	})
}
