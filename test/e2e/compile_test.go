package e2e_test

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/oplog/update"
)

// A delta must give the same document whoever applies it: this program in
// memory, the server from a compiled update command, and the server's own
// applier.

// TestDeltaOfThisDocument is the ordinary case: the document is what the delta
// was computed from, so the pre-image may be guaranteed.
func TestDeltaOfThisDocument(t *testing.T) {
	judgeDeltas(t, func(rt *rapid.T) (pre, diff bson.Raw, guaranteed, ok bool) {
		pre = storable(bsongen.Document(rt))
		diff, ok = update.Diff(pre, bsongen.Mutate(rt, pre), 0)
		return pre, diff, true, ok
	})
}

// TestDeltaOfAnotherVersion is what happens when a log is applied again: the
// document is like the one that the delta was computed from.
func TestDeltaOfAnotherVersion(t *testing.T) {
	judgeDeltas(t, func(rt *rapid.T) (pre, diff bson.Raw, guaranteed, ok bool) {
		base := bsongen.Document(rt)
		pre = storable(bsongen.Mutate(rt, base))
		diff, ok = update.Diff(base, bsongen.Mutate(rt, base), 0)
		return pre, diff, false, ok
	})
}

// TestDeltaOfAnyDocument has deltas that have nothing to do with the document.
func TestDeltaOfAnyDocument(t *testing.T) {
	judgeDeltas(t, func(rt *rapid.T) (pre, diff bson.Raw, guaranteed, ok bool) {
		return storable(bsongen.Document(rt)), bsongen.Delta(rt), false, true
	})
}

// judgeDeltas puts random deltas to all appliers. The draw is not ok where
// there is no delta between its two documents, and guaranteed where pre is the
// document that diff was computed from.
func judgeDeltas(t *testing.T, draw func(rt *rapid.T) (pre, diff bson.Raw, guaranteed, ok bool)) {
	mongotest.Versions(t, mongotest.Options{}, func(t *testing.T, rs *mongotest.ReplicaSet) {
		s := newScratch(t, rs)
		var drawn, stored, compiled tally
		rapid.Check(t, func(rt *rapid.T) {
			pre, diff, guaranteed, ok := draw(rt)
			drawn.cases++
			switch {
			case !ok:
				drawn.leaveOut(errors.New("a replacement is smaller than the delta"))
				return
			case len(diff) == rawbson.MinSize:
				drawn.leaveOut(errors.New("nothing to change"))
				return
			}
			c := deltaCase{s: s, pre: pre, diff: diff, compiled: &compiled}
			stored.cases++
			if _, err := s.put(pre); err != nil {
				if _, refused := errors.AsType[*refusedError](err); refused {
					stored.leaveOut(err)
					return
				}
				rt.Fatalf("store %s: %v", pre, err)
			}
			var err error
			if c.want, err = update.ApplyDelta(pre, diff); err != nil {
				rt.Fatalf("apply %s to %s: %v", diff, pre, err)
			}
			c.judge(rt, "compiled without a guarantee", c.compile(update.GuaranteeNone))
			if guaranteed {
				c.judge(rt, "compiled for this pre-image", c.compile(update.GuaranteePreImage))
				if d, err := update.ParseDelta(diff); err == nil && d.AddsTo(pre) {
					c.judge(rt, "compiled for new fields", c.compile(update.GuaranteeNewFields))
				}
			}
			// Where a delta meets another type than it expects, 5.0 writes null.
			// Later servers may leave the value alone, depending on how they write
			// the document: either way a later entry sets it.
			newer := rs.Version().AtLeast(6, 0)
			if guaranteed || !newer {
				c.judge(rt, "applyOps", c.applyOps)
			}
			if guaranteed && newer {
				c.judge(rt, "$_internalApplyOplogUpdate", c.internalStage)
			}
		})
		drawn.check(t, "deltas", 80)
		stored.check(t, "documents that the server does not store", 10)
		compiled.check(t, "deltas that do not compile", 50)
	})
}

// deltaCase is a document, a delta and the document that must come of them.
type deltaCase struct {
	s               *scratch
	pre, diff, want bson.Raw
	compiled        *tally
}

// applier applies the case's delta on the server. It returns what it sent, nil
// if it left the case out.
type applier func() (sent bson.Raw, err error)

func (c *deltaCase) judge(rt *rapid.T, name string, apply applier) {
	if _, err := c.s.put(c.pre); err != nil {
		rt.Fatalf("%s: store %s: %v", name, c.pre, err)
	}
	sent, err := apply()
	if err != nil {
		rt.Fatalf("%s: apply %s to %s by %s: %v", name, c.diff, c.pre, sent, err)
	}
	if sent == nil {
		return
	}
	got, err := c.s.get()
	if err != nil {
		rt.Fatalf("%s: read the document: %v", name, err)
	}
	if !bytes.Equal(got, c.want) {
		rt.Fatalf("%s: applied %s to %s by %s:%s", name, c.diff, c.pre, sent, compare(got, c.want))
	}
}

// compile applies the delta by the update that it compiles to.
func (c *deltaCase) compile(g update.Guarantee) applier {
	return func() (bson.Raw, error) {
		c.compiled.cases++
		u, err := update.CompileDelta(c.diff, update.CompileOptions{Guarantee: g})
		if _, ok := errors.AsType[*update.NotCompilableError](err); ok {
			c.compiled.leaveOut(err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		_, err = c.s.update(u.U)
		return shown(u.U), err
	}
}

// applyOps applies the delta by the server's own applier.
func (c *deltaCase) applyOps() (bson.Raw, error) {
	id, _ := rawbson.Lookup(c.pre, "_id")
	o := entry(c.diff)
	return o, c.s.applyOps(id, o)
}

// internalStage applies the delta by the pipeline stage that hands it to the
// server's own applier.
func (c *deltaCase) internalStage() (bson.Raw, error) {
	u := pipeline("$_internalApplyOplogUpdate", bsoncore.BuildDocument(
		nil,
		bsoncore.AppendDocumentElement(nil, "oplogUpdate", entry(c.diff)),
	))
	_, err := c.s.update(u)
	return shown(u), err
}

// shown returns an update as a document, for a message.
func shown(u bson.RawValue) bson.Raw {
	return bsoncore.BuildDocument(
		nil,
		bsoncore.AppendValueElement(nil, "u", bsoncore.Value{Type: bsoncore.Type(u.Type), Data: u.Value}),
	)
}
