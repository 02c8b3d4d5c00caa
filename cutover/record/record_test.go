package record_test

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover/record"
)

// TestBlocks: a cutover may block the source from when it begins to stop writes until they were let go again.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		found bool
		began []record.Step
		ended record.Step
		want  bool
	}{
		"not yet":        {began: []record.Step{record.Check}},
		"asked":          {began: []record.Step{record.Freeze}, want: true},
		"ended":          {began: []record.Step{record.Freeze, record.Commit, record.Expire}, want: true},
		"thawing":        {began: []record.Step{record.Freeze, record.Commit, record.Thaw}, want: true},
		"thawed":         {began: []record.Step{record.Freeze, record.Commit, record.Thaw}, ended: record.Thaw},
		"taken back":     {began: []record.Step{record.Freeze, record.Undo}, ended: record.Undo},
		"of an operator": {found: true, began: []record.Step{record.Freeze}},
	} {
		r := &record.Record{State: record.Running, Found: tt.found}
		for _, s := range tt.began {
			r.Begin(s, "me", time.Now())
		}
		if tt.ended != "" {
			r.End(tt.ended, "done", time.Now())
		}
		if r.Blocks() != tt.want {
			t.Errorf("%s: it blocks: %t", name, r.Blocks())
		}
	}
}

// TestThawed: the message of a cancellation depends on how writes had been stopped.
func TestThawed(t *testing.T) {
	t.Parallel()
	const before = "the source takes writes as before"
	for name, tt := range map[string]struct {
		options record.Options
		found   bool
		want    string
	}{
		"block":           {options: record.Options{Freeze: record.Block}, want: before},
		"another's block": {options: record.Options{Freeze: record.Block}, found: true, want: "writes to the source are blocked, as they were before"},
		"command":         {options: record.Options{Freeze: record.Command}, want: "the source is not blocked, but no --thaw-command was given: let the applications write again"},
		"both commands":   {options: record.Options{Freeze: record.Command, ThawCommand: "x"}, want: before},
		"word":            {options: record.Options{Freeze: record.Stopped}, want: before},
	} {
		r := &record.Record{State: record.Cancelled, Options: tt.options, Found: tt.found}
		r.Begin(record.Freeze, "me", time.Now())
		if got := r.Thawed(); got != tt.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
