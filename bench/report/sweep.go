package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/bench/result"
)

// sweep is a setting that throughput is drawn over.
type sweep struct {
	setting, file, title, label string
	bytes                       bool // MB/s in place of ops/s
}

var sweeps = []sweep{
	{"writers", "writers", "Throughput and writers", "writers", false},
	{"batch", "batch", "Throughput and the size of a batch", "operations of a batch, at most", false},
	{"flush", "flush", "Throughput and the size of a transaction", "operations of a writer's transaction, at most", false},
	{"size", "size", "Throughput and the size of documents", "median size of a document, bytes", false},
	{"size", "size-bytes", "Bytes and the size of documents", "median size of a document, bytes", true},
	{"namespaces", "namespaces", "Throughput and namespaces", "collections", false},
}

// point is one of a line, with the range that it was measured in.
type point struct{ x, y, low, high float64 }

// line has the results of one kind of run over a setting.
type line struct {
	name   string
	points []point
}

// taken is a run of a report.
type taken struct {
	run    *result.Run
	report string // its label, empty if there is one report only
}

// lines finds the runs that differ in the setting alone, and makes lines of them.
func (s *sweep) lines(runs []taken) []line {
	groups := map[string][]taken{}
	var keys []string
	for _, t := range runs {
		if _, ok := t.run.Settings[s.setting]; !ok || t.run.OpsPerSecond() == 0 {
			continue
		}
		key := s.rest(t)
		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], t)
	}
	var lines []line
	var members []taken
	for _, key := range keys {
		if points := s.points(groups[key]); len(points) > 1 {
			lines = append(lines, line{points: points})
			members = append(members, groups[key][0])
		}
	}
	for i, name := range s.names(members) {
		lines[i].name = name
	}
	return lines
}

// rest has all settings of a run other than the varied one, and for how many
// operations there are: the cost of one does not depend on that.
func (s *sweep) rest(t taken) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%q %q %q %q %q", t.report, t.run.Kind, t.run.Preset, t.run.Source.String(), t.run.Target.String())
	for _, name := range slices.Sorted(maps.Keys(t.run.Settings)) {
		if name != s.setting && name != "ops" {
			fmt.Fprintf(&out, " %q=%v", name, t.run.Settings[name])
		}
	}
	return out.String()
}

// points are the medians by value of the setting.
func (s *sweep) points(runs []taken) []point {
	byValue := map[float64][]*result.Run{}
	for _, t := range runs {
		x := t.run.Settings[s.setting]
		byValue[x] = append(byValue[x], t.run)
	}
	points := make([]point, 0, len(byValue))
	for _, x := range slices.Sorted(maps.Keys(byValue)) {
		list := byValue[x]
		slices.SortStableFunc(list, func(a, b *result.Run) int { return cmp.Compare(a.OpsPerSecond(), b.OpsPerSecond()) })
		p := rounds(list[len(list)/2], s.bytes)
		for _, run := range list {
			other := rounds(run, s.bytes)
			p.low, p.high = min(p.low, other.low), max(p.high, other.high)
		}
		p.x = x
		points = append(points, p)
	}
	return points
}

// rounds are the pace of a run's median round, which took some time, and of its slowest
// and fastest.
func rounds(r *result.Run, bytes bool) point {
	done := float64(r.Ops)
	if bytes {
		done = float64(r.Bytes) / 1e6
	}
	p := point{y: done / r.Median(), low: done / r.Median(), high: done / r.Median()}
	for _, seconds := range r.Rounds {
		if seconds > 0 {
			p.low, p.high = min(p.low, done/seconds), max(p.high, done/seconds)
		}
	}
	return p
}

// names distinguishes lines: by the kind of run, and if that is the same by the
// settings that differ.
func (s *sweep) names(members []taken) []string {
	names := make([]string, len(members))
	count := map[string]int{}
	for i, t := range members {
		names[i] = strings.TrimSpace(t.run.Kind + " " + t.run.Preset)
		if ends := t.run.Ends(); ends != "" {
			names[i] += " " + ends
		}
		if t.report != "" {
			names[i] += ", " + t.report
		}
		count[names[i]]++
	}
	for i, t := range members {
		if count[names[i]] == 1 {
			continue
		}
		for _, setting := range slices.Sorted(maps.Keys(t.run.Settings)) {
			if setting != s.setting && setting != "ops" && s.varies(setting, members) {
				names[i] += fmt.Sprintf(", %s %s", setting, result.Figure(t.run.Settings[setting]))
			}
		}
	}
	return names
}

func (s *sweep) varies(setting string, members []taken) bool {
	first, told := members[0].run.Settings[setting]
	return slices.ContainsFunc(members, func(t taken) bool {
		value, ok := t.run.Settings[setting]
		return value != first || ok != told
	})
}

// throughput makes the charts over settings, those of all reports in one.
func throughput(runs []taken) []chart {
	var charts []chart
	for i := range sweeps {
		s := &sweeps[i]
		lines := s.lines(runs)
		if len(lines) == 0 {
			continue
		}
		unit := "operations per second"
		if s.bytes {
			unit = "10⁶ bytes per second"
		}
		l := &lineChart{title: s.title, x: s.label, y: unit, lines: lines}
		charts = append(charts, chart{Name: s.file, Title: s.title, Alt: l.alt(), picture: l})
	}
	return charts
}
