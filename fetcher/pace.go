package fetcher

import "time"

const (
	// A reply that takes longer than slowReply is slow; the next one should take
	// quickReply.
	slowReply  = 2 * time.Second
	quickReply = time.Second
	// largeReply is the minimum size of a slow reply, in bytes: a small one waited for
	// entries, not for the network.
	largeReply = 256 << 10
)

// batchSize is how many entries the next reply may have. The zero value is maxEntries.
// On a slow line it is smaller: if the connection breaks, a reply of 16 MiB that takes
// minutes is read again as a whole, and nothing of it is applied before all of it is
// there.
type batchSize struct{ entries int32 }

// size returns the batch size to ask for.
func (b *batchSize) size() int32 {
	if b.entries == 0 {
		return maxEntries
	}
	return b.entries
}

// took adapts the size to a reply of n entries that took d.
func (b *batchSize) took(d time.Duration, n, bytes int) {
	switch {
	case d > slowReply && bytes >= largeReply:
		b.entries = max(1, int32(float64(n)*float64(quickReply)/float64(d)))
	case b.entries > 0 && d < quickReply && n >= int(b.entries):
		if b.entries *= 2; b.entries >= maxEntries/2 {
			b.entries = 0
		}
	}
}
