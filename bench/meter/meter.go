package meter

import (
	"time"

	"github.com/oplogrep/replicator/bench/result"
)

// Usage is what a stretch cost, the whole process counted.
type Usage struct {
	Elapsed       time.Duration
	CPU           time.Duration
	Allocs, Bytes uint64
	// BaseRSS and PeakRSS are in bytes, 0 where they cannot be told.
	BaseRSS, PeakRSS int64
}

// Meter is a stretch being measured.
type Meter struct{}

// Start collects garbage, gives memory back to the system, resets the mark of the
// resident memory where the system allows that, and begins. One at a time.
func Start() (*Meter, error) { panic("not written yet") }

// Stop ends it.
func (m *Meter) Stop() (Usage, error) { panic("not written yet") }

// Profiler takes a CPU profile.
type Profiler struct{}

// StartProfile begins one, that is kept in file too unless that is empty.
func StartProfile(file string) (*Profiler, error) { panic("not written yet") }

// Stop ends it and sums it up: shares of system calls, hashing, copying, garbage
// collection, allocation, scheduling and the program's own packages, and the top
// functions.
func (p *Profiler) Stop() (*result.Profile, error) { panic("not written yet") }

// Machine says what this is; version is the program's.
func Machine(version string) result.Machine { panic("not written yet") }

// Histogram collects latencies, by many goroutines. Its memory does not depend on
// how many there are; it is exact to 1 %.
type Histogram struct{}

// Record adds one.
func (h *Histogram) Record(d time.Duration) { panic("not written yet") }

// Latency sums it up.
func (h *Histogram) Latency() result.Latency { panic("not written yet") }
