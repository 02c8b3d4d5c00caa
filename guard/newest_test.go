package guard_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestForeignErrorNamesNoneDealtWith: the error that ends a link does not name a write that was dealt with, as newer ones to namespaces that
// the link has dropped since are the only ones that are kept.
func TestForeignErrorNamesNoneDealtWith(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.a", 1))
	for i := range 20 {
		w.sees(crud("i", "shop.x", i))
	}
	w.expect("", announced("dr", "drop", "shop.x", "", 1))
	w.expect("", command("shop", bson.D{{Key: "drop", Value: "x"}}))
	st := w.State()
	e, ok := errors.AsType[*guard.ForeignError](st.Err())
	if !ok || e.NS != "shop.a" || e.Newest.Kind != "" || strings.Contains(e.Error(), "shop.x") || !strings.Contains(e.Error(), "shop.a") {
		t.Errorf("only shop.a is open: %v", st.Err())
	}
}

// TestForeignErrorOfUnlisted: nor does it where the namespaces that are open are not listed.
func TestForeignErrorOfUnlisted(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	for i := range 101 {
		w.sees(crud("i", fmt.Sprintf("shop.n%03d", i), i))
	}
	w.sees(crud("i", "shop.n000", 7))
	w.expect("", announced("dr", "drop", "shop.n000", "", 1))
	w.expect("", command("shop", bson.D{{Key: "drop", Value: "n000"}}))
	st := w.State()
	if e, ok := errors.AsType[*guard.ForeignError](st.Err()); !ok || e.Newest.NS != "shop.n100" {
		t.Errorf("the newest that is open is of shop.n100, which is not listed: %v", st.Err())
	}
	for _, written := range []string{"shop.n050", "shop.n051"} {
		w.sees(crud("i", written, 8))
	}
	st = w.State()
	if newest, now := st.NewestOpen(); newest == nil || now != "shop.n051" {
		t.Errorf("the newest that is open is %v, of %q", newest, now)
	}
	w.Clear(st.UpTo())
	st = w.State()
	if newest, now := st.NewestOpen(); newest != nil || st.OpenWrites() != 0 {
		t.Errorf("all are cleared, and the newest that is open is %v, of %q", newest, now)
	}
	only := guard.State{More: 3}
	if err := only.Err(); err == nil || !strings.HasSuffix(err.Error(), "writes to namespaces that are not listed") {
		t.Error(err)
	}
}

// TestRenameCountsOnceForever: a rename that two namespaces count is one write, also once one of the two is dealt with, whichever it
// is, and whatever name the other one has then.
func TestRenameCountsOnceForever(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		acts func(own func(command, ns, to string, entry bson.D))
		want int64
	}{
		{"none is", func(func(string, string, string, bson.D)) {}, 3},
		{"the first", func(own func(string, string, string, bson.D)) {
			own("drop", "shop.a", "", command("shop", bson.D{{Key: "drop", Value: "a"}}))
		}, 2},
		{"the second", func(own func(string, string, string, bson.D)) {
			own("drop", "shop.b", "", command("shop", bson.D{{Key: "drop", Value: "b"}}))
		}, 2},
		{"the first, of other names", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.y", renamed("a", "y"))
			own("renameCollection", "shop.b", "shop.z", renamed("b", "z"))
			own("drop", "shop.y", "", command("shop", bson.D{{Key: "drop", Value: "y"}}))
		}, 2},
		{"the first, which is not mirrored any more", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.mine", renamed("a", "mine"))
		}, 2},
		{"the first, which the second replaces", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.b", "shop.a", renamed("b", "a"))
		}, 2},
		{"the second, which the first replaces", func(own func(string, string, string, bson.D)) {
			own("renameCollection", "shop.a", "shop.b", renamed("a", "b"))
		}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, guard.State{})
			w.sees(crud("i", "shop.a", 1))
			w.expect("renameCollection shop.a shop.b", renamed("a", "b"))
			w.sees(crud("i", "shop.b", 2))
			store := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
			st := w.State()
			must.Succeed(t, store.Write(t.Context(), &st, true))
			w.Reset(*must.Get(store.Read(t.Context()))(t))
			n := 0
			tt.acts(func(command, ns, to string, entry bson.D) {
				n++
				w.expect("", announced("dr", command, ns, to, n))
				w.expect("", entry)
				w.expect("", answered("dr", n))
			})
			st = w.State()
			if got := st.OpenWrites(); got != tt.want {
				t.Errorf("%d writes, want %d: %+v", got, tt.want, st.Touched)
			}
		})
	}
}

// TestCleared: a rename whose two namespaces are cleared together leaves nothing.
func TestCleared(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.c", 1))
	w.expect("renameCollection shop.a shop.b", renamed("a", "b"))
	st := w.State()
	w.Clear(st.UpTo())
	w.sees(crud("i", "shop.b", 2))
	st = w.State()
	if newest, now := st.NewestOpen(); st.OpenWrites() != 1 || newest == nil || newest.Kind != "insert" || now != oplog.Namespace("shop.b") {
		t.Errorf("%d writes, the newest %v of %s", st.OpenWrites(), newest, now)
	}
}
