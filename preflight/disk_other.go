//go:build !(linux || darwin || freebsd)

package preflight

// freeBytes is not implemented for this system.
func freeBytes(string) (free int64, known bool) { return 0, false }
