//go:build !race

package oplog

import "github.com/spaolacci/murmur3"

// murmur32 is the 32-bit murmur3 of b.
func murmur32(b []byte, seed uint32) uint32 { return murmur3.Sum32WithSeed(b, seed) }
