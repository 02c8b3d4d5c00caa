package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/cli"
)

// copyFlags are the settings of the copy that a link begins with.
type copyFlags struct {
	DropExisting bool     `help:"Drop what the target has where the copy writes. Otherwise a target that has data there is refused."`
	CloneWorkers int      `default:"8" help:"Collections, or ranges of large ones, that are copied concurrently. At most --writers."`
	RangeBytes   cli.Size `default:"512MiB" help:"Size of the ranges that a large collection is split into."`
	Indexes      string   `default:"after" enum:"after,before" help:"Build indexes after the documents are copied, or before."`
	IndexWorkers int      `default:"2" help:"Collections on which a copy builds indexes concurrently, and index builds that run concurrently with the writers."`

	SpoolDir   string   `placeholder:"DIR" help:"Directory for the spool: oplog entries that cannot be applied yet. Each link has a subdirectory. Default: replicator/spool in the user's cache directory."`
	SpoolBytes cli.Size `default:"64GiB" help:"Size limit of the spool. At the limit, reading the oplog pauses."`
	SpoolFree  cli.Size `default:"1GiB" help:"Space that the spool leaves free on its disk."`
	//nolint:lll // A tag cannot be broken.
	RelayLog cli.Size `default:"0" placeholder:"SIZE" help:"Keep entries that were read and are not yet durable on the target on disk too, in --spool-dir, in about this size: replicator promote needs it once the source is gone. 0: no relay log."`

	MaxBytesPerSecond cli.Size      `default:"0" placeholder:"SIZE" help:"Limit of the copy. 0: no limit. replicator throttle changes it while the link runs."`
	MaxOpsPerSecond   int64         `default:"0" placeholder:"N" help:"The same, in documents."`
	SourceWait        time.Duration `default:"24h" help:"How long a copy waits for a member that can continue it, before it starts again from nothing."`
}

// numbers and the other lists are what checkNumbers checks.
func (f *copyFlags) numbers() []numberRange {
	return []numberRange{
		{"clone-workers", int64(f.CloneWorkers), 1, 256},
		{"index-workers", int64(f.IndexWorkers), 1, 256},
		{"max-ops-per-second", f.MaxOpsPerSecond, 0, 1_000_000_000},
	}
}

func (f *copyFlags) sizes() []sizeRange {
	return []sizeRange{
		{"range-bytes", f.RangeBytes, 1 << 20, 1 << 45},
		{"spool-bytes", f.SpoolBytes, 256 << 20, 1 << 50},
		{"spool-free", f.SpoolFree, 16 << 20, 1 << 50},
		{"relay-log", f.RelayLog, 0, 1 << 50},
		{"max-bytes-per-second", f.MaxBytesPerSecond, 0, 1 << 45},
	}
}

// wantsCopy reports whether a new link begins with a copy.
func (f *runFlags) wantsCopy() bool { return f.StartAt.copy || !f.StartAt.said && !f.AllowExisting }

// startText is the effective --start-at.
func (f *runFlags) startText() string {
	switch {
	case f.StartAt.said:
		return f.StartAt.String()
	case f.wantsCopy():
		return startCopy
	}
	return "now"
}

// spoolDir returns the folder for the link's spool, empty if there is no place for
// one.
func (f *runFlags) spoolDir() string {
	dir := f.SpoolDir
	if dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(caches, "replicator", "spool")
	}
	// A link named ".." must not get the parent folder.
	if f.Link == "" || f.Link == "." || f.Link == ".." {
		return ""
	}
	return filepath.Join(dir, f.Link)
}

// leastSpeed is the lowest limit, in bytes per second: a lower one is likely to lack its
// unit.
const leastSpeed = 1 << 10

// leastRelay is the smallest size of a relay log.
const leastRelay = 16 << 20

// checkSpeed refuses the value of a flag with which what it limits would never end.
func checkSpeed(flag string, n int64) error {
	if why := tooSlow(n); why != "" {
		return fmt.Errorf("--%s: %s; 0 means no limit", flag, why)
	}
	return nil
}

// tooSlow says why a limit is not one, empty if it is.
func tooSlow(n int64) string {
	if n <= 0 || n >= leastSpeed {
		return ""
	}
	return fmt.Sprintf("%d bytes is less than %s: add a unit, as in %[1]dMiB", n, cli.Size(leastSpeed))
}

// checkCopy checks the settings of a link's initial copy.
func (f *runFlags) checkCopy() error {
	var faults []error
	if err := checkSpeed("max-bytes-per-second", int64(f.MaxBytesPerSecond)); err != nil {
		faults = append(faults, err)
	}
	switch {
	case f.StartAt.copy && f.AllowExisting:
		faults = append(faults, errors.New("--start-at=copy and --allow-existing: give --drop-existing to have the target's data dropped and copied again; "+
			"or --allow-existing with --start-at=T (now by default) to treat them as a copy that was made at T"))
	case f.DropExisting && f.AllowExisting:
		faults = append(faults, errors.New("--drop-existing and --allow-existing: the target's data are either dropped or kept"))
	case f.DropExisting && !f.wantsCopy():
		faults = append(faults, errors.New("--drop-existing is for a link that starts with a copy: --start-at=copy"))
	}
	if f.SpoolDir == "" && f.wantsCopy() {
		if _, err := os.UserCacheDir(); err != nil {
			faults = append(faults, fmt.Errorf("--spool-dir is missing, and the user has no cache directory: %w", err))
		}
	}
	if f.RelayLog > 0 && f.RelayLog < leastRelay {
		faults = append(faults, fmt.Errorf("--relay-log: %s is less than %s; 0 means that there is none", f.RelayLog, cli.Size(leastRelay)))
	}
	if f.RelayLog > 0 && f.spoolDir() == "" {
		faults = append(faults, errors.New("--relay-log needs a directory: give --spool-dir"))
	}
	if f.wantsCopy() && (f.Link == "." || f.Link == "..") {
		faults = append(faults, fmt.Errorf("--link: %q cannot be the name of a directory of the spool", f.Link))
	}
	return errors.Join(faults...)
}

// copying returns the pipeline's settings of a copy.
func (f *runFlags) copying() initialsync.Options {
	return initialsync.Options{
		Wanted: f.wantsCopy(), DropExisting: f.DropExisting,
		// Each of them writes through a lane of its own.
		Workers: min(f.CloneWorkers, f.Writers), IndexWorkers: min(f.IndexWorkers, f.Writers),
		IndexesFirst: f.Indexes == "before", RangeBytes: int64(f.RangeBytes),
		SpoolDir: f.spoolDir(), SpoolBytes: int64(f.SpoolBytes), SpoolFree: int64(f.SpoolFree),
		BytesPerSecond: int64(f.MaxBytesPerSecond), OpsPerSecond: f.MaxOpsPerSecond,
		SourceWait: f.SourceWait,
	}
}
