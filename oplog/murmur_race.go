//go:build race

package oplog

import "github.com/spaolacci/murmur3"

// murmur32 is the 32-bit murmur3 of b. Builds with the race detector also check
// pointer arithmetic, and the library's one-shot function does some that is
// sound but not provably so. The same hash in pieces costs an allocation.
func murmur32(b []byte, seed uint32) uint32 {
	h := murmur3.New32WithSeed(seed)
	h.Write(b) //nolint:errcheck // a hash.Hash never fails to write
	return h.Sum32()
}
