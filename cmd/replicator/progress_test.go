package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

var rewriteProgress = flag.Bool("rewrite-progress", false, "write the golden renderings of progress anew")

func copyTime(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 7) }

// copyAt is a link in the middle of its copy.
func copyAt(now time.Time) monitor.Snapshot {
	return monitor.Snapshot{
		Link: "l", State: monitor.InitialSync, SourceSet: "rs0", SourceHost: "db1.example.com:27017",
		Log: checkpoint.Progress{Applied: copyTime(1000), FetchFrom: copyTime(990)},
		Copy: &monitor.Copy{
			Copy: checkpoint.Copy{
				Number: 1, Phase: checkpoint.Copying, Host: "db1.example.com:27017", FetchFrom: copyTime(990), Begin: copyTime(1000),
				Started: now.Add(-83 * time.Minute),
			},
			Progress: &initialsync.Progress{
				Step: initialsync.StepCopy, Since: now.Add(-80 * time.Minute), Collections: 34, TotalCollections: 120,
				Docs: 12_345_678, TotalDocs: 98_765_432, Bytes: 53_687_091_200, TotalBytes: 429_496_729_600,
				DocsPerSecond: 25_321.7, BytesPerSecond: 98_123_456, Left: 64 * time.Minute,
				Current: []initialsync.CollectionProgress{
					{NS: "shop.orders", Docs: 9_000_000, TotalDocs: 40_000_000, Bytes: 40_000_000_000, TotalBytes: 200_000_000_000, Ranges: 373, DoneRanges: 70},
					{NS: "shop.customers", Docs: 10, TotalDocs: 4000, Bytes: 5_000_000, TotalBytes: 600_000_000, Ranges: 2},
					{NS: "shop.log", Docs: 10, TotalDocs: 10, Bytes: 500, TotalBytes: 500, Ranges: 1, DoneRanges: 1, Indexes: true},
				},
				Indexes: 40, TotalIndexes: 260,
			},
			Spool: &spool.DiskStats{Bytes: 1 << 30, Limit: 64 << 30, Free: 1 << 40, Entries: 4_000_000},
			Pace:  pace.Status{Factor: 1},
		},
	}
}

// scenes are states of a copy.
func scenes(now time.Time) []struct {
	name string
	s    monitor.Snapshot
	r    replay
} {
	type scene = struct {
		name string
		s    monitor.Snapshot
		r    replay
	}
	with := func(name string, change func(*monitor.Snapshot)) scene {
		s := copyAt(now)
		change(&s)
		return scene{name: name, s: s}
	}
	replaying := with("replaying", func(s *monitor.Snapshot) {
		s.Copy.Phase, s.Copy.Progress, s.Copy.Stop = checkpoint.Replaying, nil, copyTime(6000)
		s.Log.Applied = copyTime(3000)
	})
	replaying.r = replay{from: copyTime(1000), since: now.Add(-time.Minute)}
	return []scene{
		with("as usual", func(*monitor.Snapshot) {}),
		with("just begun", func(s *monitor.Snapshot) { s.Copy.Progress, s.Copy.Spool, s.SourceSet = nil, nil, "" }),
		with("listing", func(s *monitor.Snapshot) {
			s.Copy.Progress = &initialsync.Progress{Step: initialsync.StepList, Left: -1}
		}),
		with("creating", func(s *monitor.Snapshot) {
			s.Copy.Progress = &initialsync.Progress{
				Step: initialsync.StepCreate, Collections: 1000, TotalCollections: 10_000, TotalDocs: 5, TotalBytes: 50, Left: -1,
			}
		}),
		with("nothing known, nothing moves", func(s *monitor.Snapshot) {
			p := s.Copy.Progress
			p.TotalCollections, p.TotalDocs, p.TotalBytes, p.TotalIndexes, p.DocsPerSecond, p.BytesPerSecond, p.Left = 0, 0, 0, 0, 0, 0, -1
			p.Docs, p.Bytes = 1, 300
			p.Current = []initialsync.CollectionProgress{{NS: "a.b", Docs: 1, Bytes: 300}}
		}),
		with("more than was expected", func(s *monitor.Snapshot) {
			p := s.Copy.Progress
			p.Docs, p.Bytes, p.Left = 99_000_000, 500_000_000_000, 0
			p.Current = nil
		}),
		with("resumed, by another copy", func(s *monitor.Snapshot) {
			s.Copy.Number, s.Copy.Why, s.Copy.Started = 3, "the member db1.example.com:27017 rolled back", now.Add(-51*time.Hour)
			p := s.Copy.Progress
			p.DocsPerSecond, p.BytesPerSecond, p.Left = 0, 0, -1
		}),
		with("in trouble", func(s *monitor.Snapshot) {
			s.Copy.Spool.Bytes, s.Copy.Spool.Full, s.Copy.Spool.Why = 64<<30, true, "its limit is reached"
			s.Copy.Pace = pace.Status{BytesPerSecond: 100 << 20, OpsPerSecond: 5000, Factor: 0.0625, Side: clone.Target, Why: "22 % of its cache is dirty"}
			s.Copy.Progress.Failed = []initialsync.FailedIndex{{NS: "a.b", Name: "x_1", Why: "no"}, {NS: "shop.items", Name: "name_text", Why: "language override unsupported: \x1b[31mklingon\n"}}
			s.Window = monitor.Window{Oldest: bson.Timestamp{T: 5}, Position: bson.Timestamp{T: 9}, At: now.Add(-10 * time.Second), Left: 25 * time.Minute}
			s.LastError, s.LastErrorAt = "clone: insert into shop.orders: no answer from x:1: connection reset by peer", now.Add(-7*time.Second)
		}),
		with("names", func(s *monitor.Snapshot) {
			p := s.Copy.Progress
			p.Current = nil
			for i := range 8 {
				p.Current = append(p.Current, initialsync.CollectionProgress{
					NS: oplog.Namespace("db." + strings.Repeat("long_name_", 20) + strconv.Itoa(i)), Bytes: 1 << 20, TotalBytes: 1 << (21 + i), Ranges: 1,
				})
			}
			p.Current[1].NS = "shop.顧客の注文履歴の長い名前のコレクション一覧表その一"
			p.Current[2].NS = "evil.\x1b[2J\x1b]0;title\a\r\nxx\xff\u202e"
			p.Current[3].Indexes = true
		}),
		with("building indexes", func(s *monitor.Snapshot) {
			p := s.Copy.Progress
			p.Step, p.Collections, p.Left = initialsync.StepIndexes, 120, 0
			p.Docs, p.Bytes, p.DocsPerSecond, p.BytesPerSecond = p.TotalDocs, p.TotalBytes, 0, 0
			p.Current = p.Current[2:]
		}),
		replaying,
		with("nothing to replay", func(s *monitor.Snapshot) {
			s.Copy.Phase, s.Copy.Progress, s.Copy.Stop, s.Copy.Spool = checkpoint.Replaying, nil, copyTime(1000), nil
		}),
	}
}

// TestBlockGolden: how it looks. To look at it: -rewrite-progress, then read the
// files.
func TestBlockGolden(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, width := range []int{40, 80, 200} {
		var out strings.Builder
		for _, c := range scenes(now) {
			fmt.Fprintf(&out, "--- %s\n", c.name)
			for _, line := range block(&c.s, &c.r, now, width, 0) {
				if n := cells(line); n >= width || strings.ContainsAny(line, "\x1b\r\n") || strings.TrimRight(line, " ") != line {
					t.Errorf("%s, %d: %d cells: %q", c.name, width, n, line)
				}
				out.WriteString(line + "\n")
			}
		}
		goldenProgress(t, fmt.Sprintf("progress%d.txt", width), out.String())
	}
}

// TestBlockFits: whatever there is to show, it fits.
func TestBlockFits(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		all := scenes(now)
		c := all[rapid.IntRange(0, len(all)-1).Draw(r, "scene")]
		width, height := rapid.IntRange(-1, 250).Draw(r, "width"), rapid.IntRange(0, 12).Draw(r, "height")
		if p := c.s.Copy.Progress; p != nil {
			p.Docs, p.TotalDocs = rapid.Int64().Draw(r, "docs"), rapid.Int64().Draw(r, "total docs")
			p.Bytes, p.TotalBytes = rapid.Int64().Draw(r, "bytes"), rapid.Int64().Draw(r, "total bytes")
			p.BytesPerSecond = rapid.SampledFrom([]float64{0, 1, 1e9, math.Inf(1), math.NaN()}).Draw(r, "rate")
			for i := range p.Current {
				p.Current[i].NS = oplog.Namespace(rapid.String().Draw(r, "name"))
			}
		}
		lines := block(&c.s, &c.r, now, width, height)
		if height > 0 && len(lines) > max(1, height-1) {
			r.Fatalf("%d lines", len(lines))
		}
		for _, line := range lines {
			if cells(line) >= max(leastWidth, width) {
				r.Fatalf("%d cells: %q", cells(line), line)
			}
		}
	})
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		cut("abcdef", 6): "abcdef", cut("abcdefg", 6): "abc...", cut("abcdefg", 2): "..", cut("日本語日本語", 7): "日本...",
		cutMiddle("abcdefghij", 9): "abc...hij", cutMiddle("abc", 3): "abc", cutMiddle("abcdef", 4): "a...", cutMiddle("日本語日本語", 9): "日本...語",
		byteText(0): "0 B", byteText(1023): "1023 B", byteText(1 << 10): "1.0 KiB", byteText(1<<20 - 1): "1.0 MiB", byteText(math.MaxInt64): "8.0 EiB",
		bytesOf(5, 0): "5 B", bytesOf(1<<20, 1<<30): "1.0 MiB of 1.0 GiB", bytesOf(0, 1<<30): "0.0 of 1.0 GiB", bytesOf(3<<29, 1<<31): "1.5 of 2.0 GiB",
		grouped(0): "0", grouped(999): "999", grouped(-1_000): "-1,000", grouped(1_234_567): "1,234,567",
		span(59499 * time.Millisecond): "59s", span(time.Hour): "1h0m", span(75 * time.Hour): "3d3h", span(-1): "0s", span(150 * time.Second): "2m30s",
		percent(0.99999): "99.9 %", percent(1): "100.0 %", bar(0, 6): "[>   ]", bar(1, 6): "[====]", bar(0.5, 6): "[==> ]",
		strings.Join(flow(10, "abc", "", "def", "ghi", strings.Repeat("x", 20)), "|"): "abc   def|ghi|xxxxxxx...",
		strings.Join(wrap("one two three", 20), "|"):                                  "one two three", strings.Join(wrap("one two three", 9), "|"): "one two|  three",
		strings.Join(wrap("onetwothreefour five six seven", 8), "|"): "onetwoth|  reefou|  r f...",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// fakeLink is a link whose state can be changed.
type fakeLink struct {
	mu sync.Mutex
	s  monitor.Snapshot
}

func (f *fakeLink) snapshot() monitor.Snapshot { f.mu.Lock(); defer f.mu.Unlock(); return f.s }

func (f *fakeLink) set(s monitor.Snapshot) { f.mu.Lock(); defer f.mu.Unlock(); f.s = s }

// runProgress runs f concurrently with a progress of some mode, of a link whose first snapshot is first.
func runProgress(t *testing.T, mode string, first func(time.Time) monitor.Snapshot, f func(link *fakeLink, m *terminal, log *slog.Logger)) string {
	t.Helper()
	m := &terminal{width: 1000}
	synctest.Test(t, func(t *testing.T) {
		scr := newScreen(m)
		log := newLogger(scr, false, "info")
		var link fakeLink
		p := newProgress(mode, scr, log, func() int { return 80 })
		ctx, end := context.WithCancelCause(t.Context())
		link.set(first(time.Now()))
		var running sync.WaitGroup
		running.Go(func() { p.run(ctx, link.snapshot) })
		f(&link, m, log)
		end(nil)
		running.Wait()
		log.Info("after the end")
	})
	return m.String()
}

// copyNotBegun is the snapshot of a link of which nothing is copied yet.
func copyNotBegun(time.Time) monitor.Snapshot { return monitor.Snapshot{} }

func done(now time.Time) monitor.Snapshot {
	s := copyAt(now)
	s.Copy.Phase, s.Copy.Progress, s.Copy.Stop, s.Log.Applied = checkpoint.Copied, nil, copyTime(6000), copyTime(6001)
	return s
}

func TestProgressOnTerminal(t *testing.T) {
	out := runProgress(t, progressTerminal, copyNotBegun, func(link *fakeLink, m *terminal, log *slog.Logger) {
		time.Sleep(10 * time.Second)
		if m.String() != "" {
			t.Errorf("there is no copy, and this is shown:\n%s", m)
		}
		link.set(copyAt(time.Now()))
		time.Sleep(2500 * time.Millisecond)
		log.Info("something happened")
		seen := m.String()
		if i, j := strings.Index(seen, "something happened"), strings.Index(seen, "Initial sync of rs0"); i < 0 || j < i || strings.Count(seen, "Initial sync") != 1 {
			t.Errorf("%s", seen)
		}
		link.set(monitor.Snapshot{}) // between two attempts
		time.Sleep(2500 * time.Millisecond)
		if !strings.Contains(m.String(), "Initial sync of rs0") {
			t.Errorf("between two attempts:\n%s", m)
		}
		link.set(done(time.Now()))
		time.Sleep(30 * time.Second)
		seen = m.String()
		if strings.Contains(seen, "Initial sync") || !strings.Contains(seen, `msg="the copy is done, the target is consistent" consistentAt="6000:1 t7" took=1h23m`) ||
			strings.Count(seen, "\n") != 2 {
			t.Errorf("%s", seen)
		}
	})
	if strings.Count(out, "\n") != 3 {
		t.Errorf("%s", out)
	}
	// A run that ends in the middle leaves the block.
	out = runProgress(t, progressTerminal, copyNotBegun, func(link *fakeLink, _ *terminal, _ *slog.Logger) { link.set(copyAt(time.Now())) })
	if strings.Count(out, "Initial sync of rs0") != 1 || !strings.Contains(out, "shop.orders") || !strings.HasSuffix(out, "msg=\"after the end\"\n") {
		t.Errorf("%s", out)
	}
}

func TestProgressInLines(t *testing.T) {
	out := runProgress(t, progressLines, copyAt, func(link *fakeLink, _ *terminal, _ *slog.Logger) {
		time.Sleep(25 * time.Second)
		s := copyAt(time.Now())
		s.Copy.Pace = pace.Status{BytesPerSecond: 1 << 20, OpsPerSecond: 500, Factor: 0.5, Side: clone.Source, Why: "40 operations are queued"}
		s.Copy.Progress.Failed = make([]initialsync.FailedIndex, 2)
		s.Copy.Spool.Full, s.Copy.Spool.Why, s.Copy.Progress.Left = true, "the disk is full", -1
		link.set(s)
		time.Sleep(10 * time.Second)
		s = copyAt(time.Now())
		s.Copy.Phase, s.Copy.Progress, s.Copy.Stop, s.Copy.Spool = checkpoint.Replaying, nil, copyTime(6000), nil
		link.set(s)
		time.Sleep(10 * time.Second)
		s.Log.Applied = copyTime(2000)
		link.set(s)
		time.Sleep(10 * time.Second)
		link.set(done(time.Now()))
	})
	goldenProgress(t, "progress-lines.txt", out)
}

func goldenProgress(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewriteProgress {
		must.Succeed(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s:\n%s", path, diff)
	}
}

func TestProgressAsJSON(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		var link fakeLink
		link.set(copyAt(time.Now()))
		p := newProgress(progressJSON, &out, slog.New(slog.DiscardHandler), func() int { return 80 })
		ctx, end := context.WithCancelCause(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.run(ctx, link.snapshot) })
		time.Sleep(15 * time.Second)
		s := copyAt(time.Now())
		s.Copy.Phase, s.Copy.Progress, s.Copy.Stop = checkpoint.Replaying, nil, copyTime(6000)
		link.set(s)
		time.Sleep(10 * time.Second)
		s.Log.Applied = copyTime(2000)
		link.set(s)
		time.Sleep(10 * time.Second)
		odd := copyAt(time.Now())
		odd.Copy.Pace.Factor = math.NaN()
		link.set(odd)
		time.Sleep(10 * time.Second)
		link.set(done(time.Now()))
		end(nil)
		running.Wait()
	})
	var got []string
	for line := range strings.Lines(out.String()) {
		var l struct {
			Type, State, Error string
			Consistent         bool
			Applied            struct{ T int }
			ReplaySecondsLeft  *float64
			Copy               struct {
				Phase    string
				Progress *struct{ Docs int64 }
			}
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Type != "copyProgress" {
			t.Fatalf("%s: %v", line, err)
		}
		text := fmt.Sprint(l.Copy.Phase, " ", l.Applied.T, " ", l.Consistent, " ", l.Error)
		if l.Copy.Progress != nil {
			text += strconv.FormatInt(l.Copy.Progress.Docs, 10)
		}
		if l.ReplaySecondsLeft != nil {
			text += fmt.Sprint(*l.ReplaySecondsLeft)
		}
		got = append(got, text)
	}
	want := []string{
		"copying 1000 false 12345678", "copying 1000 false 12345678", "replaying 1000 false ", "replaying 2000 false 40",
		" 0 false json: unsupported value: NaN", "done 6001 true ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, &out)
	}
}

// While a collection is copied again, the target is not consistent, though the copy
// is done.
func TestProgressLeftOut(t *testing.T) {
	play := func(link *fakeLink, _ *terminal, _ *slog.Logger) {
		link.set(copyAt(time.Now()))
		time.Sleep(15 * time.Second)
		s := done(time.Now())
		s.LeftOut = []checkpoint.LeftOut{{NS: "shop.a", Since: copyTime(10)}}
		link.set(s)
	}
	if out := runProgress(t, progressLines, copyNotBegun, play); !strings.Contains(out, `"the copy is done, the target is consistent but for collections that are copied again"`) || !strings.Contains(out, "leftOut=[shop.a]") {
		t.Errorf("%s", out)
	}
	if out := runProgress(t, progressJSON, copyNotBegun, play); !strings.Contains(out, `"phase":"done"`) || strings.Contains(out, `"consistent":true`) {
		t.Errorf("%s", out)
	}
}

func TestProgressMode(t *testing.T) {
	file := must.Get(os.Create(t.TempDir() + "/out"))(t)
	defer file.Close() //nolint:errcheck // nothing was written
	for _, mode := range []string{progressTerminal, progressLines, progressJSON, progressNone} {
		if got := progressMode(mode, file, true); got != mode {
			t.Errorf("%s: %s", mode, got)
		}
	}
	if got := progressMode(progressAuto, file, false); got != progressLines {
		t.Errorf("into a file: %s", got)
	}
	if out := runProgress(t, progressNone, copyNotBegun, func(link *fakeLink, _ *terminal, _ *slog.Logger) { link.set(copyAt(time.Now())) }); strings.Count(out, "\n") != 1 {
		t.Errorf("%s", out)
	}
}
