package batcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

var errStopped = errors.New("stopped by the test")

// A scenario has a line per reply: its time, and its entries in the notation of
// log. It ends with "close", with "cancel", or at its last line; "drain" closes
// Config.Drain. Entries have the second at which they arrive, or another one given
// by "TIME at TIME". Each reply has 100 bytes. Arguments: the limits; out, the
// capacity of the output channel; busy, the time that the receiver takes per batch;
// after, the entry applied last.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var s string
			synctest.Test(t, func(t *testing.T) { s = play(t, d) })
			return s
		})
	})
}

// journal collects the output of a scenario.
type journal struct {
	mu    sync.Mutex // guards lines
	start time.Time
	lines []string
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%s %s", time.Since(j.start), fmt.Sprintf(format, args...)))
}

func play(t *testing.T, d *datadriven.TestData) string {
	j := &journal{start: time.Now()}
	cfg, waiting, pause := configured(t, d, j.start)
	cfg.Release = func(bytes int64) { j.note("release %d", bytes) }
	cfg.Observer = func(e event.Event) { j.note("event %q %s", e.Message(), e.LogValue()) }
	cfg.SpillDir = t.TempDir()
	drain := make(chan struct{})
	cfg.Drain = drain
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	in := make(chan oplog.Reply, 100)
	batches := make(chan batch.Batch, waiting)
	log := newLog()
	var wg sync.WaitGroup
	var end string
	wg.Go(func() {
		err := b.Run(ctx, in, batches)
		end = fmt.Sprintf("%s end %v", time.Since(j.start), err)
	})
	wg.Go(func() {
		for got := range batches {
			j.note("%s", log.describe(t, &got))
			if pause > 0 {
				<-time.After(pause)
			}
		}
	})
	closed := feed(t, d, j, log, in, drain, cancel)
	if !closed {
		close(in)
	}
	wg.Wait()
	j.lines = append(j.lines, end) // it may come before the receiver's last line
	if n := b.assembler.Bytes(); n != 0 {
		j.note("%d bytes are still held", n)
	}
	return strings.Join(j.lines, "\n") + "\n"
}

// feed does what the lines of a scenario say, each at its time. It reports whether it has
// closed in.
func feed(
	t *testing.T, d *datadriven.TestData, j *journal, log *log, in chan<- oplog.Reply, drain chan<- struct{}, cancel context.CancelCauseFunc,
) (closed bool) {
	t.Helper()
	for line := range strings.Lines(d.Input) {
		fields := strings.Fields(line)
		at, err := time.ParseDuration(fields[0])
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Until(j.start.Add(at)))
		synctest.Wait()
		fields = fields[1:]
		written := at
		if len(fields) > 1 && fields[0] == "at" {
			if written, err = time.ParseDuration(fields[1]); err != nil {
				t.Fatal(err)
			}
			fields = fields[2:]
		}
		switch {
		case len(fields) == 1 && fields[0] == "cancel":
			cancel(errStopped)
		case len(fields) == 1 && fields[0] == "close":
			close(in)
			closed = true
		case len(fields) == 1 && fields[0] == "drain":
			close(drain)
		default:
			r := oplog.Reply{Bytes: 100}
			for _, token := range fields {
				r.Entries = append(r.Entries, log.entry(t, uint32(j.start.Add(written).Unix()), token))
			}
			in <- r
		}
	}
	return closed
}

// configured reads the arguments of a scenario: the configuration, the capacity of
// the output channel, and the time that the receiver takes per batch.
func configured(t *testing.T, d *datadriven.TestData, start time.Time) (cfg Config, waiting int, pause time.Duration) {
	t.Helper()
	var out, busy, after string
	for _, arg := range d.CmdArgs {
		var err error
		switch v := arg.Vals[0]; arg.Key {
		case "max-ops":
			cfg.MaxOps, err = strconv.Atoi(v)
		case "max-bytes":
			cfg.MaxBytes, err = strconv.ParseInt(v, 10, 64)
		case "delay":
			cfg.Delay, err = time.ParseDuration(v)
		case "out":
			out = v
		case "busy":
			busy = v
		case "after":
			after = v
		default:
			t.Fatalf("unknown argument %s", arg.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if after != "" {
		n, err := strconv.Atoi(after)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ApplyAfter = oplog.NewOpTime(uint32(start.Unix()), uint32(n), 1)
	}
	waiting, _ = strconv.Atoi(out)
	pause, _ = time.ParseDuration(busy)
	return cfg, waiting, pause
}
