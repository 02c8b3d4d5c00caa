package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/status"
)

// topNamespaces is how many namespaces are shown.
const topNamespaces = 5

// figures formats the state of a link, as its process knows it, for people. It omits unknown figures.
func figures(s *status.Snapshot) []string {
	var lines []string
	add := func(name string, parts ...string) {
		if parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" }); len(parts) > 0 {
			lines = append(lines, name+": "+strings.Join(parts, ", "))
		}
	}
	add("lag", secondsText("", s.LagSeconds), secondsText("oldest not applied ", s.AgeOfOldestUnappliedSeconds))
	add("latency", secondsText("p50 ", s.Latency.P50Seconds), secondsText("p95 ", s.Latency.P95Seconds), secondsText("p99 ", s.Latency.P99Seconds))
	r := &s.Rates
	add("rates", rateText(r.InsertsPerSecond, "inserts"), rateText(r.UpdatesPerSecond, "updates"), rateText(r.DeletesPerSecond, "deletes"),
		rateText(r.CommandsPerSecond, "commands"), bytesText(r.BytesPerSecond))
	if b := s.Bottleneck; b != nil {
		add("slowest", b.Why)
	}
	if c := s.Cut; c != nil {
		add("cut", age(c.AgeSeconds)+" old")
	}
	if v := s.Verified; v != nil {
		add("verified", verifiedText(v)...)
	}
	add("lacking", lackingNames(s)...)
	add("set", whatIsSet(s.Control)...)
	for _, n := range busiest(s.Namespaces) {
		deferred := ""
		if d := len(n.DeferredIndexes); d > 0 {
			deferred = fmt.Sprintf("%d indexes deferred until cutover", d)
		}
		phase := ""
		if n.Phase != nil {
			phase = *n.Phase
		}
		add("namespace "+n.Namespace, phase, rateText(n.OpsPerSecond, "operations"), bytesText(n.LogBytesPerSecond), deferred)
	}
	return lines
}

// lackingNames counts what the target lacks of the source's views, indexes and options of collections, and names the first ones.
func lackingNames(s *status.Snapshot) (parts []string) {
	const shown = 3
	add := func(n int, one, many string, name func(i int) string) {
		if n == 0 {
			return
		}
		var names []string
		for i := range min(n, shown) {
			names = append(names, name(i))
		}
		if n > shown {
			names = append(names, fmt.Sprintf("and %d more: see replicator links", n-shown))
		}
		kind := many
		if n == 1 {
			kind = one
		}
		parts = append(parts, fmt.Sprintf("%d %s (%s)", n, kind, strings.Join(names, "; ")))
	}
	add(len(s.LackingViews), "view", "views", func(i int) string { return s.LackingViews[i].Namespace })
	add(len(s.LackingIndexes), "index", "indexes", func(i int) string { return s.LackingIndexes[i].Name + " of " + s.LackingIndexes[i].Namespace })
	add(len(s.LackingOptions), "option", "options", func(i int) string { return s.LackingOptions[i].Name + " of " + s.LackingOptions[i].Namespace })
	return parts
}

// verifiedText says as of when everything was compared, and what differs.
func verifiedText(v *status.Verified) []string {
	out := []string{"not as a whole: " + cmp.Or(v.Why, "nothing was compared")}
	if v.At != nil && v.AgeSeconds != nil {
		out = []string{"as of " + v.At.Format(time.DateTime) + " UTC", age(*v.AgeSeconds) + " ago"}
	}
	out = append(out, fmt.Sprintf("%d of %d collections", v.Verified, v.Collections))
	if v.New > 0 {
		out = append(out, fmt.Sprintf("%d new ones", v.New))
	}
	if n := len(v.Unchecked) + v.MoreUnchecked; n > 0 {
		out = append(out, fmt.Sprintf("%d could not be compared", n))
	}
	out = append(out, fmt.Sprintf("%d differences", v.Differences))
	if v.Waiting != "" {
		out = append(out, "waiting: "+v.Waiting)
	}
	return out
}

// busiest are the namespaces with most operations per second, without those that had none.
func busiest(all []status.Namespace) []status.Namespace {
	list := slices.DeleteFunc(slices.Clone(all), func(n status.Namespace) bool { return n.OpsPerSecond == nil || *n.OpsPerSecond == 0 })
	slices.SortStableFunc(list, func(a, b status.Namespace) int { return cmp.Compare(*b.OpsPerSecond, *a.OpsPerSecond) })
	return list[:min(len(list), topNamespaces)]
}

// whatIsSet formats the settings of operators.
func whatIsSet(c *status.Control) []string {
	if c == nil {
		return nil
	}
	var out []string
	if p := c.Paused; p != nil {
		out = append(out, "paused since "+p.Since.UTC().Format("2006-01-02 15:04:05")+" UTC by "+cmp.Or(p.By, "an operator"))
	}
	limit := func(n *int64, what string) {
		if n != nil {
			out = append(out, fmt.Sprintf("%s at most %d per second", what, *n))
		}
	}
	limit(c.Throttle.ApplyOpsPerSecond, "applied operations")
	limit(c.Throttle.ApplyBytesPerSecond, "applied bytes")
	limit(c.Throttle.CopyOpsPerSecond, "copied documents")
	limit(c.Throttle.CopyBytesPerSecond, "copied bytes")
	if c.Throttle.Adaptive {
		out = append(out, fmt.Sprintf("adaptive, %.0f %% of that now", 100*c.Throttle.Factor))
	}
	if c.LogLevel != nil {
		out = append(out, "log level "+*c.LogLevel)
	}
	return out
}

func secondsText(what string, seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return what + age(*seconds)
}

// age describes a time, as short as it can be read.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", seconds*1000)
	case d < 2*time.Minute:
		return fmt.Sprintf("%.1f s", seconds)
	}
	return d.Round(time.Second).String()
}

func rateText(perSecond *float64, what string) string {
	if perSecond == nil {
		return ""
	}
	return fmt.Sprintf("%.0f %s/s", *perSecond, what)
}

func bytesText(perSecond *float64) string {
	if perSecond == nil {
		return ""
	}
	return byteText(*perSecond) + "/s"
}

// describeFigures writes the figures below a link.
func describeFigures(w *strings.Builder, indent string, s *status.Snapshot) {
	for _, line := range figures(s) {
		_, _ = fmt.Fprintf(w, "%s%s\n", indent, printable.Text(line))
	}
}
