package memory

import (
	"io/fs"
	"runtime/debug"
)

const (
	// Default is the memory of a process with one link and without a container, in bytes.
	Default = 320 << 20
	// mostOfContainer limits what a process takes of a container for each link without being
	// told: more does not make it faster.
	mostOfContainer = 1 << 30
	// outside is the memory of the process that Go's runtime does not count, in bytes: the
	// pages of the program, and some for documents of 16 MB that are allocated while it collects.
	outside = 28 << 20
)

// Source says which setting decided.
type Source string

// The sources.
const (
	FromFlag      Source = "--memory"
	FromContainer Source = "the container's limit"
	FromMachine   Source = "the machine's memory"
	FromRuntime   Source = "GOMEMLIMIT"
	FromDefault   Source = "the default"
)

// Total returns how much memory a process with so many links is to use, and the setting that decided that:
// the number given, or if that is 0 the container's, or a default, as far as the machine has it;
// but not more than a limit that was set for Go's runtime (GOMEMLIMIT), if that is not 0. The
// root of fsys is that of the file system.
func Total(given int64, links int, fsys fs.FS, runtimeLimit int64) (int64, Source) {
	total, from := given, FromFlag
	if given == 0 {
		total, from = int64(links)*Default, FromDefault
		if limit, ok := Container(fsys); ok {
			total, from = min(limit/10*9, int64(links)*mostOfContainer), FromContainer
		}
		// The limit of a container may be larger than the machine's memory.
		if machine, ok := Machine(fsys); ok && machine/10*9 < total {
			total, from = machine/10*9, FromMachine
		}
	}
	if runtimeLimit > 0 && runtimeLimit < total-outside {
		total, from = runtimeLimit+outside, FromRuntime
	}
	return total, from
}

// Apply sets the limit of Go's runtime for a process of so many bytes. It is soft: near it
// the collector only works more. It returns a function that restores the limit before.
func Apply(total int64) (undo func()) {
	limit := debug.SetMemoryLimit(total - outside)
	return func() { debug.SetMemoryLimit(limit) }
}
