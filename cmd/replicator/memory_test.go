package main

import (
	"errors"
	"runtime/debug"
	"testing"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/resync"
)

func TestMemoryForCopies(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	var m memoryLimit
	m.observe(resync.Began{NS: "shop.a"})
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("nobody asked for a limit, and it is %d", got)
	}
	m.begin(256 << 20)
	const link = (256 + 288) << 20 // as docs/configuration.md says
	for i, step := range []struct {
		event event.Event
		want  int64
	}{
		{nil, link},
		{resync.Began{NS: "shop.a"}, link + 128<<20},
		{resync.Began{NS: "shop.b"}, link + 256<<20},
		{resync.Began{NS: "shop.a"}, link + 256<<20}, // it continues
		{resync.Ended{NS: "shop.b", Err: errors.New("no")}, link + 128<<20},
		{resync.Ended{NS: "shop.a"}, link},
	} {
		m.observe(step.event)
		if got := debug.SetMemoryLimit(-1); got != step.want {
			t.Errorf("step %d: %d MiB, want %d MiB", i, got>>20, step.want>>20)
		}
	}
}
