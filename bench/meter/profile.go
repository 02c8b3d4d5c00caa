package meter

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime/pprof"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/oplogrep/replicator/bench/result"
)

// topLines is the number of functions that a profile names.
const topLines = 30

// Profiler takes a CPU profile.
type Profiler struct {
	buf  bytes.Buffer
	file string
}

// StartProfile starts a profile, which is also written to file unless that is
// empty. A process can have one at a time.
func StartProfile(file string) (*Profiler, error) {
	p := &Profiler{file: file}
	if err := pprof.StartCPUProfile(&p.buf); err != nil {
		return nil, fmt.Errorf("start a CPU profile: %w", err)
	}
	return p, nil
}

// Stop ends it and returns a summary: shares of system calls, hashing, copying,
// garbage collection, allocation, scheduling and the program's own packages, and
// the top functions.
func (p *Profiler) Stop() (*result.Profile, error) {
	pprof.StopCPUProfile()
	if p.file != "" {
		if err := os.WriteFile(p.file, p.buf.Bytes(), 0o644); err != nil {
			return nil, fmt.Errorf("keep the CPU profile: %w", err)
		}
	}
	prof, err := profile.ParseData(p.buf.Bytes())
	if err != nil {
		return nil, fmt.Errorf("read the CPU profile: %w", err)
	}
	return sumUp(prof), nil
}

// sumUp summarizes a profile. Without samples it has no shares.
func sumUp(prof *profile.Profile) *result.Profile {
	out := &result.Profile{Shares: map[string]float64{}}
	flat, cum := map[string]float64{}, map[string]float64{}
	total := 0.0
	for _, s := range prof.Sample {
		stack := stackOf(s)
		if len(stack) == 0 || len(s.Value) == 0 {
			continue
		}
		v := float64(s.Value[len(s.Value)-1]) // CPU time follows the count
		total += v
		out.Shares[partOf(stack)] += v
		flat[stack[0]] += v
		slices.Sort(stack)
		for _, f := range slices.Compact(stack) {
			cum[f] += v
		}
	}
	for part := range out.Shares {
		out.Shares[part] /= total
	}
	top := slices.SortedFunc(maps.Keys(flat), func(a, b string) int {
		return cmp.Or(cmp.Compare(flat[b], flat[a]), strings.Compare(a, b))
	})
	for _, f := range top[:min(len(top), topLines)] {
		out.Top = append(out.Top, result.Line{Function: f, Flat: flat[f] / total, Cum: cum[f] / total})
	}
	return out
}

// stackOf returns the functions of a sample, inlined ones included, the innermost
// first.
func stackOf(s *profile.Sample) []string {
	var stack []string
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function != nil {
				stack = append(stack, line.Function.Name)
			}
		}
	}
	return stack
}

const (
	module = "github.com/oplogrep/replicator/"
	driver = "go.mongodb.org/mongo-driver/v2/"
)

// The parts that are no package of the program.
const (
	partSyscall  = "syscall"
	partHash     = "hash"
	partCopy     = "copy"
	partGC       = "gc"
	partAlloc    = "alloc"
	partSchedule = "schedule"
	partBSON     = "bson"
	partDriver   = "driver"
	partOther    = "other"
)

// Functions by which a stack, or its innermost function, is assigned to a part.
var (
	gcRoots = []string{
		"runtime.gcBgMarkWorker", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcAssistAlloc", "runtime.gcStart",
		"runtime.wbBufFlush", "runtime.gcDrain", "runtime.gcWriteBarrier", "runtime.deductSweepCredit",
	}
	allocRoots = []string{"runtime.mallocgc", "runtime.newobject", "runtime.(*mheap).", "runtime.(*mcache).", "runtime.(*mcentral)."}
	copies     = []string{"runtime.memmove", "runtime.memclr"}
	syscalls   = []string{
		"syscall.", "internal/runtime/syscall", "internal/poll.", "runtime.futex", "runtime.epoll", "runtime.netpoll",
		"runtime.usleep", "runtime.write1", "runtime.read", "runtime.madvise", "runtime.mmap", "runtime.tgkill",
		"runtime.entersyscall", "runtime.exitsyscall", "runtime.reentersyscall", "runtime.kevent", "runtime.pthread_",
		"runtime.osyield", "runtime.nanosleep", "runtime.sigprof", "runtime.asmcgocall", "runtime.libcCall",
	}
	schedulers = []string{
		"runtime.schedule", "runtime.findRunnable", "runtime.mcall", "runtime.park_m", "runtime.goready", "runtime.ready",
		"runtime.wakep", "runtime.startm", "runtime.stopm", "runtime.gopark", "runtime.goschedImpl", "runtime.execute",
		"runtime.chansend", "runtime.chanrecv", "runtime.selectgo", "runtime.lock2", "runtime.unlock2", "runtime.sysmon",
		"runtime.newproc", "runtime.mstart", "runtime.mPark", "runtime.semacquire", "runtime.semrelease", "runtime.send",
		"runtime.recv", "runtime.sync_", "runtime.timer", "runtime.(*timer", "sync.", "internal/sync.",
	}
	bsonPaths = []string{module + "internal/rawbson.", driver + "x/bsonx/", driver + "bson.", driver + "bson/"}
)

// partOf returns the part that a stack belongs to. Work of the runtime and the
// standard library belongs to the calling package of the program, unless it is a
// part of its own.
func partOf(stack []string) string {
	leaf := stack[0]
	switch {
	case slices.ContainsFunc(stack, func(f string) bool { return begins(f, gcRoots) }):
		return partGC
	case slices.ContainsFunc(stack, func(f string) bool { return begins(f, allocRoots) }):
		return partAlloc
	case begins(leaf, syscalls):
		return partSyscall
	case begins(leaf, copies):
		return partCopy
	}
	for _, f := range stack {
		switch {
		case strings.Contains(f, "murmur3"), strings.HasPrefix(f, module+"oplog.Hash"), strings.HasPrefix(f, "hash/"):
			return partHash
		case begins(f, schedulers):
			return partSchedule
		case begins(f, bsonPaths):
			return partBSON
		case strings.HasPrefix(f, module):
			return packageOf(f)
		case strings.HasPrefix(f, driver):
			return partDriver
		case begins(f, syscalls):
			return partSyscall
		}
	}
	return partOther
}

func begins(f string, with []string) bool {
	return slices.ContainsFunc(with, func(prefix string) bool { return strings.HasPrefix(f, prefix) })
}

// packageOf is the package of a function of the program, from its root.
func packageOf(function string) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(function, module), "[") // type arguments have paths, too
	slash := strings.LastIndexByte(path, '/') + 1
	name, _, _ := strings.Cut(path[slash:], ".")
	return path[:slash] + name
}
