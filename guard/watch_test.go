package guard_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// all mirrors all databases but one, under the same names.
type all struct{}

func (all) Source(ns oplog.Namespace) (oplog.Namespace, bool) {
	return ns, ns.DB() != "mine" && ns != "shop.mine"
}

func sessions(link, instance string) []bson.Raw {
	return []bson.Raw{mongo.SessionID("replicator", link, instance, "0"), mongo.SessionID("replicator", link, instance, "lease")}
}

// watched is a Watch and the number of the entry that it sees next.
type watched struct {
	t *testing.T
	*guard.Watch
	n uint32
	// wall is the clock of the target's primary.
	wall bson.DateTime
	// deletes are the collections that the target itself deletes from.
	deletes map[oplog.Namespace]bool
	// copied returns the copy of a collection; nil if none is copied.
	copied func(oplog.Namespace) guard.Copy
}

func newWatched(t *testing.T, from guard.State) *watched {
	w := &watched{t: t, n: 1, wall: 1_700_000_000_000, deletes: map[oplog.Namespace]bool{}}
	w.Watch = guard.NewWatch(guard.WatchConfig{
		Link: "dr", Instance: "I", MetaDB: "replicator", Scope: all{}, Sessions: sessions,
		Deletes: func(_ context.Context, ns oplog.Namespace, _ oplog.UUID) (bool, error) { return w.deletes[ns], nil },
		Copied: func(ns oplog.Namespace) guard.Copy {
			if w.copied == nil {
				return guard.Copy{}
			}
			return w.copied(ns)
		},
	}, from)
	return w
}

// sees examines an entry and returns the foreign writes in it.
func (w *watched) sees(fields bson.D) string {
	w.t.Helper()
	w.n++
	doc := append(bson.D{}, fields...)
	doc = append(doc, bson.E{Key: "ts", Value: bson.Timestamp{T: 100, I: w.n}}, bson.E{Key: "t", Value: int64(1)}, bson.E{Key: "v", Value: int64(2)},
		bson.E{Key: "wall", Value: w.wall})
	e := must.Get(oplog.ParseEntry(must.Get(bson.Marshal(doc))(w.t)))(w.t)
	found := must.Get(w.See(w.t.Context(), &e))(w.t)
	var text []string
	for i := range found {
		f := &found[i]
		text = append(text, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", f.Kind, f.NS, f.ID, f.To)))
	}
	return strings.Join(text, ", ")
}

func (w *watched) expect(want string, fields bson.D) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.sees(fields)); diff != "" {
		w.t.Errorf("%v (-want +got):\n%s", fields, diff)
	}
}

func crud(kind, ns string, id any) bson.D {
	d := bson.D{{Key: "op", Value: kind}, {Key: "ns", Value: ns}, {Key: "o", Value: bson.D{{Key: "_id", Value: id}}}}
	if kind == "u" {
		d = append(d, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}})
	}
	return d
}

func command(db string, o bson.D) bson.D {
	return bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: db + ".$cmd"}, {Key: "o", Value: o}}
}

func in(lsid bson.Raw, d bson.D) bson.D {
	id := lsid.Lookup("id")
	return append(bson.D{
		{Key: "lsid", Value: bson.D{{Key: "id", Value: id}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}},
		{Key: "txnNumber", Value: int64(3)},
	}, d...)
}

func applyOps(ops ...bson.D) bson.D {
	list := bson.A{}
	for _, op := range ops {
		list = append(list, op)
	}
	return command("admin", bson.D{{Key: "applyOps", Value: list}})
}

func announced(link, command, ns, to string, n int) bson.D {
	id := bson.D{{Key: "link", Value: link}, {Key: "n", Value: n}}
	return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "replicator.commands"}, {Key: "o", Value: bson.D{
		{Key: "_id", Value: id}, {Key: "command", Value: command}, {Key: "ns", Value: ns}, {Key: "to", Value: to},
	}}}
}

func answered(link string, n int) bson.D {
	return crud("d", "replicator.commands", bson.D{{Key: "link", Value: link}, {Key: "n", Value: n}})
}

// TestDocuments: writes in the link's sessions are its own, in transactions and outside, and all
// others on mirrored namespaces are foreign.
func TestDocuments(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	own, other := sessions("dr", "I")[0], mongo.SessionID("somebody")
	w.expect("", in(own, crud("i", "shop.a", 1)))
	w.expect("", in(own, applyOps(crud("u", "replicator.lanes", "dr/0"), crud("u", "shop.a", 1))))
	w.expect("insert shop.a 1", in(other, crud("i", "shop.a", 1)))
	w.expect("update shop.a 1", crud("u", "shop.a", 1))
	w.expect("", crud("i", "mine.a", 1))
	w.expect("", crud("i", "config.transactions", 1))
	w.expect("", crud("u", "replicator.links", "dr"))
	w.expect("insert shop.a 1, delete shop.b 2", in(other, applyOps(crud("i", "shop.a", 1), crud("i", "mine.a", 1), crud("d", "shop.b", 2))))
	w.expect("insert shop.w 5", crud("i", "shop.system.buckets.w", 5))
	w.expect("insert shop.a 1", in(sessions("dr", "J")[0], crud("i", "shop.a", 1))) // an earlier link of the name
	st := w.State()
	if n := st.Total(); n != 6 || len(st.Touched) != 3 || st.Touched[0].Count != 4 || st.Touched[2].NS != "shop.w" {
		t.Errorf("%d writes: %+v", n, st.Touched)
	}
	if f := st.Writes[0]; f.Wall.UnixMilli() != 1_700_000_000_000 || f.Session == "" || f.Txn != 3 || f.OpTime.TS.I != w.n {
		t.Errorf("the newest is %+v", f)
	}
}

// TestDeletes: what the server deletes has no session, and neither has what a client deletes
// without retryable writes: it counts where the server deletes nothing.
func TestServersDeletes(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.deletes["shop.ring"] = true
	w.expect("", crud("d", "shop.ring", 1))
	w.expect("", applyOps(crud("d", "shop.ring", 1), crud("d", "shop.ring", 2))) // a batch of expired documents
	w.expect("delete shop.a 1", crud("d", "shop.a", 1))
	w.expect("delete shop.ring 1", in(mongo.SessionID("somebody"), crud("d", "shop.ring", 1)))
	w.expect("insert shop.ring 1", crud("i", "shop.ring", 1))
}

// TestCommands: a command is the link's own while it is announced, for that collection.
func TestCommands(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	create := command("shop", bson.D{{Key: "create", Value: "a"}})
	w.expect("create shop.a", create)
	w.expect("", announced("dr", "create", "shop.a", "", 1))
	w.expect("", create)
	w.expect("create shop.b", command("shop", bson.D{{Key: "create", Value: "b"}}))
	w.expect("drop shop.a", command("shop", bson.D{{Key: "drop", Value: "a"}}))
	w.expect("", answered("dr", 1))
	w.expect("create shop.a", create)
	w.expect("", announced("dr2", "create", "shop.a", "", 2)) // of another link
	w.expect("create shop.a", create)

	rename := func(to string) bson.D {
		return command("shop", bson.D{{Key: "renameCollection", Value: "shop.a"}, {Key: "to", Value: "shop." + to}})
	}
	w.expect("", announced("dr", "renameCollection", "shop.a", "shop.z", 3))
	w.expect("", rename("z"))
	w.expect("renameCollection shop.a shop.y", rename("y"))

	w.expect("", announced("dr", "create", "shop.v", "", 4))
	w.expect("", command("shop", bson.D{{Key: "create", Value: "system.views"}}))
	w.expect("", crud("i", "shop.system.views", "shop.v"))
	w.expect("create shop.x", crud("i", "shop.system.views", "shop.x"))
	w.expect("drop shop.v", crud("d", "shop.system.views", "shop.v"))
	w.expect("", command("shop", bson.D{{Key: "create", Value: "system.buckets.v"}})) // a time series

	w.expect("", announced("dr", "delete", "shop.ring", "", 5))
	w.expect("", crud("d", "shop.ring", 1))
	w.expect("", command("mine", bson.D{{Key: "drop", Value: "a"}}))
	w.expect("", bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{{Key: "msg", Value: "periodic noop"}}}})
}

// TestUnannounced: commands up to an entry are not judged, documents are.
func TestUnannounced(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{CommandsFrom: oplog.NewOpTime(100, 4, 1)})
	drop := command("shop", bson.D{{Key: "drop", Value: "a"}})
	w.expect("", drop)
	w.expect("insert shop.a 1", crud("i", "shop.a", 1))
	w.expect("", crud("d", "shop.a", 1))
	w.expect("drop shop.a", drop)
}

// TestParts: a part's sessions are known from the insert of its document, also by the next leader.
func TestParts(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	part := sessions("resync-1", "P")[0]
	link := func(id, of, instance string) bson.D {
		return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "replicator.links"}, {Key: "o", Value: bson.D{
			{Key: "_id", Value: id}, {Key: "of", Value: of}, {Key: "instance", Value: instance},
		}}}
	}
	w.expect("insert shop.a 1", in(part, crud("i", "shop.a", 1)))
	w.expect("", in(mongo.SessionID("create"), applyOps(link("resync-1", "dr", "P"), crud("i", "replicator.lanes", "resync-1/0"))))
	w.expect("", in(part, crud("i", "shop.a", 1)))
	w.expect("", link("resync-2", "other", "P"))
	w.expect("insert shop.a 1", in(sessions("resync-2", "P")[0], crud("i", "shop.a", 1)))
	next := newWatched(t, w.State())
	next.expect("", in(part, crud("i", "shop.a", 1)))
}

// TestBounds: the list of writes is bounded, the counts are not.
func TestBounds(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	const n = 300
	for i := range n {
		w.sees(crud("i", fmt.Sprintf("shop.c%03d", i), strings.Repeat("x", 10_000)))
	}
	st := w.State()
	if st.Total() != n || len(st.Writes) != 20 || len(st.Touched) != 100 || st.More != n-100 || !st.MoreLast.Equal(st.Writes[0].Wall) || st.MoreUntil != st.Writes[0].OpTime.TS || len(st.Writes[0].ID) > 210 {
		t.Errorf("%d writes, %d kept, of %d namespaces and %d more, an _id of %d bytes", st.Total(), len(st.Writes), len(st.Touched), st.More, len(st.Writes[0].ID))
	}
	if !st.IsTouched() || st.Err() == nil {
		t.Error("nothing is to be dealt with")
	}
	newest := st.Writes[0].OpTime.TS
	if before := (bson.Timestamp{T: newest.T, I: newest.I - 1}); !st.Clear(before) || len(st.Touched) != 0 || st.More == 0 {
		t.Errorf("cleared up to the write before the newest: %+v", st.Touched)
	}
	if !st.Clear(newest) || st.IsTouched() || st.Err() != nil || st.Total() != n {
		t.Errorf("cleared: %+v", st.Touched)
	}
	if st.Clear(newest) {
		t.Error("the same time cleared again")
	}
}

// TestClearAfterClockBack: after a failover to a member whose clock is behind, a foreign write is not
// cleared with those before it, and can be cleared.
func TestClearAfterClockBack(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.a", 1))
	first := w.State().Writes[0].OpTime.TS
	w.wall -= 3_600_000
	w.sees(crud("i", "shop.b", 1))
	if !w.Clear(first) {
		t.Error("nothing cleared")
	}
	if st := w.State(); len(st.Touched) != 1 || st.Touched[0].NS != "shop.b" {
		t.Errorf("cleared up to %v: left %+v", first, st.Touched)
	}
	if second := w.State().Touched[0].Until; !w.Clear(second) || len(w.State().Touched) != 0 {
		t.Errorf("cleared up to %v: left %+v", second, w.State().Touched)
	}
}

// TestCopies: a namespace that was copied again is dealt with, unless it was written to since.
func TestCopies(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.a", 1))
	w.sees(crud("i", "shop.b", 1))
	asked := time.UnixMilli(1000).UTC()
	is := func(names ...oplog.Namespace) func(oplog.Namespace) guard.Copy {
		return func(ns oplog.Namespace) guard.Copy {
			if strings.Contains(fmt.Sprint(names), string(ns)) {
				return guard.Copy{Asked: asked}
			}
			return guard.Copy{}
		}
	}
	w.copied = is("shop.b")
	st := w.State()
	st.Copies(is("shop.a", "shop.b"))
	w.Reset(st)
	w.sees(crud("i", "shop.b", 2))
	st = w.State()
	// The copy goes on in another attempt: the write in the middle of it is not dealt with.
	st.Copies(is("shop.a", "shop.b"))
	if !st.Copies(is()) || len(st.Touched) != 1 || st.Touched[0].NS != "shop.b" {
		t.Errorf("left: %+v", st.Touched)
	}
	asked = asked.Add(time.Millisecond)
	st.Copies(is("shop.b"))
	if !st.Copies(is()) || len(st.Touched) != 0 {
		t.Errorf("after another copy: %+v", st.Touched)
	}
}

// TestClearRoundedUp: a write after a clear that was rounded up, in its second, can be cleared.
func TestClearRoundedUp(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	w.Clear(bson.Timestamp{T: 100, I: math.MaxUint32})
	for i := range 101 {
		w.sees(crud("i", fmt.Sprintf("shop.c%03d", i), 1))
	}
	st := w.State()
	if upTo := st.UpTo(); !w.Clear(upTo) {
		t.Errorf("cannot be cleared up to %v", upTo)
	}
	if st = w.State(); st.IsTouched() {
		t.Errorf("left: %d and %d more", len(st.Touched), st.More)
	}
}

// TestWrittenBeforeCopy: a copy deals with foreign writes that were made before it and are found during it,
// but not with later ones.
func TestWrittenBeforeCopy(t *testing.T) {
	t.Parallel()
	w := newWatched(t, guard.State{})
	made := guard.Copy{Asked: time.UnixMilli(1000).UTC(), After: bson.Timestamp{T: 100, I: 3}}
	w.copied = func(oplog.Namespace) guard.Copy { return made }
	w.sees(crud("i", "shop.a", 1))
	w.sees(crud("i", "shop.b", 1)) // the newest before the copy
	w.sees(crud("i", "shop.c", 1))
	w.sees(crud("i", "shop.a", 2))
	st := w.State()
	st.Copies(w.copied)
	st.Copies(func(oplog.Namespace) guard.Copy { return guard.Copy{} })
	if len(st.Touched) != 2 || st.Touched[0].NS != "shop.a" || st.Touched[1].NS != "shop.c" {
		t.Errorf("left: %+v", st.Touched)
	}
}
