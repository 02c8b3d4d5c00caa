package cutover_test

import (
	"context"
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
)

// TestResumedAfterCommit: a cutover that is resumed after its commit point does not say that the commit has taken until now.
func TestResumedAfterCommit(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "resumed")
	ctx, kill := context.WithCancelCause(t.Context())
	cfg := m.whole()
	cfg.Told = func(s record.Taken) {
		if s.Step == record.Commit && !s.Ended.IsZero() {
			kill(errBroken)
		}
	}
	was, err := cutover.Run(ctx, cfg, byBlock)
	if err == nil || !was.Has(record.Commit) || was.Has(record.Expire) {
		t.Fatalf("%+v, %v", was, err)
	}
	ended := was.Last()
	time.Sleep(20 * time.Millisecond)
	cfg = m.whole()
	var told []record.Step
	cfg.Told = func(s record.Taken) {
		if !s.Ended.IsZero() {
			told = append(told, s.Step)
		}
	}
	r, err := cutover.Resume(t.Context(), cfg)
	if err != nil || len(told) != 1 || told[0] != record.Expire {
		t.Errorf("told %v, %v", told, err)
	}
	for _, s := range r.Steps {
		if s.Step == record.Commit && !s.Ended.Equal(ended.Ended) {
			t.Errorf("%+v, want %+v", s, ended)
		}
	}
	m.isDone("resumed")
}
