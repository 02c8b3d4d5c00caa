package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/status"
)

// TestLastErrorIsRecorded: a cutover that documents stop which violate an index keeps the error, and says that it can only be cancelled if
// there is to be a way back: whoever removes them writes to the target, and the step arm then refuses that, however often it is resumed.
func TestLastErrorIsRecorded(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for link, reverse := range map[string]string{"back": "", "none": record.NoReverse} {
		m := newMoved(t, target, link)
		m.run(m.link, `{"insert": "a", "documents": [{"_id": 3, "email": "y"}]}`)
		failed := func(want error, step record.Step, text string, only bool) {
			t.Helper()
			r := must.Get(m.records.Get(t.Context(), m.link))(t)
			f := r.Failed
			if want == nil || f == nil || f.Step != step || f.By != "me" || f.At.IsZero() || !strings.Contains(f.Error, text) || f.OnlyCancel != only || cutover.OnlyCancel(r, want) != only {
				t.Fatalf("%s: %v, recorded %+v", link, want, f)
			}
			if c := must.Get(status.Cutovers(t.Context(), target, "replicator", m.link))(t)[m.link]; c.Failed != f.Error || c.OnlyCancel != only {
				t.Errorf("%s: shown %+v", link, c)
			}
		}
		_, err := cutover.Run(t.Context(), m.whole(), &record.Options{Freeze: record.Block, Reverse: reverse})
		failed(err, record.Convert, "index email_1 of "+link+".a cannot become unique", reverse == "")
		m.run(m.link, `{"delete": "a", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
		r, err := cutover.Resume(t.Context(), m.whole())
		if reverse == record.NoReverse {
			if err != nil || r.Failed != nil {
				t.Errorf("%s: resumed: %v, recorded %+v", link, err, r.Failed)
			}
			m.isDone(link)
			continue
		}
		for range 2 {
			failed(err, record.Arm, "something else has written to the target", true)
			_, err = cutover.Resume(t.Context(), m.whole())
		}
		for range 2 { // another error says nothing of the one that will be met again
			_, err = cutover.Resume(t.Context(), m.config(denied{target}, m.source))
			m.stillStuck(err, "not authorized", "something else has written to the target")
		}
		if r, err := cutover.Cancel(t.Context(), m.whole()); err != nil || r.Failed != nil {
			t.Errorf("%s: cancelled: %v, recorded %+v", link, err, r.Failed)
		}
		m.isBack(link)
	}
}

// stillStuck fails the test unless a cutover was stopped by an error that passes, after one that only a cancel helps against.
func (m *moved) stillStuck(err error, text, lasting string) {
	m.t.Helper()
	f := must.Get(m.records.Get(m.t.Context(), m.link))(m.t).Failed
	if err == nil || f == nil || !f.OnlyCancel || !strings.Contains(f.Error, text) || !strings.Contains(f.Lasting, lasting) {
		m.t.Fatalf("%s: %v, recorded %+v", m.link, err, f)
	}
	c := must.Get(status.Cutovers(m.t.Context(), m.target, "replicator", m.link))(m.t)[m.link]
	if said := c.String(); !c.OnlyCancel || !strings.Contains(said, text) || !strings.Contains(said, lasting) || strings.Contains(said, "can be resumed") {
		m.t.Errorf("%s: shown %s", m.link, said)
	}
}

// denied is a target that reads and writes its metadata only.
type denied struct{ mongo.Caller }

// Call implements mongo.Caller.
func (d denied) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB != "replicator" && cmd.DB != "admin" {
		return nil, servererr.New(servererr.Unauthorized, "not authorized on %s", cmd.DB)
	}
	return d.Caller.Call(ctx, cmd)
}

// TestSourceWrittenIsCancelled: a write to the source after the drain stays in its oplog: that its way back is armed again does not hide that, nor
// that the source cannot be read for once. That its block was lifted may pass: somebody blocks it again.
func TestSourceWrittenIsCancelled(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m, thawed := newMoved(t, target, "written"), newMoved(t, target, "thawed")
	cfg := m.whole()
	cfg.Armed = func(context.Context) { m.source.write("written.a") }
	_, err := cutover.Run(t.Context(), cfg, byBlock)
	m.stillStuck(err, "has a write to written.a after the drain", "has a write to written.a after the drain")
	unread := m.config(target, &unreadable{Caller: m.source})
	_, err = cutover.Resume(t.Context(), unread)
	m.stillStuck(err, "not authorized", "has a write to written.a after the drain")
	m.source.setBlocked(false)
	_, err = cutover.Resume(t.Context(), m.whole())
	m.stillStuck(err, cutover.ErrThawed.Error(), "has a write to written.a after the drain")
	must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
	m.isBack("written")

	m, cfg = thawed, thawed.whole()
	cfg.Armed = func(context.Context) { m.source.setBlocked(false) }
	_, err = cutover.Run(t.Context(), cfg, byBlock)
	if f := must.Get(m.records.Get(t.Context(), m.link))(t).Failed; err == nil || f == nil || !f.OnlyCancel {
		t.Errorf("thawed: %v, recorded %+v", err, f)
	}
	m.source.setBlocked(true)
	_, err = cutover.Resume(t.Context(), m.config(target, &unreadable{Caller: m.source}))
	if f := must.Get(m.records.Get(t.Context(), m.link))(t).Failed; err == nil || f == nil || f.OnlyCancel {
		t.Errorf("blocked again: %v, recorded %+v", err, f)
	}
	must.Get(cutover.Resume(t.Context(), m.whole()))(t)
	m.isDone("thawed")
}

// TestLastErrorUntilCommit: once nothing is in the way of the commit any more, the error of a cutover that could only be cancelled is gone.
func TestLastErrorUntilCommit(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	cfg := m.whole()
	cfg.Armed = func(context.Context) { m.source.write("dr.a") }
	_, err := cutover.Run(t.Context(), cfg, byBlock)
	m.stillStuck(err, "after the drain", "after the drain")
	m.source.write() // its failover has rolled that back
	cfg = m.whole()
	cfg.Told = func(s record.Taken) {
		if r := must.Get(m.records.Get(t.Context(), m.link))(t); s.Step == record.Commit && r.Failed != nil {
			t.Errorf("it commits, and recorded is %+v", r.Failed)
		}
	}
	must.Get(cutover.Resume(t.Context(), cfg))(t)
	m.isDone("dr")
}

// TestCancelTooLate: to cancel a cutover that has passed its commit point is refused, and the refusal is not recorded as its error,
// and one that was recorded is kept.
func TestCancelTooLate(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "late")
	cfg := m.config(&noExpire{m.target}, m.source)
	_, err := cutover.Run(t.Context(), cfg, byBlock)
	was := must.Get(m.records.Get(t.Context(), m.link))(t)
	if err == nil || !was.Has(record.Commit) || was.Failed == nil || was.Failed.Step != record.Expire {
		t.Fatalf("%v, recorded %+v", err, was)
	}
	if _, err := cutover.Cancel(t.Context(), m.whole()); !errors.Is(err, cutover.ErrCommitted) {
		t.Errorf("cancelled: %v", err)
	}
	if f := must.Get(m.records.Get(t.Context(), m.link))(t).Failed; f == nil || *f != *was.Failed {
		t.Errorf("recorded %+v", f)
	}
	must.Get(cutover.Resume(t.Context(), m.whole()))(t)
	m.isDone(m.link)
}

// TestCommittedUnrecorded: a cutover whose process was killed before it recorded that the link has ended is not said to be one that can be
// cancelled.
func TestCommittedUnrecorded(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "unrecorded")
	shown := func() status.Cutover {
		t.Helper()
		c := must.Get(status.Cutovers(t.Context(), m.target, "replicator", m.link))(t)[m.link]
		return c
	}
	cfg := m.config(&noExpire{m.target}, m.source)
	cfg.Told = func(s record.Taken) {
		if c := shown(); s.Step == record.Commit && s.Ended.IsZero() && c.Committed {
			t.Errorf("it has not ended yet: %+v", c)
		}
	}
	if _, err := cutover.Run(t.Context(), cfg, byBlock); err == nil {
		t.Fatal("documents expire")
	}
	was := must.Get(m.records.Get(t.Context(), m.link))(t)
	killed := was.Clone()
	killed.Forget(record.Expire)
	killed.Begin(record.Commit, "me", time.Now())
	must.Succeed(t, m.records.Put(t.Context(), was, killed))
	if c := shown(); !c.Committed || !c.Interrupted || !strings.HasSuffix(c.String(), " It can be resumed.") {
		t.Errorf("shown %+v: %s", c, c.String())
	}
	// Whether a link of another version has ended is not known. It does not hide the cutovers of the others.
	later := func(by int) {
		m.run("replicator", fmt.Sprintf(`{"update": "links", "updates": [{"q": {"_id": %q}, "u": {"$inc": {"version": %d}}}]}`, m.link, by))
	}
	later(90)
	if c := shown(); c.Committed || !c.Interrupted {
		t.Errorf("shown of another version: %+v", c)
	}
	later(-90)
	must.Get(cutover.Resume(t.Context(), m.whole()))(t)
	m.isDone(m.link)
}

// noExpire is a target that does not let anything expire documents.
type noExpire struct{ mongo.Caller }

// Call implements mongo.Caller.
func (n *noExpire) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("index", "expireAfterSeconds"); err == nil {
		return nil, servererr.New(servererr.Unauthorized, "not authorized")
	}
	return n.Caller.Call(ctx, cmd)
}

// unreadable is a source whose oplog cannot be read.
type unreadable struct{ mongo.Caller }

// Call implements mongo.Caller.
func (u *unreadable) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB == "local" {
		return nil, servererr.New(servererr.Unauthorized, "not authorized on local")
	}
	return u.Caller.Call(ctx, cmd)
}

// TestLastErrorHasNoCommand: an operator's command, which may have a password, is not in the error that the status shows.
func TestLastErrorHasNoCommand(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	cfg := m.whole()
	cfg.Shell = func(_ context.Context, command string, _ []string) error {
		return fmt.Errorf("%s: exit status 7", command)
	}
	const freeze, thaw = "curl -u ops:sesame https://deploy.example/stop", "curl -u ops:sesame https://deploy.example/stop/over"
	said := func(flag string, err error) {
		t.Helper()
		f := must.Get(m.records.Get(t.Context(), m.link))(t).Failed
		if err == nil || f == nil || strings.Contains(f.Error, "sesame") || strings.Contains(f.Error, "/over") || !strings.HasSuffix(f.Error, flag+": exit status 7") {
			t.Errorf("%v, recorded %+v", err, f)
		}
	}
	_, err := cutover.Run(t.Context(), cfg, &record.Options{Freeze: record.Command, FreezeCommand: freeze, ThawCommand: thaw})
	said("--freeze-command", err)
	_, err = cutover.Cancel(t.Context(), cfg)
	said("--thaw-command", err)
}

// TestNoWayBackIsCancelled: a cutover whose link has no way back finds the same however often it is resumed.
func TestNoWayBackIsCancelled(t *testing.T) {
	t.Parallel()
	r := &record.Record{State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Convert, "me", time.Now())
	none := &cutover.StepError{Step: record.Arm, Err: fmt.Errorf("%w: what the link mirrors is not recorded", cutover.ErrNoWayBack)}
	if !cutover.OnlyCancel(r, none) {
		t.Error("it can be resumed")
	}
	if later := fmt.Errorf("%w: %w", none, &checkpoint.VersionError{}); cutover.OnlyCancel(r, later) {
		t.Error("a newer release cannot resume it")
	}
}
