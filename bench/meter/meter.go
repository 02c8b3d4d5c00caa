package meter

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// Usage is what a span cost, the whole process counted.
type Usage struct {
	Elapsed       time.Duration
	CPU           time.Duration
	Allocs, Bytes uint64
	// BaseRSS and PeakRSS are in bytes, 0 if unknown.
	BaseRSS, PeakRSS int64
}

// Meter is a span being measured.
type Meter struct {
	mem     runtime.MemStats
	cpu     time.Duration
	base    int64
	peaks   bool // the peak of the resident memory is of this span
	started time.Time
}

// Start collects garbage, returns memory to the system, resets the peak of the
// resident memory where the system allows that, and starts measuring. Spans must
// not overlap.
func Start() (*Meter, error) {
	debug.FreeOSMemory() // it collects, too
	m := &Meter{}
	m.peaks = resetPeak()
	m.base = residentBytes()
	runtime.ReadMemStats(&m.mem)
	var err error
	if m.cpu, err = cpuTime(); err != nil {
		return nil, fmt.Errorf("read the CPU time of the process: %w", err)
	}
	m.started = time.Now()
	return m, nil
}

// Stop ends it.
func (m *Meter) Stop() (Usage, error) {
	u := Usage{Elapsed: time.Since(m.started), BaseRSS: m.base}
	cpu, err := cpuTime()
	if err != nil {
		return Usage{}, fmt.Errorf("read the CPU time of the process: %w", err)
	}
	u.CPU = cpu - m.cpu
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u.Allocs, u.Bytes = mem.Mallocs-m.mem.Mallocs, mem.TotalAlloc-m.mem.TotalAlloc
	if m.peaks {
		u.PeakRSS = max(peakBytes(), m.base)
	}
	return u, nil
}
