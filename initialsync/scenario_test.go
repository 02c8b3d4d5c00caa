package initialsync

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TestScenarios runs the files in testdata: a world, and the acts in it with their times.
//
//	world                 begins one; a line for each collection of the source:
//	                      NAME docs=N [per-range=N] [indexes=a,b] [capped]
//	                      [gone-after=N] [gone-first], and view NAME,
//	                      refuse INDEX CODE, passing INDEX CODE, there NS KIND
//	copy [workers=N] [index-workers=N] [lanes=N] [indexes-first] [crash=N]
//	     [progress=TIME+TIME] runs a process, until it dies at its Nth change, and
//	                      shows what it did, or how far it was at those times
//	state                 shows the collections and documents
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "world":
					w = readWorld(t, d)
					return ""
				case "copy":
					return runCopy(t, w, d)
				case "state":
					return w.state()
				default:
					d.Fatalf(t, "unknown command")
					return ""
				}
			})
		})
	})
}

func readWorld(t *testing.T, d *datadriven.TestData) *world {
	w := newWorld(t)
	w.slow = true
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		switch words[0] {
		case "view":
			w.views = append(w.views, words[1])
		case "refuse", "passing":
			var code int32
			scan(t, words[2], &code)
			list := w.refused
			if words[0] == "passing" {
				list = w.passing
			}
			list[words[1]] = servererr.New(servererr.Code(code), "refused")
		case "there":
			ns, kind := words[1], words[2]
			coll := &targetCollection{kind: kind, docs: map[string]int{}}
			w.target[oplog.Namespace(ns)] = coll
		default:
			w.source = append(w.source, readCollection(t, words))
		}
	}
	return w
}

func readCollection(t *testing.T, words []string) sourceCollection {
	s := sourceCollection{name: words[0]}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "docs":
			scan(t, value, &s.docs)
		case "per-range":
			scan(t, value, &s.perRange)
		case "indexes":
			s.indexes = strings.Split(value, ",")
		case "capped":
			s.capped = true
		case "gone-after":
			scan(t, value, &s.goneAfter)
		case "gone-first":
			s.goneFirst = true
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return s
}

func scan[T any](t *testing.T, text string, to *T) {
	t.Helper()
	if _, err := fmt.Sscan(text, to); err != nil {
		t.Fatal(err)
	}
}

func runCopy(t *testing.T, w *world, d *datadriven.TestData) string {
	cfg := Config{Workers: 1, IndexWorkers: 1}
	lanes, crash, at := 4, 0, ""
	d.MaybeScanArgs(t, "workers", &cfg.Workers)
	d.MaybeScanArgs(t, "index-workers", &cfg.IndexWorkers)
	d.MaybeScanArgs(t, "lanes", &lanes)
	d.MaybeScanArgs(t, "crash", &crash)
	d.MaybeScanArgs(t, "progress", &at)
	cfg.IndexesFirst = d.HasArg("indexes-first")
	w.log, w.begun = nil, time.Now()
	c := w.start(cfg, lanes)
	w.crashAt = crash
	done := make(chan error, 1)
	go func() { done <- c.Run(t.Context()) }()
	var shown strings.Builder
	for text := range strings.SplitSeq(at, "+") {
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(w.begun.Add(d)))
		synctest.Wait()
		fmt.Fprintf(&shown, "after %s: %s", text, showProgress(c.Progress(), w.begun))
	}
	err := <-done
	var out strings.Builder
	out.WriteString(shown.String())
	if shown.Len() == 0 {
		// Acts at one time have no order.
		slices.Sort(w.log)
		for _, line := range w.log {
			out.WriteString(line + "\n")
		}
	}
	if err != nil && !errors.Is(err, errDead) {
		fmt.Fprintf(&out, "error: %v\n", err)
	}
	return out.String()
}

func showProgress(p Progress, begun time.Time) string {
	var b strings.Builder
	left := "unknown"
	if p.Left >= 0 {
		left = p.Left.String()
	}
	fmt.Fprintf(&b, "%s since %s: collections %d/%d docs %d/%d bytes %d/%d, %.3g docs/s %.4g bytes/s, left %s, indexes %d/%d\n",
		p.Step, p.Since.Sub(begun), p.Collections, p.TotalCollections, p.Docs, p.TotalDocs, p.Bytes, p.TotalBytes,
		p.DocsPerSecond, p.BytesPerSecond, left, p.Indexes, p.TotalIndexes)
	for _, c := range p.Current {
		fmt.Fprintf(&b, "  %s: docs %d/%d bytes %d/%d ranges %d/%d", c.NS, c.Docs, c.TotalDocs, c.Bytes, c.TotalBytes, c.DoneRanges, c.Ranges)
		if c.Indexes {
			b.WriteString(" indexes")
		}
		b.WriteString("\n")
	}
	for _, f := range p.Failed {
		fmt.Fprintf(&b, "  failed: %s %q: %s\n", f.NS, f.Name, f.Why)
	}
	return b.String()
}
