package guard_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func renamed(from, to string) bson.D {
	return command("shop", bson.D{{Key: "renameCollection", Value: "shop." + from}, {Key: "to", Value: "shop." + to}})
}

// TestRenameCountsOnce: a rename is one write, of two namespaces. That stays known in the metadata.
func TestRenameCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.expect("renameCollection shop.a shop.b", renamed("a", "b"))
	w.expect("insert shop.b 1", crud("i", "shop.b", 1))
	st := w.State()
	if len(st.Touched) != 2 || st.Touched[0].Count != 1 || st.Touched[0].Twice != 0 || st.Touched[1].Count != 2 || st.Touched[1].Twice != 1 {
		t.Errorf("%+v", st.Touched)
	}
	store := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	must.Succeed(t, store.Write(t.Context(), &st, true))
	if read := must.Get(store.Read(t.Context()))(t); len(read.Touched) != 2 || read.Touched[1].Twice != 1 {
		t.Errorf("stored: %+v", read.Touched)
	}
}

// TestTemporaryIsDone: a temporary collection that a command of the server makes, as convertToCapped does, and renames away, or drops, is gone:
// its writes are those of the collection that it became. One that the link has made, and something else drops, is not.
func TestTemporaryIsDone(t *testing.T) {
	t.Parallel()
	const temp = "tmpaB3xZ.convertToCapped.c"
	made := func(w *watched) {
		w.sees(command("shop", bson.D{{Key: "create", Value: temp}}))
		w.sees(crud("i", "shop."+temp, 1))
		if st := w.State(); len(st.Touched) != 1 {
			t.Errorf("in the middle: %+v", st.Touched)
		}
	}
	w := newWatched(t, guard.State{})
	made(w)
	first := w.State().Touched[0].First
	w.wall += 60_000
	w.sees(renamed(temp, "c"))
	if st := w.State(); len(st.Touched) != 1 || st.Touched[0].NS != "shop.c" || st.Touched[0].Count != 3 || st.Touched[0].Twice != 0 || !st.Touched[0].First.Equal(first) || st.Total() != 3 {
		t.Errorf("renamed: %+v", st.Touched)
	}
	made(newWatched(t, guard.State{}))
	w = newWatched(t, guard.State{})
	made(w)
	w.sees(command("shop", bson.D{{Key: "drop", Value: temp}}))
	if st := w.State(); st.IsTouched() || st.Total() != 3 {
		t.Errorf("dropped: %+v", st.Touched)
	}
	w.sees(command("shop", bson.D{{Key: "drop", Value: "tmpaB3xY.rename"}}))
	if st := w.State(); len(st.Touched) != 1 || st.Touched[0].NS != oplog.Namespace("shop.tmpaB3xY.rename") {
		t.Errorf("another one dropped: %+v", st.Touched)
	}
}

// TestTemporaryOfTheLink: a collection with the name of a temporary one that the link has made stays open if something else writes to it, then
// drops it, or renames it away: the target does not have it any more.
func TestTemporaryOfTheLink(t *testing.T) {
	t.Parallel()
	const mine = "tmp.agg_out.sums" // applications may choose such names
	for name, gone := range map[string]bson.D{
		"dropped": command("shop", bson.D{{Key: "drop", Value: mine}}),
		"renamed": renamed(mine, "c"),
	} {
		w := newWatched(t, guard.State{})
		w.sees(crud("i", "shop."+mine, 1))
		w.sees(gone)
		st := w.State()
		if i := slices.IndexFunc(st.Touched, func(t guard.Touched) bool { return t.NS == "shop."+mine }); i < 0 || st.Touched[i].Count != 2 {
			t.Errorf("%s: %+v", name, st.Touched)
		}
	}
}

// TestTemporaryAfterRestart: it stays known in the metadata that something else has made a temporary collection. One that an earlier release
// has recorded may be the link's.
func TestTemporaryAfterRestart(t *testing.T) {
	t.Parallel()
	const temp = "tmpaB3xZ.renameCollection"
	w := newWatched(t, guard.State{})
	w.sees(command("shop", bson.D{{Key: "create", Value: temp}}))
	st := w.State()
	store := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	must.Succeed(t, store.Write(t.Context(), &st, true))
	read := must.Get(store.Read(t.Context()))(t)
	for made, want := range map[bool]int{true: 1, false: 2} {
		from := *read
		from.Touched = slices.Clone(read.Touched)
		from.Touched[0].Made = from.Touched[0].Made && made
		again := newWatched(t, from)
		again.n = 10
		again.sees(renamed(temp, "c"))
		if st := again.State(); len(st.Touched) != want || st.Total() != 2 {
			t.Errorf("made %t: %+v", made, st.Touched)
		}
	}
}
