//go:build race

package oplog

import "github.com/spaolacci/murmur3"

// murmur32 is the 32-bit murmur3 of b. The race detector also enables checks of
// pointer arithmetic (checkptr), which the library's one-shot function does not
// pass although it is sound. The streaming function costs an allocation.
func murmur32(b []byte, seed uint32) uint32 {
	h := murmur3.New32WithSeed(seed)
	h.Write(b) //nolint:errcheck // a hash.Hash never fails to write
	return h.Sum32()
}
