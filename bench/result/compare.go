package result

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// How much worse than a baseline a figure may be, as a share.
const (
	// moreAllocs is how much allocations per operation may grow; a run without any must stay
	// so. A growth of less than a hundredth of an allocation per operation comes from the
	// runtime itself, and is never too much. It does not apply to runs with an embedded end, or
	// that depend on time.
	moreAllocs = 0.1
	// lessRatio is how much a goal's measured ratio may fall; or rise, where less is
	// better. It does not apply to goals in units of time or memory, which depend on the
	// machine, nor to embedded ones.
	lessRatio = 0.4
)

// Change is one figure of two reports.
type Change struct {
	// Name is that of the run or the goal; empty for a change that concerns all
	// of them.
	Name, Figure string
	// Old and New are the figures, in the unit that Figure names. Where Uncompared
	// they mean nothing.
	Old, New float64
	// Worse: it went the wrong way by more than the limit, or is not measured any
	// more.
	Worse bool
	// Note says why a figure was not compared, or has no limit.
	Note string
	// Uncompared is true if there are not two figures: Note says why.
	Uncompared bool
}

// Allocations per operation that count as none: fewer than these are the runtime's.
// Where a network is between, how many operations share a command is a matter of time.
const (
	fewAllocs       = 0.01
	fewOverANetwork = 0.05
)

// Compare returns the differences between two reports' runs and goals of the same
// names: pace, allocations, peak, latencies, ratios. Runs with different settings
// or ends are not compared, and figures that depend on the machine only on the same
// one; a Change says so. A run or a goal that the newer report has no more is
// worse.
func Compare(old, now *Report) []Change {
	c := comparison{}
	c.machines(&old.Machine, &now.Machine)
	pairs(old.Runs, now.Runs, func(r *Run) string { return r.Name }, c.runs)
	pairs(old.Goals, now.Goals, func(g *Goal) string { return g.Name }, c.goals)
	return c.changes
}

// comparison collects the differences.
type comparison struct {
	// elsewhere: the reports are of two machines.
	elsewhere bool
	changes   []Change
}

func (c *comparison) note(name, figure, note string, worse bool) {
	c.changes = append(c.changes, Change{Name: name, Figure: figure, Note: note, Worse: worse, Uncompared: true})
}

// figure adds one that differs.
func (c *comparison) figure(name, figure string, old, now float64, worse bool, note string) {
	if old != now {
		c.changes = append(c.changes, Change{Name: name, Figure: figure, Old: old, New: now, Worse: worse, Note: note})
	}
}

// pairs calls f with those of the same name: the first with the first, the second
// with the second. Those of the old report come first, and a missing one is nil.
func pairs[T any](old, now []T, name func(*T) string, f func(old, now *T)) {
	ofName := map[string][]*T{}
	for i := range now {
		n := name(&now[i])
		ofName[n] = append(ofName[n], &now[i])
	}
	paired := map[*T]bool{}
	for i := range old {
		var other *T
		n := name(&old[i])
		if list := ofName[n]; len(list) > 0 {
			other, ofName[n] = list[0], list[1:]
			paired[other] = true
		}
		f(&old[i], other)
	}
	for i := range now {
		if !paired[&now[i]] {
			f(nil, &now[i])
		}
	}
}

// machines finds out whether figures that depend on the machine can be compared.
func (c *comparison) machines(old, now *Machine) {
	var other, slight []string
	differ := func(list *[]string, what, a, b string) {
		if a != b {
			*list = append(*list, fmt.Sprintf("%s: %s, now %s", what, orNone(a), orNone(b)))
		}
	}
	differ(&other, "system", old.OS+"/"+old.Arch, now.OS+"/"+now.Arch)
	differ(&other, "CPU", old.CPU, now.CPU)
	differ(&other, "cores", Figure(float64(old.Cores)), Figure(float64(now.Cores)))
	// Machines made from one mould differ by what the kernel keeps for itself.
	if a, b := float64(old.Memory), float64(now.Memory); math.Abs(a-b) > max(a, b)/20 {
		differ(&other, "memory", Memory(old.Memory), Memory(now.Memory))
	}
	differ(&slight, "kernel", old.Kernel, now.Kernel)
	differ(&slight, "Go", old.Go, now.Go)
	if len(other) > 0 {
		c.elsewhere = true
		c.note("", "machine", "another machine: pace, CPU time, bytes, peak, latencies, and goals in units of time or memory are not compared ("+strings.Join(other, "; ")+")", false)
	}
	if len(slight) > 0 {
		c.note("", "machine", "figures may differ for this alone: "+strings.Join(slight, "; "), false)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (c *comparison) runs(old, now *Run) {
	switch {
	case now == nil:
		c.note(old.Name, "run", "the newer report does not have it", true)
		return
	case old == nil:
		c.note(now.Name, "run", "the older report does not have it", false)
		return
	}
	if why := differences(old, now); why != "" {
		reason := "not the same measurement"
		if (old.Source != now.Source || old.Target != now.Target) && Mixed(old, now) {
			reason = "embedded sets and real servers are no measure of each other"
		}
		c.note(old.Name, "run", reason+", not compared: "+why, false)
		return
	}
	c.allocs(old, now)
	if c.elsewhere {
		return
	}
	c.figure(old.Name, "ops/s", old.OpsPerSecond(), now.OpsPerSecond(), false, "")
	c.figure(old.Name, "CPU s/M ops", old.CPUPerMillion(), now.CPUPerMillion(), false, "")
	c.figure(old.Name, "B/op", old.BytesPerOp, now.BytesPerOp, false, "")
	if old.PeakRSS > 0 && now.PeakRSS > 0 {
		c.figure(old.Name, "peak RSS MiB", float64(old.PeakRSS)/(1<<20), float64(now.PeakRSS)/(1<<20), false, "")
	}
	c.latencies(old, now)
}

func (c *comparison) allocs(old, now *Run) {
	a, b := old.AllocsPerOp, now.AllocsPerOp
	few := fewAllocs
	if now.Target.Kind == EndNull {
		few = fewOverANetwork
	}
	worse, note := grown(a, b, few), ""
	if why := noLimit(now); why != "" {
		worse, note = false, why
	}
	c.figure(old.Name, "allocs/op", a, b, worse, note)
}

// grown reports whether allocations grew by more than a share, and by more than a few.
func grown(old, now, few float64) bool {
	return now-old >= few && now > old*(1+moreAllocs)
}

// noLimit returns why a run's allocations have no limit, empty if they have one.
func noLimit(r *Run) string {
	switch {
	case OnEmbedded(r):
		return "no limit: an end is embedded"
	case r.Kind == "mirror", r.Kind == "cutover":
		return "no limit: it is paced"
	case r.Kind == "secondary":
		return "no limit: it is a server's"
	}
	return ""
}

// latencies adds the median and the p99 of those that both have.
func (c *comparison) latencies(old, now *Run) {
	for _, name := range slices.Sorted(maps.Keys(old.Latencies)) {
		a := old.Latencies[name]
		b, ok := now.Latencies[name]
		if !ok {
			c.note(old.Name, name, "the newer report does not have this latency", true)
			continue
		}
		c.figure(old.Name, name+" p50 ms", 1e3*a.P50, 1e3*b.P50, false, "")
		c.figure(old.Name, name+" p99 ms", 1e3*a.P99, 1e3*b.P99, false, "")
	}
}

// differences returns how two runs of one name differ as measurements, empty if
// they do not.
func differences(old, now *Run) string {
	var list []string
	differ := func(what, a, b string) {
		if a != b {
			list = append(list, fmt.Sprintf("%s: %s, now %s", what, orNone(a), orNone(b)))
		}
	}
	differ("kind", old.Kind, now.Kind)
	differ("preset", old.Preset, now.Preset)
	differ("source", old.Source.String(), now.Source.String())
	differ("target", old.Target.String(), now.Target.String())
	differing(asMap(old.Settings), asMap(now.Settings), "", differ)
	differing(asMap(old.Workload), asMap(now.Workload), "workload's ", differ)
	return strings.Join(list, "; ")
}

// differing calls differ for each field that is not the same in both. A field of its zero
// value is the same as none: reports may be of programs that know different settings.
func differing(old, now map[string]any, prefix string, differ func(what, a, b string)) {
	names := maps.Clone(old)
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, b := old[name], now[name]
		if !reflect.DeepEqual(a, b) && (!isZero(a) || !isZero(b)) {
			differ(prefix+name, shown(a), shown(b))
		}
	}
}

func isZero(v any) bool {
	return slices.Contains([]string{"null", `""`, "0", "false"}, shownJSON(v))
}

// asMap is a value in the form in which it would be read, so that one that was just
// measured equals one from a file. A value that is not an object becomes one of a
// single field.
func asMap(v any) map[string]any {
	text, err := json.Marshal(v)
	if err != nil {
		return map[string]any{"": err.Error()}
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var fields map[string]any
	if err := dec.Decode(&fields); err != nil {
		return map[string]any{"": string(text)}
	}
	return fields
}

func shown(v any) string {
	if v == nil {
		return ""
	}
	if s, ok := v.(string); ok {
		return s
	}
	return shownJSON(v)
}

func shownJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
