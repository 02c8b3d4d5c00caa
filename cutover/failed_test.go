package cutover_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
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
		if r, err := cutover.Cancel(t.Context(), m.whole()); err != nil || r.Failed != nil {
			t.Errorf("%s: cancelled: %v, recorded %+v", link, err, r.Failed)
		}
		m.isBack(link)
	}
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
