package cutover_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// blockable is a target whose users may be blocked while the tool is not. If denied is set, nobody may ask for
// that, or change it.
type blockable struct {
	mongo.Caller
	block  old
	denied bool
}

// Call implements mongo.Caller.
func (b *blockable) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := cmd.Body.Index(0)
	if coll, _ := first.Value().StringValueOK(); first.Key() != "setUserWriteBlockMode" && coll != "user_writes_critical_sections" {
		return b.Caller.Call(ctx, cmd)
	}
	if b.denied {
		return nil, &servererr.Error{Code: 13, Message: "not authorized"}
	}
	return b.block.Call(ctx, cmd)
}

// TestUnblocksTarget: where users could not write to the target, as on the old source of a cutover that
// goes back, they can once the link is cut over; and if that is not known, the message says so.
func TestUnblocksTarget(t *testing.T) {
	t.Parallel()
	set := target(t)
	for name, c := range map[string]struct {
		is   *blockable
		want string
	}{
		"back":  {&blockable{Caller: set, block: old{blocked: true}}, "check freeze drain convert arm commit unblock expire"},
		"open":  {&blockable{Caller: set}, "check freeze drain convert arm commit expire"},
		"asked": {&blockable{Caller: set, denied: true}, "check freeze drain convert arm commit expire"},
	} {
		m := newMoved(t, set, name)
		cfg := m.config(c.is, m.source)
		var said []string
		cfg.Drain.OnWait = func(text string) { said = append(said, text) }
		r := must.Get(cutover.Run(t.Context(), cfg, byBlock))(t)
		var steps []string
		for i := range r.Steps {
			steps = append(steps, string(r.Steps[i].Step))
		}
		if got := strings.Join(steps, " "); got != c.want || c.is.block.isBlocked() || r.State != record.Done {
			t.Errorf("%s: steps %s, the target blocked: %v, state %s", name, got, c.is.block.isBlocked(), r.State)
		}
		if told := strings.Contains(strings.Join(said, "\n"), "whether writes of users to the target are blocked is not known"); told != c.is.denied {
			t.Errorf("%s: said %q", name, said)
		}
		m.isDone(name)
	}
}

// late is a target to which a process, suspended meanwhile, does not send the first command that lifts a block in time.
type late struct {
	*blockable
	meanwhile func()
}

// Call implements mongo.Caller.
func (l *late) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if do := l.meanwhile; do != nil && cmd.Body.Index(0).Key() == "setUserWriteBlockMode" {
		l.meanwhile = nil
		do()
		if !cmd.SendBy.IsZero() {
			return nil, mongo.ErrTooLate
		}
	}
	return l.blockable.Call(ctx, cmd)
}

// TestUnblockSuspended: a process that was suspended before it let the target take writes leaves the block, if another process
// has ended the cutover meanwhile: it may be that of the way back, which was cut over since. Otherwise it lifts it.
func TestUnblockSuspended(t *testing.T) {
	t.Parallel()
	set := target(t)
	for name, ended := range map[string]bool{"ended": true, "not-ended": false} {
		m := newMoved(t, set, name)
		is := &late{blockable: &blockable{Caller: set, block: old{blocked: true}}}
		is.meanwhile = func() {
			if ended {
				was := must.Get(m.records.Get(t.Context(), m.link))(t)
				now := was.Clone()
				now.State = record.Done
				must.Succeed(t, m.records.Put(t.Context(), was, now))
			}
		}
		_, err := cutover.Run(t.Context(), m.config(is, m.source), byBlock)
		if errors.Is(err, record.ErrChanged) != ended || is.block.isBlocked() != ended {
			t.Errorf("%s: %v; the target is blocked: %t", name, err, is.block.isBlocked())
		}
	}
}

// TestUnblockResumedCounts: the time without writes of a cutover whose process was ended while it let the target take writes
// includes the time until the next process has done so.
func TestUnblockResumedCounts(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]bool{"counts": true, "countstoo": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testUnblockResumed(t, name, begun)
		})
	}
}

// interruptUnblock runs a cutover whose process is ended while it lets the target take writes. It returns the target, which is still blocked.
func interruptUnblock(t *testing.T, m *moved) *blockable {
	t.Helper()
	is := &blockable{Caller: m.target, block: old{blocked: true}}
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	if _, err := cutover.Run(ctx, m.config(&late{blockable: is, meanwhile: func() { end(errCrashed) }}, m.source), byBlock); err == nil {
		t.Fatal("the first process has ended the cutover")
	}
	return is
}

func testUnblockResumed(t *testing.T, name string, begun bool) {
	t.Helper()
	m := newMoved(t, target(t), name)
	is := interruptUnblock(t, m)
	was := must.Get(m.records.Get(t.Context(), m.link))(t)
	if !was.Began(record.Unblock) || was.Has(record.Unblock) {
		t.Fatalf("the step unblock is not half done: %s", was)
	}
	earlier := was.Clone()
	if !begun { // as of a process that was ended just before it
		earlier.Steps = earlier.Steps[:len(earlier.Steps)-1]
	}
	earlier.Frozen = earlier.Frozen.Add(-time.Hour) // the time until it is resumed
	must.Succeed(t, m.records.Put(t.Context(), was, earlier))
	r := must.Get(cutover.Resume(t.Context(), m.config(is, m.source)))(t)
	if r.State != record.Done || r.DowntimeSeconds < time.Hour.Seconds() {
		t.Errorf("%s: clients could not write for %.0f s, want an hour", r.State, r.DowntimeSeconds)
	}
}

// TestUnblockedMeanwhile: the step unblock ends where the process that had begun it was ended after it had lifted the block.
func TestUnblockedMeanwhile(t *testing.T) {
	t.Parallel()
	m := newMoved(t, target(t), "lifted")
	interruptUnblock(t, m)
	if r := must.Get(cutover.Resume(t.Context(), m.config(m.target, m.source)))(t); r.State != record.Done || !r.Has(record.Unblock) {
		t.Errorf("%s", r)
	}
}
