package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestLateBlock: a command that blocks the source, and is executed only after the cutover was
// cancelled, does not leave it blocked. The server gives it up after a time that the record has.
func TestLateBlock(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, again := range map[string]func(m *moved, cfg *cutover.Config) error{
		"cancelled": func(_ *moved, cfg *cutover.Config) error { _, err := cutover.Cancel(t.Context(), cfg); return err },
		"resumed": func(m *moved, cfg *cutover.Config) error {
			cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) { return "", errBroken }
			m.source.set(func(o *old) { o.held = nil }) // the next one is executed at once
			if _, err := cutover.Resume(t.Context(), cfg); !errors.Is(err, errBroken) {
				t.Errorf("resumed: %v", err)
			}
			m.source.set(func(o *old) { o.held = new(2) })
			_, err := cutover.Cancel(t.Context(), cfg)
			return err
		},
	} {
		m := newMoved(t, target, name)
		m.source.held = new(never)
		cfg := m.whole()
		if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, errCrashed) {
			t.Errorf("%s: %v", name, err)
		}
		if m.source.limit <= 0 || m.source.limit > cfg.BlockWithin {
			t.Errorf("%s: a command that blocks writes may take %s", name, m.source.limit)
		}
		was := must.Get(m.records.Get(t.Context(), m.link))(t)
		earlier := was.Clone()
		earlier.Started = was.Started.Add(-time.Hour) // a command that is sent again counts from then on
		must.Succeed(t, m.records.Put(t.Context(), was, earlier))
		m.source.set(func(o *old) { o.held = new(2) })
		if err := again(m, cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if m.source.held != nil {
			t.Errorf("%s: it ended before a late block can come", name)
		}
		m.isBack(name)
	}
}

// set changes a source.
func (o *old) set(do func(*old)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do(o)
}

// stopped is a source at which a process is suspended before it blocks writes, for as long as do takes; with lost
// it does not get the reply to that, as its context has ended.
type stopped struct {
	*old
	do   func()
	lost bool
}

// Call implements mongo.Caller.
func (s *stopped) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if do := s.do; do != nil && cmd.Body.Index(0).Key() == "setUserWriteBlockMode" {
		s.do = nil
		do()
		if s.lost {
			_, _ = s.old.Call(ctx, cmd)
			return nil, errCrashed
		}
	}
	return s.old.Call(ctx, cmd)
}

// cancelled records that the cutover is cancelled, and returns the record.
func (m *moved) cancelled() *record.Record {
	m.t.Helper()
	was := must.Get(m.records.Get(m.t.Context(), m.link))(m.t)
	now := was.Clone()
	now.State = record.Cancelled
	must.Succeed(m.t, m.records.Put(m.t.Context(), was, now))
	return now
}

// TestBlockAfterCancel: a process that was suspended before it blocked the source, and finds that its
// cutover was cancelled meanwhile, lifts its block; also if its lock, and with it its context, has ended, and if the
// server executes the block only after that.
func TestBlockAfterCancel(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, want := range map[string]error{"answered": record.ErrChanged, "lost": errCrashed, "late": errCrashed} {
		m := newMoved(t, target, name)
		source := &stopped{old: m.source, lost: name != "answered"}
		ctx, end := context.WithCancelCause(t.Context())
		source.do = func() {
			if name == "late" {
				m.source.set(func(o *old) { o.held = new(2) })
				m.cancelled()
			} else {
				must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
			}
			if source.lost {
				end(nil)
			}
		}
		cfg := m.config(m.target, source)
		if name == "late" {
			cfg.BlockWithin = 3 * time.Second // more than two looks
		}
		if _, err := cutover.Run(ctx, cfg, byBlock); !errors.Is(err, want) {
			t.Errorf("%s: it goes on: %v", name, err)
		}
		end(nil)
		if m.source.held != nil {
			t.Errorf("%s: it ended before a late block can come", name)
		}
		m.isBack(name)
		if !slices.Contains(m.source.commands, "setUserWriteBlockMode") {
			t.Errorf("%s: nothing was blocked", name)
		}
	}
}

// TestBlockOfAnother: a process that was suspended before it blocked the source leaves the block to a cutover that was
// begun since its own was cancelled, and says so; not to one that stops writes in another way.
func TestBlockOfAnother(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for _, tt := range []struct {
		freeze record.Method
		state  record.State
		stays  bool
	}{
		{record.Block, record.Running, true},
		{record.Block, record.Done, true},
		{record.Block, "paused", true}, // of a later release
		{record.Block, record.Cancelled, false},
		{record.Stopped, record.Running, false},
		{record.Stopped, record.Done, false},
	} {
		name := fmt.Sprintf("%s-%s", tt.freeze, tt.state)
		m := newMoved(t, target, name)
		source := &stopped{old: m.source, lost: true}
		source.do = func() {
			must.Succeed(t, m.records.Put(t.Context(), m.cancelled(), &record.Record{
				Link: m.link, ID: "another", State: tt.state, By: "an operator", Options: record.Options{Freeze: tt.freeze}, Steps: []record.Taken{},
			}))
		}
		_, err := cutover.Run(t.Context(), m.config(m.target, source), byBlock)
		if !errors.Is(err, errCrashed) || strings.Contains(fmt.Sprint(err), "that an operator began") != tt.stays {
			t.Errorf("%s: it goes on: %v", name, err)
		}
		if m.source.isBlocked() != tt.stays {
			t.Errorf("%s: the source is blocked: %v", name, m.source.isBlocked())
		}
	}
}

// nth recognises the change of that number of a record.
func nth(n int) func(mongo.Command) bool {
	return func(cmd mongo.Command) bool {
		first := cmd.Body.Index(0)
		text, _ := first.Value().StringValueOK()
		if first.Key() == "update" && text == "cutovers" {
			n--
		}
		return n == 0
	}
}

// TestNoBlockNoLift: a process that finds its cutover cancelled before it has blocked the source leaves a block that
// somebody else has set since.
func TestNoBlockNoLift(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	late := &meanwhile{Caller: m.target, before: nth(2), do: func() { // the one that begins the step
		m.cancelled()
		m.source.set(func(o *old) { o.blocked = true })
	}}
	if _, err := cutover.Run(t.Context(), m.config(late, m.source), byBlock); !errors.Is(err, record.ErrChanged) {
		t.Errorf("it goes on: %v", err)
	}
	if !m.source.isBlocked() {
		t.Error("the block of somebody else is lifted")
	}
}

// TestLiftWithin: a process whose cutover was cancelled waits for its own late block only, however long those of others
// may take; and the record says that it may come.
func TestLiftWithin(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	m.source.held = new(never)
	if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, errCrashed) {
		t.Fatal(err)
	}
	m.source.held = nil
	was := must.Get(m.records.Get(t.Context(), m.link))(t)
	long := was.Clone()
	long.BlockSeconds = 3600
	must.Succeed(t, m.records.Put(t.Context(), was, long))
	var before time.Time
	source := &stopped{old: m.source, lost: true, do: func() {
		was := m.cancelled()
		before = was.Late.Add(-time.Minute)
		earlier := was.Clone()
		earlier.Late = before
		must.Succeed(t, m.records.Put(t.Context(), was, earlier))
	}}
	if _, err := cutover.Resume(t.Context(), m.config(m.target, source)); !errors.Is(err, errCrashed) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("resumed: %v", err)
	}
	m.isBack("lifted")
	if r := must.Get(m.records.Get(t.Context(), m.link))(t); r.State != record.Cancelled || !r.Late.After(before) || r.BlockSeconds != 1 {
		t.Errorf("what may come late is not recorded: %+v, before %s", r, before)
	}
}

// TestStrayBlock: the block of a process that was suspended until its cutover was cancelled, and ended before it has
// lifted it, is lifted by another cancellation, whose process knows that from the record. An error does not say that the
// cutover was cancelled where that is not known.
func TestStrayBlock(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	target := &crash{Caller: m.target, at: never}
	source := &stopped{old: m.source, lost: true, do: func() {
		must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
		target.mu.Lock()
		defer target.mu.Unlock()
		target.at = 0
	}}
	if _, err := cutover.Run(t.Context(), m.config(target, source), byBlock); !errors.Is(err, errCrashed) || strings.Contains(err.Error(), "was cancelled") {
		t.Errorf("it goes on: %v", err)
	}
	if !m.source.isBlocked() {
		t.Fatal("there is no stray block")
	}
	if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, cutover.ErrMayStray) {
		t.Errorf("another one begins, to which the block is one that was there before: %v", err)
	}
	if _, err := cutover.Cancel(t.Context(), m.whole()); err != nil {
		t.Errorf("cancelled again: %v", err)
	}
	m.isBack("cancelled again")
	if _, err := cutover.Cancel(t.Context(), m.whole()); !errors.Is(err, cutover.ErrNone) {
		t.Errorf("and again: %v", err)
	}
	m.source.set(func(o *old) { o.blocked = true }) // by an operator
	if _, err := cutover.Cancel(t.Context(), m.whole()); !errors.Is(err, cutover.ErrNone) || !m.source.isBlocked() {
		t.Errorf("with a block of an operator: %v, blocked %t", err, m.source.isBlocked())
	}
}

// TestStrayBlockOrOther: a block that may be of somebody else is not lifted when a cancelled cutover is cancelled again.
func TestStrayBlockOrOther(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*moved, *record.Record){
		"long ago": func(_ *moved, r *record.Record) { r.Late = time.Now().Add(-2 * time.Hour) },
		"of another link": func(m *moved, _ *record.Record) {
			must.Succeed(m.t, m.records.Put(m.t.Context(), nil, &record.Record{Link: "other", ID: "2", State: record.Running, Options: *byBlock, Steps: []record.Taken{}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoved(t, open(t, "7.0"), "dr")
			r := &record.Record{Link: "dr", ID: "1", State: record.Cancelled, Options: *byBlock, Steps: []record.Taken{}, Late: time.Now(), BlockSeconds: 60}
			how(m, r)
			must.Succeed(t, m.records.Put(t.Context(), nil, r))
			m.source.set(func(o *old) { o.blocked = true })
			if _, err := cutover.Cancel(t.Context(), m.whole()); err == nil || errors.Is(err, cutover.ErrNone) || !strings.Contains(err.Error(), "setUserWriteBlockMode") {
				t.Errorf("got %v", err)
			}
			if !m.source.isBlocked() {
				t.Error("the block is lifted")
			}
			r = must.Get(cutover.Run(t.Context(), m.whole(), byBlock))(t)
			if r.State != record.Done || !r.Found {
				t.Errorf("another one begins, to which the block is one that was there before: %+v", r)
			}
		})
	}
}

// TestStrayBlockMayCome: a cutover does not begin as long as a block of the one before it may come.
func TestStrayBlockMayCome(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	r := &record.Record{Link: "dr", ID: "1", State: record.Cancelled, Options: *byBlock, Steps: []record.Taken{}, Late: time.Now(), BlockSeconds: 1800}
	must.Succeed(t, m.records.Put(t.Context(), nil, r))
	if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, cutover.ErrMayStray) {
		t.Errorf("got %v", err)
	}
	earlier := r.Clone()
	earlier.Late = r.Late.Add(-time.Hour)
	must.Succeed(t, m.records.Put(t.Context(), r, earlier))
	must.Get(cutover.Run(t.Context(), m.whole(), byBlock))(t)
	m.isDone("none can come any more")
}

// TestLiftPromoted: a process whose cutover was cancelled as the link was promoted leaves the old source blocked, also if the target's
// primary was just elected, and does not know yet that a majority has the end.
func TestLiftPromoted(t *testing.T) {
	t.Parallel()
	for _, elects := range []bool{false, true} {
		m := newMoved(t, open(t, "7.0"), "dr")
		target := &elected{Caller: m.target, coll: "links"}
		source := &stopped{old: m.source, lost: true, do: func() {
			link := must.Get(m.store.Acquire(t.Context(), 0))(t)
			before := must.Get(checkpoint.New(checkpoint.Config{Target: target, DB: "replicator", Link: m.link}))(t)
			must.Get(before.Over(t.Context()))(t)
			must.Succeed(t, link.End(t.Context(), checkpoint.Over{At: time.UnixMilli(1), By: "b", Source: ot(100), Promoted: &checkpoint.Promoted{Exact: true}}))
			m.cancelled()
			if elects {
				target.arm()
			}
		}}
		if _, err := cutover.Run(t.Context(), m.config(target, source), byBlock); err == nil || !strings.Contains(err.Error(), cutover.StaysBlocked) {
			t.Errorf("elects %t: got %v", elects, err)
		}
		if !m.source.isBlocked() {
			t.Errorf("elects %t: the old source takes writes", elects)
		}
	}
}

// cancels makes no cut: the cutover is cancelled meanwhile, and an error is reported that passes.
type cancels struct {
	*old
	do func()
}

// NextCut implements cutover.Cutter.
func (c *cancels) NextCut(ctx context.Context, by, why string, within time.Duration, said func(string)) (checkpoint.Cut, error) {
	if do := c.do; do != nil && why == "to drain the link" {
		c.do = nil
		do()
		return checkpoint.Cut{}, &mongo.LostError{Host: "a set", Err: errCrashed}
	}
	return c.old.NextCut(ctx, by, why, within, said)
}

// TestTriedAfterCancel: a process that tries again after an error that passes finds that its cutover was cancelled.
func TestTriedAfterCancel(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	cfg := m.whole()
	cfg.Drain.Cuts = &cancels{m.source, func() { must.Get(cutover.Cancel(t.Context(), m.whole()))(t) }}
	if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, record.ErrChanged) {
		t.Errorf("it goes on: %v", err)
	}
	m.isBack("cancelled")
	if r := must.Get(m.records.Get(t.Context(), m.link))(t); r.State != record.Cancelled {
		t.Errorf("the record: %+v", r)
	}
}

// TestBlockedByOthers: a source that another program goes on blocking is not said to take writes.
func TestBlockedByOthers(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	cfg := m.whole()
	cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) { return "", errBroken }
	if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	cfg.Drain.Source = blocksAgain{m.source}
	if r, err := cutover.Cancel(t.Context(), cfg); err == nil || r.State != record.Cancelling || !r.Blocks() {
		t.Errorf("cancelled: %v, %v", r, err)
	}
	must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
	m.isBack("cancelled again")
}

// blocksAgain is a source that is blocked whatever is done.
type blocksAgain struct{ *old }

// Call implements mongo.Caller.
func (b blocksAgain) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	defer b.set(func(o *old) { o.blocked = true })
	return b.old.Call(ctx, cmd)
}
