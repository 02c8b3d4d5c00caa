package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestDrainSays: the effect of a signal depends on the state of the link.
func TestDrainSays(t *testing.T) {
	t.Parallel()
	copyOf := func(phase checkpoint.CopyPhase) *monitor.Copy {
		return &monitor.Copy{Copy: checkpoint.Copy{Phase: phase}}
	}
	for want, s := range map[string]monitor.Snapshot{
		"draining: reading has stopped":                       {},
		"draining: reading has stopped, entries":              {Copy: copyOf(checkpoint.Copied)},
		"stopping during the copy":                            {Copy: copyOf(checkpoint.Copying)},
		"stopping during the copy: the":                       {Copy: copyOf(checkpoint.Replaying), Spool: &spool.DiskStats{}},
		"stopping while spooled entries are not applied yet:": {Copy: copyOf(checkpoint.Copied), Spool: &spool.DiskStats{}},
		"stopping while spooled entries are not applied":      {Spool: &spool.DiskStats{}},
	} {
		var out bytes.Buffer
		hard, stop := context.WithCancelCause(t.Context())
		stop(nil)
		c := &runCommand{}
		c.DrainTimeout = time.Hour
		c.drain(hard, stop, func() monitor.Snapshot { return s }, newLogger(&out, false, "info"))
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %s", &out, want)
		}
	}
}
