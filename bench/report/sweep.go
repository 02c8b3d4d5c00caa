package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/bench/result"
)

// sweep is a setting that throughput is drawn over.
type sweep struct{ setting, title, unit string }

var sweeps = []sweep{
	{"writers", "Throughput and writers", "writers"},
	{"batch", "Throughput and the size of a batch", "operations"},
	{"flush", "Throughput and the size of a writer's transaction", "documents"},
	{"size", "Throughput and the median size of documents", "bytes"},
	{"namespaces", "Throughput and namespaces", "collections"},
}

// chart has a group of bars for each set of runs that differ in the setting alone, a bar
// for each of its values.
func (s *sweep) chart(runs []result.Run) chart {
	c := chart{Title: s.title, Axis: opsPerSecond}
	groups := map[string]map[float64][]*result.Run{}
	var keys []string
	for i := range runs {
		run := &runs[i]
		x, ok := run.Settings[s.setting]
		if !ok || run.OpsPerSecond() == 0 {
			continue
		}
		key := s.rest(run)
		if groups[key] == nil {
			keys = append(keys, key)
			groups[key] = map[float64][]*result.Run{}
		}
		groups[key][x] = append(groups[key][x], run)
	}
	for _, key := range keys {
		if len(groups[key]) < 2 {
			continue
		}
		group := key
		for _, x := range slices.Sorted(maps.Keys(groups[key])) {
			run := middle(groups[key][x])
			next := paceBar(result.Figure(x)+" "+s.unit, run)
			next.Figure += ", " + result.Figure(run.MBPerSecond()) + " MB/s"
			next.Group, group = group, ""
			c.Bars = append(c.Bars, next)
		}
	}
	return c
}

// rest names a run by all that distinguishes it but the varied setting and the number of
// operations: the cost of one does not depend on that.
func (s *sweep) rest(run *result.Run) string {
	words := []string{run.Kind, run.Preset, run.Ends()}
	for _, name := range slices.Sorted(maps.Keys(run.Settings)) {
		if name != s.setting && name != "ops" {
			words = append(words, fmt.Sprintf("%s=%s", name, result.Figure(run.Settings[name])))
		}
	}
	return strings.Join(words, " ")
}
