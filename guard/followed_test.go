package guard_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestForeignWritesFollow: what something else has written goes where the link renames it to, and away with what the link drops. Names are
// those of the present.
func TestForeignWritesFollow(t *testing.T) {
	t.Parallel()
	drop := func(coll string) bson.D { return command("shop", bson.D{{Key: "drop", Value: coll}}) }
	over := func(from, to string) bson.D {
		return command("shop", bson.D{{Key: "renameCollection", Value: "shop." + from}, {Key: "to", Value: "shop." + to}, {Key: "dropTarget", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}}})
	}
	for _, c := range []struct {
		name string
		acts func(own func(command, ns, to string, entry bson.D))
		want string
	}{
		{"renamed", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.z", renamed("a", "z"))
		}, "shop.b 1, shop.z 2"},
		{"renamed twice, and back", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.y", renamed("a", "y"))
			own("renameCollection", "shop.b", "shop.a", renamed("b", "a"))
			own("renameCollection", "shop.y", "shop.b", renamed("y", "b"))
		}, "shop.a 1, shop.b 2"},
		{"renamed over another one", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.b", over("a", "b"))
		}, "shop.b 2"},
		{"another one renamed over it", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.c", "shop.a", over("c", "a"))
		}, "shop.b 1"},
		{"renamed to what is not mirrored", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.mine", renamed("a", "mine"))
		}, "shop.b 1"},
		{"dropped", func(own func(string, string, string, bson.D)) { own("drop", "shop.a", "", drop("a")) }, "shop.b 1"},
		{"buckets dropped", func(own func(string, string, string, bson.D)) {
			own("drop", "shop.a", "", drop("system.buckets.a"))
		}, "shop.b 1"},
		{"another one dropped", func(own func(string, string, string, bson.D)) { own("drop", "shop.c", "", drop("c")) }, "shop.a 2, shop.b 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, guard.State{})
			w.sees(crud("i", "shop.a", 1))
			w.sees(crud("i", "shop.b", 2))
			w.sees(crud("i", "shop.a", 3))
			n := 0
			c.acts(func(command, ns, to string, entry bson.D) {
				n++
				w.expect("", announced("dr", command, ns, to, n))
				w.expect("", entry)
				w.expect("", answered("dr", n))
			})
			st := w.State()
			var is []string
			for _, touched := range st.Touched {
				if touched.Source != touched.NS {
					t.Errorf("%s is of %s", touched.NS, touched.Source)
				}
				is = append(is, fmt.Sprintf("%s %d", touched.NS, touched.Count))
			}
			if got := strings.Join(is, ", "); got != c.want {
				t.Errorf("open are %q, want %q", got, c.want)
			}
			if st.Total() != 3 {
				t.Errorf("%d writes", st.Total())
			}
		})
	}
}

// follows looks at the copies that are made now, and checks which namespaces are open.
func (w *watched) follows(want string) {
	w.t.Helper()
	st := w.State()
	st.Copies(w.copied)
	w.Reset(st)
	var is []string
	for _, touched := range st.Touched {
		is = append(is, string(touched.NS))
		if touched.Copying {
			is = append(is, "copied")
		}
	}
	if got := strings.Join(is, " "); got != want {
		w.t.Errorf("open are %q, want %q", got, want)
	}
}

// TestForeignWritesFollowCopy: a copy does not settle a collection that got its name meanwhile, and the drop that a copy begins with
// does not settle what its end does.
func TestForeignWritesFollowCopy(t *testing.T) {
	t.Parallel()
	asked := time.UnixMilli(1000).UTC()
	var copying guard.Copy
	w := newWatched(t, guard.State{})
	w.copied = func(oplog.Namespace) guard.Copy { return copying }
	w.sees(crud("i", "shop.a", 1))
	copying = guard.Copy{Asked: asked}
	w.follows("shop.a copied")
	w.expect("", announced("dr", "drop", "shop.a", "", 1))
	w.expect("", command("shop", bson.D{{Key: "drop", Value: "a"}}))
	w.follows("shop.a copied")
	w.expect("", announced("dr", "renameCollection", "shop.a", "shop.b", 2))
	w.expect("", renamed("a", "b"))
	w.follows("shop.b")
	copying = guard.Copy{}
	w.follows("shop.b")
	copying = guard.Copy{Asked: asked.Add(time.Second)}
	w.follows("shop.b copied")
	copying = guard.Copy{}
	w.follows("")
}

// newest is the newest write to a namespace that is open, and its present name.
func (w *watched) newest() string {
	st := w.State()
	newest, now := st.NewestOpen()
	if newest == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s %s, now %s", newest.Kind, newest.NS, newest.ID, now)
}

// TestForeignWritesKeepTheirNames: the newest write to an open namespace is known after the link has renamed it; one to an earlier collection of
// that name does not count. Both stay known in the metadata.
func TestForeignWritesKeepTheirNames(t *testing.T) {
	t.Parallel()
	store := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	w := newWatched(t, guard.State{})
	n := 0
	own := func(command, ns, to string, entry bson.D) {
		n++
		w.expect("", announced("dr", command, ns, to, n))
		w.expect("", entry)
		w.expect("", answered("dr", n))
	}
	is := func(when, want string) {
		t.Helper()
		if got := w.newest(); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		st := w.State()
		must.Succeed(t, store.Write(t.Context(), &st, true))
		w.Reset(*must.Get(store.Read(t.Context()))(t))
		if got := w.newest(); got != want {
			t.Errorf("%s, stored: %q, want %q", when, got, want)
		}
	}
	w.sees(crud("i", "shop.a", 1))
	w.sees(crud("i", "shop.z", 2))
	own("renameCollection", "shop.a", "shop.z", renamed("a", "z"))
	is("renamed over another one", "insert of shop.a 1, now shop.z")
	own("renameCollection", "shop.z", "shop.y", renamed("z", "y"))
	is("renamed again", "insert of shop.a 1, now shop.y")
	w.sees(crud("i", "shop.a", 3))
	own("drop", "shop.a", "", command("shop", bson.D{{Key: "drop", Value: "a"}}))
	own("renameCollection", "shop.y", "shop.a", renamed("y", "a"))
	is("renamed to the name of one that was dropped", "insert of shop.a 1, now shop.a")
	w.sees(renamed("a", "b")) // by something else: the target has no a any more
	is("renamed by something else", "renameCollection of shop.a , now shop.a")
	own("renameCollection", "shop.b", "shop.c", renamed("b", "c"))
	own("drop", "shop.a", "", command("shop", bson.D{{Key: "drop", Value: "a"}}))
	is("its new name renamed", "renameCollection of shop.a , now shop.c")
	w.sees(crud("i", "shop.x", 4))
	own("drop", "shop.x", "", command("shop", bson.D{{Key: "drop", Value: "x"}}))
	st := w.State()
	if e, ok := errors.AsType[*guard.ForeignError](st.Err()); !ok || e.Newest.Kind != "renameCollection" || e.NS != "shop.c" {
		t.Errorf("the newest one was dealt with: %v", st.Err())
	}
	w.Clear(bson.Timestamp{T: 200})
	own("renameCollection", "shop.c", "shop.d", renamed("c", "d"))
	is("cleared", "")
	w.sees(crud("i", "shop.q", 5))
	w.sees(renamed("e", "f"))
	own("drop", "shop.e", "", command("shop", bson.D{{Key: "drop", Value: "e"}}))
	own("drop", "shop.f", "", command("shop", bson.D{{Key: "drop", Value: "f"}}))
	own("renameCollection", "shop.q", "shop.f", renamed("q", "f"))
	is("renamed to the new name of one that was dropped", "insert of shop.q 5, now shop.f")
	w.sees(crud("i", "shop.r", 6))
	own("renameCollection", "shop.r", "shop.mine", renamed("r", "mine"))
	own("renameCollection", "shop.f", "shop.r", renamed("f", "r"))
	is("renamed to the name of one that is not mirrored any more", "insert of shop.q 5, now shop.r")
	for i := range 100 {
		w.sees(crud("i", fmt.Sprintf("shop.n%02d", i), i))
	}
	own("renameCollection", "shop.n99", "shop.n100", renamed("n99", "n100"))
	if st = w.State(); st.More != 1 || !slices.Equal(st.Writes[0].Open(), []oplog.Namespace{"shop.n100"}) {
		t.Errorf("of %d that are not listed, the newest has %v", st.More, st.Writes[0].Open())
	}
}

// TestForeignWritesOfACopy: a write that a copy has overwritten is not the newest one to a collection that gets that name later.
func TestForeignWritesOfACopy(t *testing.T) {
	t.Parallel()
	copying := guard.Copy{}
	w := newWatched(t, guard.State{})
	w.copied = func(ns oplog.Namespace) (c guard.Copy) {
		if ns == "shop.a" {
			c = copying
		}
		return c
	}
	w.sees(crud("i", "shop.b", 1))
	w.sees(crud("i", "shop.a", 2))
	copying.Asked = time.UnixMilli(1000).UTC()
	w.follows("shop.a copied shop.b")
	copying = guard.Copy{}
	w.follows("shop.b")
	w.expect("", announced("dr", "renameCollection", "shop.b", "shop.a", 1))
	w.expect("", renamed("b", "a"))
	if got, want := w.newest(), "insert of shop.b 1, now shop.a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestForeignWritesOfAView: what something else has done to a view, or to a time series, goes when the link drops it.
func TestForeignWritesOfAView(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.copied = func(oplog.Namespace) guard.Copy { return guard.Copy{} }
	w.expect("collMod shop.v", crud("u", "shop.system.views", "shop.v"))
	w.expect("create shop.w", crud("i", "shop.system.views", "shop.w"))
	w.expect("", announced("dr", "drop", "shop.v", "", 1))
	w.expect("", crud("d", "shop.system.views", "shop.v"))
	w.follows("shop.w")
	w.expect("drop shop.w", crud("d", "shop.system.views", "shop.w")) // by something else
	w.follows("shop.w")
}

// TestForeignWritesFollowUnjudged: documents go where a rename takes them, whoever has renamed. Who has dropped a collection matters.
func TestForeignWritesFollowUnjudged(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{CommandsFrom: oplog.NewOpTime(100, 9, 1)})
	w.copied = func(oplog.Namespace) guard.Copy { return guard.Copy{} }
	w.sees(crud("i", "shop.a", 1))
	w.sees(crud("i", "shop.b", 1))
	w.expect("", renamed("a", "z"))
	w.expect("", command("shop", bson.D{{Key: "drop", Value: "b"}}))
	w.follows("shop.b shop.z")
}

// TestForeignWritesFollowOlderCopy: a copy that began to read after a rename, which is examined again, settles the foreign writes that it took along.
func TestForeignWritesFollowOlderCopy(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.copied = func(ns oplog.Namespace) (c guard.Copy) {
		if ns == "shop.z" {
			c = guard.Copy{Asked: time.UnixMilli(1000).UTC(), After: bson.Timestamp{T: 100, I: 50}}
		}
		return c
	}
	w.sees(crud("i", "shop.a", 1))
	w.expect("", announced("dr", "renameCollection", "shop.a", "shop.z", 1))
	w.expect("", renamed("a", "z"))
	w.follows("shop.z copied")
	w.copied = func(oplog.Namespace) guard.Copy { return guard.Copy{} }
	w.follows("")
}
