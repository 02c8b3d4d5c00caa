//go:build linux || darwin || freebsd

package preflight

import "syscall"

// freeBytes returns how many bytes are available on the disk of a folder.
func freeBytes(dir string) (free int64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:gosec,unconvert,nolintlint // The types differ from system to system.
}
