package driver

import "testing"

// TestBuffers: a small message does not occupy the buffer of a large one.
func TestBuffers(t *testing.T) {
	large := make([]byte, 0, keepBuffer)
	for range 100 {
		large = large[:keepBuffer/2]
		release(&large)
		small := bufferFor(100)
		if cap(*small) > smallBuffer {
			t.Fatalf("a buffer of %d bytes for a small message", cap(*small))
		}
		release(small)
	}
}
