package fetcher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScenarios reads a member that answers as the lines say, and compares all that
// is sent, handed on, announced and returned. A member that is asked once more
// cancels.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out string
			synctest.Test(t, func(t *testing.T) { out = scenario(t, d) })
			return out
		})
	})
}

func scenario(t *testing.T, d *datadriven.TestData) string {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	src := &fake{t: t, start: time.Now(), rbid: 1, cancel: func() { cancel(errOver) }}
	for line := range strings.Lines(d.Input) {
		src.lines = append(src.lines, strings.TrimSpace(line))
	}
	var from oplog.OpTime
	var cfg ReaderConfig
	var first, leave bool
	stop := goOn
	stopAt, emits, replies, refuse := 0, 0, 0, 0
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, "")
		switch arg.Key {
		case "from":
			from = src.opTime(value)
		case "first":
			first = true
		case "restarts":
			arg.Scan(t, 0, &cfg.restarts)
		case "leave":
			leave = true
		case "stop-after":
			stop = stopAfter
			arg.Scan(t, 0, &stopAt)
		case "stop-before":
			stop = stopBefore
			arg.Scan(t, 0, &stopAt)
		case "refuse":
			arg.Scan(t, 0, &refuse)
		case "cancel":
			after, err := time.ParseDuration(value)
			if err != nil {
				t.Fatal(err)
			}
			defer time.AfterFunc(after, src.cancel).Stop()
		default:
			t.Fatalf("unknown argument %s", arg.Key)
		}
	}
	src.commit, src.applied = from, from
	cfg.onReply = func(m Metadata) decision {
		replies++
		src.note("reply up to %s, committed %s", m.LastFetched, m.Committed)
		if replies == stopAt {
			return stop
		}
		return goOn
	}
	cfg.onError = func(error) bool { return leave }
	cfg.Observer = func(e event.Event) { src.note("event: %s %s", e.Message(), e.LogValue()) }
	f, err := NewReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	res, err := f.Tail(ctx, host, src, from, first, func(_ context.Context, r oplog.Reply) error {
		var list []string
		for i := range r.Entries {
			list = append(list, r.Entries[i].OpTime.String())
		}
		src.note("emit %s", strings.Join(list, ", "))
		if emits++; emits == refuse {
			return errors.New("no room")
		}
		return nil
	})
	if len(src.lines) > 0 {
		t.Errorf("was not asked for %q", src.lines)
	}
	if err != nil {
		src.note("error: %v", err)
	}
	src.note("last %s, emitted %t", res.Last, res.Emitted)
	return fmt.Sprintln(strings.Join(src.log, "\n"))
}
