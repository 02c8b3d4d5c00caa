package cutover_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// interrupted are the calls of a process to one of its sets: others do something before the reply to a find of a
// collection, or to a command that blocks writes, arrives.
type interrupted struct {
	mongo.Caller
	blocks, finds func(coll string)
}

// Call implements mongo.Caller.
func (c interrupted) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := c.Caller.Call(ctx, cmd)
	switch first := cmd.Body.Index(0); first.Key() {
	case "setUserWriteBlockMode":
		c.blocks("")
	case "find":
		c.finds(first.Value().StringValue())
	}
	return reply, err
}

// TestLiftOfAnEarlierCutover: a process whose cutover was cancelled while it blocked the source does not lift the block of one that
// has begun since, at whichever of its reads that was.
func TestLiftOfAnEarlierCutover(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for _, coll := range []string{"links", "lanes"} {
		m := newMoved(t, target, "of-"+coll)
		cancelled, begun := false, false
		in := interrupted{
			blocks: func(string) {
				if !cancelled {
					must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
					cancelled = true
				}
			},
			finds: func(of string) {
				if cancelled && !begun && of == coll {
					begun = true
					m.half(false)
				}
			},
		}
		to, from := in, in
		to.Caller, from.Caller = target, m.source
		_, err := cutover.Run(t.Context(), m.config(to, from), byBlock)
		if r := must.Get(m.records.Get(t.Context(), m.link))(t); err == nil || r.State != record.Running || !m.source.isBlocked() {
			t.Errorf("%s: the first process: %v; the source is blocked: %t; the record is %s", coll, err, m.source.isBlocked(), r)
		}
		must.Get(cutover.Resume(t.Context(), m.whole()))(t)
		m.isDone(coll)
	}
}

// TestLiftAfterElection: nor does it if the target's primary was just elected, and does not know yet that a majority has the record of the next one.
func TestLiftAfterElection(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "elected")
	elected := &client.Elected{Caller: target}
	cancelled, begun := false, false
	in := interrupted{
		blocks: func(string) {
			if !cancelled {
				must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
				cancelled = true
			}
		},
		finds: func(of string) {
			if cancelled && !begun && of == "lanes" {
				begun = true
				elected.Elect(t)
				m.half(false)
				time.AfterFunc(300*time.Millisecond, elected.Learn)
			}
		},
	}
	to, from := in, in
	to.Caller, from.Caller = elected, m.source
	_, err := cutover.Run(t.Context(), m.config(to, from), byBlock)
	if r := must.Get(m.records.Get(t.Context(), m.link))(t); err == nil || r.State != record.Running || !m.source.isBlocked() {
		t.Errorf("the first process: %v; the source is blocked: %t; the record is %s", err, m.source.isBlocked(), r)
	}
	must.Get(cutover.Resume(t.Context(), m.whole()))(t)
	m.isDone("elected")
}

// TestCancelAfterElection: a cancellation that another process has ended does not lift the block of the next cutover either, in such a target.
func TestCancelAfterElection(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "cancelled")
	m.half(false)
	elected := &client.Elected{Caller: target}
	begun := false
	to := interrupted{Caller: elected, blocks: func(string) {}, finds: func(of string) {
		if r := must.Get(m.records.Get(t.Context(), m.link))(t); begun || of != "links" || r.State != record.Cancelling {
			return
		}
		begun = true
		elected.Elect(t)
		must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
		m.half(false)
		time.AfterFunc(300*time.Millisecond, elected.Learn)
	}}
	from := interrupted{Caller: m.source, blocks: func(string) {}, finds: func(string) {}}
	_, err := cutover.Cancel(t.Context(), m.config(to, from))
	if r := must.Get(m.records.Get(t.Context(), m.link))(t); err == nil || !begun || r.State != record.Running || !m.source.isBlocked() {
		t.Errorf("the first process: %v; the next cutover has begun: %t; the source is blocked: %t; the record is %s", err, begun, m.source.isBlocked(), r)
	}
}
