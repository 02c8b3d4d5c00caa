package checkpoint

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func opTimes() *rapid.Generator[oplog.OpTime] {
	return rapid.Custom(func(t *rapid.T) oplog.OpTime {
		return oplog.NewOpTime(rapid.Uint32().Draw(t, "seconds"), rapid.Uint32().Draw(t, "increment"), rapid.Int64Min(-1).Draw(t, "term"))
	})
}

// TestDocuments: documents are read as they were written.
func TestDocuments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := linkDoc{State: first(rapid.IntRange(1, MaxWriters).Draw(t, "writers"))}
		want.lease.Instance, want.lease.Holder = rapid.StringMatching(`[A-Z0-9]*`).Draw(t, "instance"), rapid.StringMatching(`[A-Z0-9]*`).Draw(t, "holder")
		want.lease.Term, want.Fingerprint = rapid.Int64().Draw(t, "term"), rapid.StringMatching(`.*`).Draw(t, "fingerprint")
		want.Term = want.lease.Term
		want.Applied, want.FetchFrom = opTimes().Draw(t, "applied"), opTimes().Draw(t, "fetchFrom")
		want.Routing = int(rapid.Int32().Draw(t, "routing"))
		want.AppliedWall = rapid.Int64().Draw(t, "wall")
		if rapid.Bool().Draw(t, "filters") {
			want.Filters = filters().Draw(t, "filters")
		}
		if rapid.Bool().Draw(t, "exact") {
			want.CopiedUntil = oplog.OpTime{}
		}
		if rapid.Bool().Draw(t, "no id") {
			want.Source.ReplicaSetID = bson.RawValue{}
		}
		if rapid.Bool().Draw(t, "copy") {
			want.Copy = copyOf().Draw(t, "copy")
		}
		if rapid.Bool().Draw(t, "left out") {
			want.LeftOut = leftOuts().Draw(t, "left out")
		}
		got := must.Get(readLink("a", want.marshal("a")))(t)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(linkDoc{})); diff != "" {
			t.Error(diff)
		}
		lane := laneDoc{id: laneID("a", 3), term: want.Term, position: Position{OpTime: want.Applied, Op: rapid.Int64().Draw(t, "op")}}
		if rapid.Bool().Draw(t, "begun") {
			lane.announced = Position{OpTime: want.FetchFrom, Op: AllOps}
		}
		gotLane := must.Get(readLane("a", lane.marshal()))(t)
		if diff := cmp.Diff(lane, gotLane, cmp.AllowUnexported(laneDoc{})); diff != "" {
			t.Error(diff)
		}
	})
}

func filters() *rapid.Generator[*Filters] {
	return rapid.Custom(func(t *rapid.T) *Filters {
		list := func(name string) []string {
			if !rapid.Bool().Draw(t, name) {
				return nil
			}
			return rapid.SliceOfN(rapid.StringMatching(`.+`), 1, 3).Draw(t, name)
		}
		return &Filters{
			Include: list("include"), Exclude: list("exclude"), Map: list("map"),
			UsersAndRoles: rapid.Bool().Draw(t, "users"), Reversed: rapid.Bool().Draw(t, "reversed"),
		}
	})
}

// copyOf draws a valid copy.
func copyOf() *rapid.Generator[*Copy] {
	return rapid.Custom(func(t *rapid.T) *Copy {
		seconds := rapid.Uint32Range(2, 1<<31-1)
		c := &Copy{
			Number: rapid.Int64Min(1).Draw(t, "number"), Phase: rapid.SampledFrom(phases).Draw(t, "phase"),
			Host: rapid.String().Draw(t, "host"), RBID: rapid.Int64().Draw(t, "rbid"),
			Cleared: rapid.Bool().Draw(t, "cleared"), Listed: rapid.Bool().Draw(t, "listed"),
			Started: time.UnixMilli(rapid.Int64().Draw(t, "started")).UTC(), Why: rapid.String().Draw(t, "why"),
		}
		begin := seconds.Draw(t, "begin")
		c.Begin, c.FetchFrom = ot(begin), ot(rapid.Uint32Range(1, begin).Draw(t, "from"))
		if c.Phase != Copying {
			c.Stop = ot(begin + seconds.Draw(t, "more"))
		}
		if rapid.Bool().Draw(t, "sync id") {
			c.SyncID = setID
		}
		c.SyncIDUnread = rapid.Bool().Draw(t, "sync id unread")
		c.SyncMark = rapid.SampledFrom([]string{"", "none", "00ff"}).Draw(t, "sync mark")
		return c
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

// FuzzDocuments: no document and no reply makes a reader panic.
func FuzzDocuments(f *testing.F) {
	link := linkDoc{State: first(2)}
	f.Add([]byte(link.marshal("a")))
	link.State = copyState(2)
	f.Add([]byte(link.marshal("a")))
	lane := laneDoc{id: "a/0", announced: at(1, 1)}
	f.Add([]byte(lane.marshal()))
	f.Add([]byte(metadata.Document(func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "cursor", func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "firstBatch", func(dst []byte) []byte { return metadata.AppendDoc(dst, "0", metadata.ByID("a/0")) })
		})
	})))
	f.Fuzz(func(t *testing.T, data []byte) {
		if l, err := readLink("a", data); err == nil && (l.Writers < 1 || l.Writers > MaxWriters) {
			t.Errorf("a link of %d writers", l.Writers)
		}
		_, _ = readLane("a", data)
		_, _ = readLanes("a", 2, data)
		_, _ = metadata.Written(data)
		_, _ = metadata.Found(data)
	})
}
