package progress

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// created puts a collection with two ranges into the copy.
func created(ctx context.Context, t tester, h *Link) []Range {
	t.Helper()
	ranges := []Range{part(1, 0), part(1, 1)}
	c := collection(1)
	c.State = Created
	must.Succeed(t, h.Lane(0).SaveCollection(ctx, &c, ranges))
	return ranges
}

// TestMoveRangeFenced: documents that an older term copies do not get into the target.
func TestMoveRangeFenced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		stepDown bool
	}{{"same primary", false}, {"next primary", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, _, old := copying(t, mongosim.Options{Members: 3, Seed: 1}, 3)
			ranges := created(ctx, t, old)
			move(ctx, t, old.Lane(0), &ranges[0], false, "kept")
			opened, _ := openMove(ctx, t, old.Lane(0), &ranges[0], false, "open")
			h := acquired(t)(link(t, g).Acquire(ctx, 0))
			if tt.stepDown {
				must.Succeed(t, g.Set.StepDown(ctx))
			}
			if _, err := opened.Commit(ctx, false); !servererr.IsOldNumber(err) {
				t.Errorf("late commit: %v", err)
			}
			c := collection(1)
			copied := *old.Copy()
			for what, err := range map[string]error{
				"MoveRange":      tryMove(ctx, old.Lane(1), ranges[1]),
				"SaveCollection": old.Lane(2).SaveCollection(ctx, &c, []Range{part(1, 2)}),
				"AddCollections": old.AddCollections(ctx, []Collection{collection(2)}),
				"UpdateCopy":     old.UpdateCopy(ctx, copied),
				"BeginCopy":      old.BeginCopy(ctx, Copy{Number: 2, Phase: Copying, Begin: ot(200), FetchFrom: ot(200)}, 1),
			} {
				if !errors.Is(err, lease.ErrFenced) {
					t.Errorf("%s of an older term: %v", what, err)
				}
			}
			if has(ctx, t, g, "open") || !has(ctx, t, g, "kept") {
				t.Error("the data are not those that were committed in time")
			}
			colls, got := copies(ctx, t, h)
			if len(colls) != 1 || colls[0].State != Created || len(got) != 2 || got[0].Steps != 1 || got[1].Steps != 0 {
				t.Errorf("%+v, %+v", colls, got)
			}
			// The new term continues.
			move(ctx, t, h.Lane(1), &got[0], true, "open")
			must.Succeed(t, h.AddCollections(ctx, []Collection{collection(2)}))
		})
	}
}

// TestDropFenced: an older term drops nothing.
func TestDropFenced(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, old := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	must.Succeed(t, old.AddCollections(ctx, []Collection{collection(2)}))
	c := firstCopy()
	c.Number = 2
	must.Succeed(t, old.BeginCopy(ctx, *c, 1))
	old = acquired(t)(s.Acquire(ctx, 0))
	acquired(t)(link(t, g).Acquire(ctx, 0))
	must.Fail(t, old.DropCopies(ctx, 2), lease.ErrFenced)
}

// TestOpenMoveMeetsFence: the term of a lane cannot be raised while a transaction that
// moves a range is open, whatever sessions the two have: one of them is aborted.
func TestOpenMoveMeetsFence(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	ranges := created(ctx, t, h)
	opened, _ := openMove(ctx, t, h.Lane(0), &ranges[0], false, "open")
	// In a transaction, as that does not wait.
	fence := mongo.NewSession(g, mongo.SessionID("another"), 1).Begin()
	_, err := fence.Call(ctx, metadata.Update("replicator", metadata.Lanes, metadata.Statement{
		Filter: metadata.ByID("a/0"),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", 2) })
		},
	}))
	must.Fail(t, err, &servererr.Error{Code: servererr.WriteConflict})
	must.Get(opened.Commit(ctx, false))(t)
}

// TestCopyRewound: a loss of copied documents by a failover is detected before anything
// is built on them.
func TestCopyRewound(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(ctx context.Context, h *Link, lost Range) error{
		"the range's next move, on another lane": func(ctx context.Context, h *Link, lost Range) error {
			return tryMove(ctx, h.Lane(0), lost)
		},
		"the collection is filled": func(ctx context.Context, h *Link, _ Range) error {
			c := collection(1)
			c.State = Filled
			return h.Lane(0).SaveCollection(ctx, &c, nil)
		},
		"the copy is complete": func(ctx context.Context, h *Link, _ Range) error {
			c := h.Copy()
			c.Phase, c.Stop, c.Cleared, c.Listed = Replaying, ot(150), true, true
			return h.UpdateCopy(ctx, *c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, s, h := copying(t, mongosim.Options{Members: 3, Seed: 1}, 2)
			ranges := created(ctx, t, h)
			move(ctx, t, h.Lane(0), &ranges[0], true, "kept-0")
			move(ctx, t, h.Lane(1), &ranges[1], false, "kept-1")
			complete := strings.Contains(name, "complete")
			if complete {
				// Only UpdateCopy reads the ranges of a collection that is done.
				set(ctx, t, g, collectionID("a", 1, uuid(1)), func(dst []byte) []byte {
					return bsoncore.AppendStringElement(dst, "state", string(Done))
				})
			}
			lost := ranges[1]
			was := lost
			g.Lose(ctx, t, func() { move(ctx, t, h.Lane(1), &lost, !strings.Contains(name, "next move"), "lost") })
			if has(ctx, t, g, "lost") {
				t.Fatal("the move was not rolled back")
			}
			must.Fail(t, look(ctx, h, lost), lease.ErrRewound)

			h = acquired(t)(s.Acquire(ctx, h.Term()))
			_, got := copies(ctx, t, h)
			if got[1].Steps != was.Steps || got[1].Done || got[0].Steps != 1 || !got[0].Done {
				t.Fatalf("found %+v", got)
			}
			if st := h.State().Copy; st.Phase != Copying || st.Cleared {
				t.Errorf("a refused Change: %+v", st)
			}
			move(ctx, t, h.Lane(0), &got[1], true, "lost")
			if err := look(ctx, h, got[1]); err != nil && !strings.Contains(name, "next move") {
				t.Error(err)
			}
		})
	}
}

// set sets fields of a document of copies.
func set(ctx context.Context, t tester, g *target, id string, fields func(dst []byte) []byte) {
	t.Helper()
	must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Copies, metadata.Statement{
		Filter: metadata.ByID(id), Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", fields) },
	}))))(t)
}

// TestCopyLostCommit: after a commit whose reply was lost the Link does not continue,
// and the next term reads the state from the target.
func TestCopyLostCommit(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	created(ctx, t, h)
	for _, sent := range []bool{true, false} {
		cut := func(work func() error) {
			t.Helper()
			g.Intercept(func(cmd mongo.Command) (error, bool) {
				if simcaller.Name(cmd) == "commitTransaction" {
					return errCut, sent
				}
				return nil, false
			})
			err := work()
			g.Intercept(nil)
			must.Fail(t, err, errCut)
		}
		goesOn := func(err error) {
			t.Helper()
			if sent {
				must.Fail(t, err, checkpoint.ErrAhead)
			} else if err != nil {
				t.Error(err)
			}
		}
		_, ranges := copies(ctx, t, h)
		r := ranges[0]
		txn, _ := openMove(ctx, t, h.Lane(0), &r, false, id(sent))
		cut(func() error { _, err := txn.Commit(ctx, false); return err })
		goesOn(tryMove(ctx, h.Lane(0), r))

		c := h.Copy()
		c.Cleared, c.Listed = true, !sent
		cut(func() error { return h.UpdateCopy(ctx, *c) })
		goesOn(h.UpdateCopy(ctx, *c))
		goesOn(h.AddCollections(ctx, []Collection{collection(1)}))

		h = acquired(t)(s.Acquire(ctx, h.Term()))
		if _, now := copies(ctx, t, h); (now[0].Steps == r.Steps+1) != sent || has(ctx, t, g, id(sent)) != sent {
			t.Errorf("sent: %v, step %d", sent, now[0].Steps)
		}
		if !h.State().Copy.Cleared {
			t.Error("it was not cleared")
		}

		next := firstCopy()
		next.Number = h.Copy().Number + 1
		cut(func() error { return h.BeginCopy(ctx, *next, 1) })
		goesOn(h.UpdateCopy(ctx, *h.Copy()))
		h = acquired(t)(s.Acquire(ctx, h.Term()))
		if got := h.State().Copy.Number == next.Number; got != sent {
			t.Errorf("sent: %v, copy %d", sent, h.State().Copy.Number)
		}
		created(ctx, t, h)
	}
}

func id(sent bool) string {
	if sent {
		return "sent"
	}
	return "unsent"
}

// TestDurable: calls that promise durability return after a majority has committed;
// moves of ranges need not.
func TestDurable(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	var concerns []string
	g.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			concerns = append(concerns, cmd.Body.Lookup("writeConcern", "w").String())
		}
		return nil, false
	})
	list := make([]Collection, metadata.ChunkDocs+1) // two transactions
	for i := range list {
		list[i] = collection(i)
	}
	must.Succeed(t, h.AddCollections(ctx, list))
	must.Succeed(t, h.Lane(0).SaveCollection(ctx, &list[1], []Range{part(1, 0)}))
	must.Succeed(t, h.UpdateCopy(ctx, *h.Copy()))
	c := firstCopy()
	c.Number = 2
	must.Succeed(t, h.BeginCopy(ctx, *c, 1))
	if got := strings.Join(concerns, " "); got != `"majority" "majority" "majority" "majority" "majority"` {
		t.Error(got)
	}
}

// TestMovesLeaveTheLane: copying does not move a lane, and works concurrently with
// flushes of the oplog and after a barrier.
func TestMovesLeaveTheLane(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	ranges := created(ctx, t, h)
	l := h.Lane(0)
	flush(ctx, t, h.Barrier(), at(101, 0), "barrier")
	move(ctx, t, l, &ranges[0], false, "a")
	flush(ctx, t, l, at(102, 0), "b")
	move(ctx, t, l, &ranges[0], false, "c")
	if st, _, _ := s.Load(ctx); st.Lanes[0] != at(102, 0) || l.Position() != at(102, 0) {
		t.Errorf("the lane is at %s", st.Lanes[0])
	}
	set(ctx, t, g, rangeID("a", 1, uuid(1), 0), func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "done", true) })
	if e, ok := errors.AsType[*metadata.DamagedError](tryMove(ctx, l, ranges[0])); !ok || !strings.Contains(e.What, "it is done") {
		t.Errorf("a range that somebody else ended: %v", e)
	}
	must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Copies, metadata.ByID(rangeID("a", 1, uuid(1), 0)))))(t)
	must.Fail(t, tryMove(ctx, l, ranges[0]), lease.ErrRewound)
}

// TestDamagedCopies: documents that this program would not write are refused, with a
// description of the fault.
func TestDamagedCopies(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	coll, rng := collectionID("a", 1, uuid(1)), rangeID("a", 1, uuid(1), 0)
	for _, tt := range []struct {
		id, field, want string
	}{
		{coll, "uuid", "field uuid"},
		{coll, "state", "field state"},
		{coll, "options", "field options"},
		{coll, "indexes", "field indexes"},
		{coll, "failed", "field failed"},
		{coll, "number", "field number"},
		{rng, "steps", "field steps"},
		{rng, "at", "field at"},
		{rng, "done", "field done"},
		{rng, "index", "field index"},
	} {
		created(ctx, t, h)
		copies(ctx, t, h)
		set(ctx, t, g, tt.id, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, tt.field, "x") })
		_, _, err := h.Copies(ctx)
		if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, tt.want) || !strings.Contains(e.What, tt.id) {
			t.Errorf("%s of %s: %v", tt.field, tt.id, err)
		}
		must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Copies, metadata.ByID(tt.id))))(t)
	}
	created(ctx, t, h)
	set(ctx, t, g, rng, func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "index", 5) })
	if _, _, err := h.Copies(ctx); err == nil || !strings.Contains(err.Error(), "field _id") {
		t.Errorf("another range's document: %v", err)
	}
	for field, value := range map[string]func(dst []byte) []byte{
		"copy.phase is":    func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "copy.phase", 1) },
		`copy: phase "x"`:  func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "copy.phase", "x") },
		"copy.begin.ts is": func(dst []byte) []byte { return metadata.AppendDoc(dst, "copy.begin", nothing) },
		"copy is":          func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "copy", "x") },
	} {
		before := linkDocument(ctx, t, g)
		replace := func(change func(dst []byte) []byte) {
			t.Helper()
			must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Links, metadata.Statement{Filter: metadata.ByID("a"), Change: change}))))(t)
		}
		replace(func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", value) })
		_, _, err := s.Load(ctx)
		if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, "field "+field) {
			t.Errorf("%s: %v", field, err)
		}
		replace(func(dst []byte) []byte { return append(dst, before[4:len(before)-1]...) })
	}
	acquired(t)(s.Acquire(ctx, 0))
}
