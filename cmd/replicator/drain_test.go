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
	copyOf := func(phase checkpoint.CopyPhase, disk *spool.DiskStats) *monitor.Copy {
		return &monitor.Copy{Copy: checkpoint.Copy{Phase: phase}, Spool: disk}
	}
	for want, s := range map[string]monitor.Snapshot{
		"draining: nothing more is read":                      {},
		"draining: nothing more is read, what":                {Copy: copyOf(checkpoint.Copied, nil)},
		"stopping during the copy":                            {Copy: copyOf(checkpoint.Copying, nil)},
		"stopping during the copy: the":                       {Copy: copyOf(checkpoint.Replaying, &spool.DiskStats{})},
		"stopping while spooled entries are not applied yet:": {Copy: copyOf(checkpoint.Copied, &spool.DiskStats{})},
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
