package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

const (
	// shownCollections is how many collections the block has at most.
	shownCollections = 5
	// recentError is for how long an error is shown.
	recentError = time.Minute
	// soonRollover is the time to the rollover of the source's oplog below which it
	// is shown.
	soonRollover = 6 * time.Hour
	// leastWidth is the least width for which lines are drawn, however narrow
	// the terminal is.
	leastWidth = 20
	// mostRows is how many lines one text takes at most.
	mostRows = 3
)

// block draws a running copy for a terminal of width cells and height lines;
// height is 0 if unknown. No line has the last cell, as some terminals begin a new
// line there.
func block(s *monitor.Snapshot, r *replay, now time.Time, width, height int) []string {
	width = max(leastWidth, width) - 1
	c := s.Copy
	lines := wrap(title(s, now), width)
	if c.Phase == checkpoint.Replaying {
		lines = append(lines, replayLines(s, r, now, width)...)
	} else {
		lines = append(lines, copyLines(c.Progress, width)...)
	}
	lines = append(lines, troubles(s, now, width)...)
	if c.Progress != nil && c.Phase != checkpoint.Replaying {
		lines = append(lines, collections(c.Progress, width)...)
	}
	// The block must not be higher than the terminal: lines scrolled out at the
	// top cannot be redrawn.
	if height > 0 && len(lines) > max(1, height-1) {
		lines = lines[:max(1, height-1)]
	}
	return lines
}

func title(s *monitor.Snapshot, now time.Time) string {
	c := s.Copy
	text := "Initial sync of " + printable.Text(s.SourceSet) + " from " + printable.Text(c.Host)
	if s.SourceSet == "" {
		text = "Initial sync from " + printable.Text(c.Host)
	}
	if c.Number > 1 {
		text += fmt.Sprintf(", copy %d", c.Number)
	}
	if !c.Started.IsZero() {
		text += ", begun " + span(now.Sub(c.Started)) + " ago"
	}
	return text
}

// copyLines are the lines about copying documents.
func copyLines(p *initialsync.Progress, width int) []string {
	if p == nil {
		return []string{"beginning"}
	}
	part, known := math.NaN(), false
	left := ""
	switch p.Step {
	case initialsync.StepCopy:
		part, known = partOf(p.Bytes, p.TotalBytes, p.Docs, p.TotalDocs)
		left = "time left not known"
		if p.Left >= 0 {
			left = aboutLeft(p.Left)
		}
	case initialsync.StepIndexes:
		part, known = partOf(int64(p.Indexes), int64(p.TotalIndexes), 0, 0)
	case initialsync.StepCreate:
		part, known = partOf(int64(p.Collections), int64(p.TotalCollections), 0, 0)
		known = known && p.Collections > 0
	case initialsync.StepClear, initialsync.StepList, initialsync.StepViews, initialsync.StepDone:
		// There is nothing to count.
	}
	lines := headline(string(p.Step), part, known, left, width)
	var parts []string
	if p.TotalCollections > 0 || p.Collections > 0 {
		parts = append(parts, countOf(int64(p.Collections), int64(p.TotalCollections))+" "+plural(int64(max(p.Collections, p.TotalCollections)), "collection"))
	}
	if p.Step != initialsync.StepClear && p.Step != initialsync.StepList {
		parts = append(parts, countOf(p.Docs, p.TotalDocs)+" "+plural(max(p.Docs, p.TotalDocs), "document"), bytesOf(p.Bytes, p.TotalBytes))
	}
	if p.Step == initialsync.StepCopy {
		rate := int64(math.Round(p.DocsPerSecond))
		parts = append(parts, byteText(p.BytesPerSecond)+"/s", grouped(rate)+" "+plural(rate, "document")+"/s")
	}
	if p.TotalIndexes > 0 {
		parts = append(parts, countOf(int64(p.Indexes), int64(p.TotalIndexes))+" "+plural(int64(p.TotalIndexes), "index"))
	}
	return append(lines, flow(width, parts...)...)
}

// headline is a step with a bar that fills the line, and the time left.
func headline(step string, part float64, known bool, left string, width int) []string {
	if !known {
		return flow(width, step, left)
	}
	const leastBar, mostBar, gap = 12, 50, 3
	after := percent(part)
	room := width - cells(step) - cells(after) - cells(left) - 3*gap
	if left == "" {
		room += gap
	}
	if room >= leastBar {
		return flow(width, step, bar(part, min(mostBar, room)), after, left)
	}
	return append(flow(width, step, left), flow(width, bar(part, min(mostBar, width-cells(after)-gap)), after)...)
}

// replayLines are the lines about applying the log.
func replayLines(s *monitor.Snapshot, r *replay, now time.Time, width int) []string {
	begin, applied, stop := s.Copy.Begin.TS.T, s.Log.Applied.TS.T, s.Copy.Stop.TS.T
	part, known := 1.0, stop >= begin && applied >= begin && stop > 0
	if known && stop > begin {
		part = min(1, float64(applied-begin)/float64(stop-begin))
	}
	left, text := "time left not known", "all documents are copied"
	if d, ok := r.left(s, now); ok {
		left = aboutLeft(d)
	}
	switch {
	case known && stop > applied:
		text += ", " + span(time.Duration(stop-applied)*time.Second) + " of the log to go"
	case known:
		left = ""
	}
	return append(headline("applying the log", part, known, left, width), wrap(text, width)...)
}

func aboutLeft(d time.Duration) string {
	if d < time.Second {
		return "almost done"
	}
	return "about " + span(d) + " left"
}

// partOf returns the share that is done, by bytes or else by documents; false
// if the total is unknown. It is an estimate: the source changes meanwhile.
func partOf(done, total, otherDone, otherTotal int64) (float64, bool) {
	switch {
	case total > 0:
		return min(1, max(0, float64(done)/float64(total))), true
	case otherTotal > 0:
		return min(1, max(0, float64(otherDone)/float64(otherTotal))), true
	}
	return 0, false
}

// troubles returns the problems of the copy and the state of the spool.
func troubles(s *monitor.Snapshot, now time.Time, width int) []string {
	c := s.Copy
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, wrap(printable.Text(fmt.Sprintf(format, args...)), width)...)
	}
	if d := c.Spool; d != nil {
		if d.Full {
			add("the spool is FULL: %s (%s)", d.Why, bytesOf(d.Bytes, d.Limit))
		} else {
			add("%s of spool in use", bytesOf(d.Bytes, d.Limit))
		}
	}
	if isSlowed(s) {
		add("slowed down to %.0f %%, for the %s: %s", 100*c.Pace.Factor, c.Pace.Side, c.Pace.Why)
	}
	switch bytes, ops := c.Pace.BytesPerSecond, c.Pace.OpsPerSecond; {
	case bytes > 0 && ops > 0:
		add("limited to %s/s and %s %s/s", byteText(float64(bytes)), grouped(ops), plural(ops, "document"))
	case bytes > 0:
		add("limited to %s/s", byteText(float64(bytes)))
	case ops > 0:
		add("limited to %s %s/s", grouped(ops), plural(ops, "document"))
	}
	if w := &s.Window; !w.At.IsZero() && w.Left >= 0 && w.Left < soonRollover {
		add("the source's oplog rolls over in about %s", span(w.Left-now.Sub(w.At)))
	}
	if c.Number > 1 && c.Why != "" {
		add("copy %d was void: %s", c.Number-1, c.Why)
	}
	if p := c.Progress; p != nil && len(p.Failed) > 0 {
		f := &p.Failed[len(p.Failed)-1]
		add("%d %s could not be built: %s of %s: %s", len(p.Failed), plural(int64(len(p.Failed)), "index"), f.Name, f.NS, f.Why)
	}
	if ago := now.Sub(s.LastErrorAt); s.LastError != "" && ago < recentError {
		add("error %s ago: %s", span(ago), cli.WithoutPasswords(s.LastError))
	}
	return lines
}

// collections returns the collections being copied, with as many columns as
// leave room for their names.
func collections(p *initialsync.Progress, width int) []string {
	const indent, gap = "  ", 2
	shown := p.Current[:min(shownCollections, len(p.Current))]
	rows := make([][]string, len(shown))
	widths := make([]int, 3)
	names := 0
	for i := range shown {
		rows[i] = columns(p.Step, &shown[i])
		for j, text := range rows[i] {
			widths[j] = max(widths[j], cells(text))
		}
		names = max(names, cells(printable.Text(string(shown[i].NS))))
	}
	leastName := min(names, max(12, width/3))
	room, use := width-len(indent), 0
	for _, w := range widths {
		if room-w-gap < leastName {
			break
		}
		room -= w + gap
		use++
	}
	room = min(room, names)
	var lines []string
	for i := range shown {
		var line strings.Builder
		line.WriteString(indent + pad(cutMiddle(printable.Text(string(shown[i].NS)), room), room))
		for j, text := range rows[i][:use] {
			if j == 0 {
				text = padLeft(text, widths[j])
			}
			line.WriteString(pad("", gap) + pad(text, widths[j]))
		}
		lines = append(lines, strings.TrimRight(cut(line.String(), width), " "))
	}
	if more := len(p.Current) - len(shown); more > 0 {
		lines = append(lines, cut(fmt.Sprintf("%sand %d more", indent, more), width))
	}
	return lines
}

// columns returns the columns of a collection.
func columns(step initialsync.Step, c *initialsync.CollectionProgress) []string {
	if c.Indexes {
		return []string{"indexes", "", ""}
	}
	part := "-"
	if n, ok := partOf(c.Bytes, c.TotalBytes, c.Docs, c.TotalDocs); ok {
		part = percent(n)
	}
	ranges := ""
	if c.Ranges > 1 && step == initialsync.StepCopy {
		ranges = fmt.Sprintf("%d of %d ranges", c.DoneRanges, c.Ranges)
	}
	return []string{part, bytesOf(c.Bytes, c.TotalBytes), ranges}
}
