package result

import (
	"math"
	"slices"
	"strings"
	"time"
)

// format is the version of the form that is written, and the only one that is read.
const format = 1

// Report is what one invocation of the harness measured.
type Report struct {
	// Format is the version of this form: 1.
	Format  int       `json:"format"`
	Started time.Time `json:"started"`
	// Command is the command line that produced it.
	Command []string `json:"command"`
	Seed    uint64   `json:"seed"`
	Machine Machine  `json:"machine"`
	Runs    []Run    `json:"runs"`
	Goals   []Goal   `json:"goals,omitempty"`
}

// Machine describes the machine of the run.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memoryBytes"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Version is the program's.
	Version string `json:"version"`
}

// Run is one measurement.
type Run struct {
	// Kind is pipeline, apply, ceiling, mirror, cutover, catch-up, secondary, clone or verify.
	Kind string `json:"kind"`
	// Name distinguishes the runs of a report: kind/preset/varied settings.
	Name   string `json:"name"`
	Preset string `json:"preset"`
	// Source and Target say what the ends were; zero where there was none.
	Source End `json:"source,omitzero"`
	Target End `json:"target,omitzero"`
	// Settings are the parameters that were varied or set, by name: writers,
	// batch, size, namespaces, rate.
	Settings map[string]float64 `json:"settings,omitempty"`
	// Workload is the workload.Workload.
	Workload any `json:"workload,omitempty"`

	// Ops and Bytes are how many operations, and bytes of entries or documents,
	// went through in one round.
	Ops   int64 `json:"ops"`
	Bytes int64 `json:"bytes"`
	// Rounds are the seconds that each round took. Derived figures are of
	// the median round.
	Rounds []float64 `json:"roundsSeconds"`
	// CPUSeconds is the process's user and system time per round, the embedded
	// ends' among it.
	CPUSeconds float64 `json:"cpuSeconds"`
	// AllocsPerOp and BytesPerOp are those of the whole process.
	AllocsPerOp float64 `json:"allocsPerOp"`
	BytesPerOp  float64 `json:"bytesPerOp"`
	// PeakRSS is the most memory that was resident while it ran, in bytes; 0 if
	// unknown. BaseRSS is the resident memory at its start.
	PeakRSS int64 `json:"peakRSSBytes"`
	BaseRSS int64 `json:"baseRSSBytes"`
	// Latencies by name, such as commit-to-applied, probe and acknowledged.
	Latencies map[string]Latency `json:"latencies,omitempty"`
	// Predicted is what a calibrated target predicts for a real one, nil where the run had
	// none.
	Predicted *Prediction `json:"predicted,omitempty"`
	// Notes are sentences that a reader of the numbers must know.
	Notes []string `json:"notes,omitempty"`
}

// Prediction is for the machine of the calibration, on which the costs of real servers were
// measured.
type Prediction struct {
	// OpsPerSecond is the rate of a link with a real target, OfSecondary its ratio to
	// that of a real secondary on the mixed backlog, whatever the workload.
	OpsPerSecond float64 `json:"opsPerSecond"`
	OfSecondary  float64 `json:"ofSecondary"`
	// Program and Target are the CPU time of an operation in the program and in the
	// target, in microseconds.
	Program float64 `json:"programMicroseconds"`
	Target  float64 `json:"targetMicroseconds"`
	// Slowness is how many times as long this machine takes for the same work.
	Slowness float64 `json:"slowness"`
}

// Latency is a distribution, in seconds.
type Latency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
}

// Goal is a goal compared with a measurement.
type Goal struct {
	Name string `json:"name"`
	// Want is the goal in words.
	Want string `json:"want"`
	// Measured is the figure, in Unit. It has to be at least Least, or at most Most,
	// whichever is not nil.
	Measured float64  `json:"measured"`
	Unit     string   `json:"unit"`
	Least    *float64 `json:"least,omitempty"`
	Most     *float64 `json:"most,omitempty"`
	// Embedded is true if an end was an embedded set, which is not a real server:
	// the goal is shown, but not enforced.
	Embedded bool `json:"embedded,omitempty"`
	// Skipped says why there is no measurement, empty if there is one.
	Skipped string `json:"skipped,omitempty"`
}

// Median is the seconds of the median round: of an even number of rounds the mean of
// the two in the middle, 0 without any.
func (r *Run) Median() float64 {
	n := len(r.Rounds)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.Rounds))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// OpsPerSecond is the pace of the median round, 0 without a round.
func (r *Run) OpsPerSecond() float64 { return per(float64(r.Ops), r.Median()) }

// MBPerSecond is that in 10⁶ bytes.
func (r *Run) MBPerSecond() float64 { return per(float64(r.Bytes)/1e6, r.Median()) }

// CPUPerMillion is the CPU seconds that a million operations took, 0 without any.
func (r *Run) CPUPerMillion() float64 { return per(r.CPUSeconds*1e6, float64(r.Ops)) }

// Ends says where it came from and went to, such as "memory → null", or "→ null".
func (r *Run) Ends() string {
	if r.Source == (End{}) && r.Target == (End{}) {
		return ""
	}
	return strings.TrimSpace(r.Source.String() + " → " + r.Target.String())
}

// Label is the run's name without its kind.
func (r *Run) Label() string { return strings.TrimPrefix(r.Name, r.Kind+"/") }

// per is a to one of b, 0 where there is no b.
func per(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// Met reports whether the goal is met. It is not if it was skipped, has no threshold, or if
// its figure is not a number. That an end was embedded makes no difference here.
func (g *Goal) Met() bool {
	if g.Skipped != "" || g.Least == nil && g.Most == nil || math.IsNaN(g.Measured) {
		return false
	}
	return (g.Least == nil || g.Measured >= *g.Least) && (g.Most == nil || g.Measured <= *g.Most)
}

// Verdict is what came of the goal, in words: met, not met, that an end was embedded,
// or why there is no measurement.
func (g *Goal) Verdict() string {
	switch {
	case g.Skipped != "":
		return "skipped: " + g.Skipped
	case g.Embedded:
		return "embedded, no limit"
	case g.Met():
		return "met"
	}
	return "not met"
}

// Figure is the measured value with its unit, empty if there is none.
func (g *Goal) Figure() string {
	if g.Skipped != "" {
		return ""
	}
	return strings.TrimSpace(Figure(g.Measured) + " " + g.Unit)
}
