package checkpoint

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// The list of the collections that are kept back survives the next acquisition. While there
// are any, the format of the link's document is one that older releases refuse.
func TestKeepBack(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1}, 1)
	want := []KeptBack{{NS: "db.a", Since: at(110, 0)}, {NS: "db.b", Since: at(120, 0)}}
	version := func() int64 {
		doc := must.Get(metadata.FindOne(ctx, g, "replicator", metadata.Links, metadata.ByID(s.Link())))(t)
		n, _ := doc.Lookup("version").AsInt64OK()
		return n
	}
	for _, list := range [][]KeptBack{want, want[:1], nil} {
		must.Succeed(t, h.KeepBack(ctx, list))
		h = must.Get(s.Acquire(ctx, 0))(t)
		if got := h.State().KeptBack; !slices.Equal(got, list) {
			t.Errorf("kept back: %v, want %v", got, list)
		}
		if v := version(); (v == plain) != (list == nil) || (v == keeping) != (list != nil) {
			t.Errorf("version %d with %v", v, list)
		}
	}
}

// While a collection is kept back, the position of the earliest lane is not that of the target,
// not even if there is only one lane.
func TestApartKeptBack(t *testing.T) {
	t.Parallel()
	st := State{Applied: ot(100), Lanes: []Position{at(150, 0)}, LanesAnnounced: []Position{{}}}
	if _, _, apart := st.Apart(); apart {
		t.Error("one lane is apart")
	}
	st.KeptBack = []KeptBack{{NS: "db.a", Since: at(110, 0)}}
	if from, to, apart := st.Apart(); !apart || from != at(100, AllOps) || to != at(150, 0) {
		t.Errorf("apart from %s to %s: %v", from, to, apart)
	}
	st.Barrier = at(150, 0)
	if _, _, apart := st.Apart(); apart {
		t.Error("apart after the barrier")
	}
}
