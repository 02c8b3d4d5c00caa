package result

import (
	"io"
	"time"
)

// Report is what one invocation of the harness measured.
type Report struct {
	// Format is the version of this form: 1.
	Format  int       `json:"format"`
	Started time.Time `json:"started"`
	// Command is the command line that made it.
	Command []string `json:"command"`
	Seed    uint64   `json:"seed"`
	Machine Machine  `json:"machine"`
	Runs    []Run    `json:"runs"`
	Goals   []Goal   `json:"goals,omitempty"`
}

// Machine is what it ran on.
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
	// Kind is pipeline, apply, ceiling, mirror, catch-up, secondary or clone.
	Kind string `json:"kind"`
	// Name tells runs of a report apart: kind/preset/what was varied.
	Name   string `json:"name"`
	Preset string `json:"preset"`
	// Source and Target say what the ends were: memory, embedded, discard, null, or
	// a server's version; empty where there was none.
	Source string `json:"source,omitempty"`
	Target string `json:"target,omitempty"`
	// Settings are what was varied or set, by name: writers, batch, size,
	// namespaces, rate.
	Settings map[string]float64 `json:"settings,omitempty"`
	// Workload is the workload.Workload.
	Workload any `json:"workload,omitempty"`

	// Ops and Bytes are how many operations, and bytes of entries or documents,
	// went through in one round.
	Ops   int64 `json:"ops"`
	Bytes int64 `json:"bytes"`
	// Rounds are the seconds that each round took. What is derived is of the
	// median round.
	Rounds []float64 `json:"roundsSeconds"`
	// CPUSeconds is the process's user and system time per round, the embedded
	// ends' among it.
	CPUSeconds float64 `json:"cpuSeconds"`
	// AllocsPerOp and BytesPerOp are those of the whole process.
	AllocsPerOp float64 `json:"allocsPerOp"`
	BytesPerOp  float64 `json:"bytesPerOp"`
	// PeakRSS is the most memory that was resident while it ran, in bytes; 0 where
	// that cannot be told. BaseRSS is what was when it began.
	PeakRSS int64 `json:"peakRSSBytes"`
	BaseRSS int64 `json:"baseRSSBytes"`
	// Latencies by name, such as commit-to-applied, probe and acknowledged.
	Latencies map[string]Latency `json:"latencies,omitempty"`
	// Profile is where the time went, nil if nobody looked.
	Profile *Profile `json:"profile,omitempty"`
	// Notes are sentences that belong beside the numbers.
	Notes []string `json:"notes,omitempty"`
}

// Latency is a distribution, in seconds.
type Latency struct {
	Count                    int64 `json:"count"`
	P50, P90, P99, P999, Max float64
	Mean                     float64
}

// Profile is where the CPU time of a run went, as shares of all samples.
type Profile struct {
	// Shares by part: syscall, hash, copy, gc, alloc, schedule, parse, other …
	Shares map[string]float64 `json:"shares"`
	// Top are the functions with the largest own share.
	Top []Line `json:"top"`
}

// Line is a function of a profile, with its own share and that with what it calls.
type Line struct {
	Function  string  `json:"function"`
	Flat, Cum float64 // shares of all samples
}

// Goal is a promise held against a measurement.
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
	// Embedded tells that an end was the embedded set, which is no real server: the
	// goal is shown, and held to nothing.
	Embedded bool `json:"embedded,omitempty"`
	// Skipped says why there is no measurement, empty if there is one.
	Skipped string `json:"skipped,omitempty"`
}

// Median is the seconds of the median round.
func (r *Run) Median() float64 { panic("not written yet") }

// OpsPerSecond is the pace of the median round.
func (r *Run) OpsPerSecond() float64 { panic("not written yet") }

// MBPerSecond is that in 10⁶ bytes.
func (r *Run) MBPerSecond() float64 { panic("not written yet") }

// Met tells whether the goal is; a skipped one is not.
func (g *Goal) Met() bool { panic("not written yet") }

// Write writes a report as JSON to a file.
func (r *Report) Write(file string) error { panic("not written yet") }

// Read reads one.
func Read(file string) (*Report, error) { panic("not written yet") }

// Table prints runs for people, and below them the goals if there are any.
func (r *Report) Table(w io.Writer) error { panic("not written yet") }

// Benchstat prints a report in the format of Go's benchmarks: a line for each round.
func (r *Report) Benchstat(w io.Writer) error { panic("not written yet") }

// Limits say how much worse than a baseline is too much.
type Limits struct {
	// Allocs is how much allocations per operation may grow, as a share: what has
	// none may get none. Runs in which an embedded end or time takes part are not
	// held to it.
	Allocs float64
	// Ratio is how much a goal's measured ratio may fall, as a share.
	Ratio float64
}

// Change is one figure of two reports.
type Change struct {
	Name, Figure string
	Old, New     float64
	// Worse: it went the wrong way by more than the limit.
	Worse bool
}

// Compare returns what differs between two reports' runs and goals of the same
// names: pace, allocations, peak, latencies, ratios.
func Compare(old, now *Report, limits Limits) []Change { panic("not written yet") }

// WriteChanges prints them for people.
func WriteChanges(w io.Writer, changes []Change) error { panic("not written yet") }
