package result

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Benchstat prints a report in the format of Go's benchmarks: a line for each round.
// Figures that a run has once are the same in all lines of it. Runs that nothing went
// through are left out, as the format cannot express them.
func (r *Report) Benchstat(w io.Writer) error {
	var out strings.Builder
	for _, h := range [][2]string{
		{"goos", r.Machine.OS}, {"goarch", r.Machine.Arch}, {"pkg", "github.com/oplogrep/replicator/bench"}, {"cpu", r.Machine.CPU},
	} {
		if h[1] != "" {
			fmt.Fprintf(&out, "%s: %s\n", h[0], oneLine(h[1]))
		}
	}
	out.WriteString("Unit ops/s better=higher\n")
	seen := map[string]int{}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Ops <= 0 {
			continue
		}
		name := benchmarkName(run)
		// Rounds of one name are rounds of one thing to benchstat.
		if seen[name]++; seen[name] > 1 {
			name += "/run=" + part(run.Label())
			if seen[name]++; seen[name] > 1 {
				name += "#" + strconv.Itoa(seen[name])
			}
		}
		if r.Machine.Cores > 1 {
			name += "-" + strconv.Itoa(r.Machine.Cores)
		}
		once := onceMeasured(run)
		for _, seconds := range run.Rounds {
			if seconds <= 0 {
				continue
			}
			fmt.Fprintf(&out, "%s %8d %s ns/op %s MB/s %s ops/s%s\n", name, run.Ops, plain(seconds*1e9/float64(run.Ops)),
				plain(float64(run.Bytes)/1e6/seconds), plain(float64(run.Ops)/seconds), once)
		}
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print the results for benchstat: %w", err)
	}
	return nil
}

// onceMeasured are the figures that do not belong to a round.
func onceMeasured(run *Run) string {
	var out strings.Builder
	fmt.Fprintf(&out, " %s B/op %s allocs/op", plain(run.BytesPerOp), plain(run.AllocsPerOp))
	if run.CPUSeconds > 0 {
		fmt.Fprintf(&out, " %s cpu-ns/op", plain(run.CPUSeconds*1e9/float64(run.Ops)))
	}
	if run.PeakRSS > 0 {
		fmt.Fprintf(&out, " %d peak-RSS-bytes", run.PeakRSS)
	}
	for _, name := range slices.Sorted(maps.Keys(run.Latencies)) {
		l := run.Latencies[name]
		fmt.Fprintf(&out, " %s %s-p50-ns %s %s-p99-ns", plain(l.P50*1e9), part(name), plain(l.P99*1e9), part(name))
	}
	return out.String()
}

// benchmarkName has all settings of a run, so that runs of one name have the same
// settings: the ends, the settings, and how many operations there were.
func benchmarkName(run *Run) string {
	var out strings.Builder
	out.WriteString("Benchmark")
	for word := range strings.FieldsFuncSeq(run.Kind, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		letters := []rune(word)
		letters[0] = unicode.ToUpper(letters[0])
		out.WriteString(string(letters))
	}
	out.WriteString("/" + part(run.Preset))
	for _, end := range []struct {
		name string
		is   End
	}{{"source", run.Source}, {"target", run.Target}} {
		if end.is != (End{}) {
			out.WriteString("/" + end.name + "=" + part(end.is.String()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(run.Settings)) {
		out.WriteString("/" + part(name) + "=" + plain(run.Settings[name]))
	}
	if _, told := run.Settings["ops"]; !told {
		fmt.Fprintf(&out, "/ops=%d", run.Ops)
	}
	return out.String()
}

// part is a text as a part of a benchmark's name, or of a unit.
func part(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '/' || unicode.IsSpace(c) || unicode.IsControl(c) {
			return '_'
		}
		return c
	}, s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// plain is a number for programs.
func plain(v float64) string {
	if v >= 1e6 || v <= -1e6 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return trimmed(v, 6)
}
