//go:build !(linux || darwin || freebsd)

package preflight

// freeBytes cannot tell here.
func freeBytes(string) (free int64, known bool) { return 0, false }
