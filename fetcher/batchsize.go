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
	// firstEntry is how large entries are taken to be before any was read, if replies have
	// a limit, in bytes of memory.
	firstEntry = 16 << 10
)

// batchSize is how many entries the next reply may have. The zero value is maxEntries.
// On a slow line it is smaller: if the connection breaks, a reply of 16 MiB that takes
// minutes is read again as a whole, and nothing of it is applied before all of it is
// there. It is smaller, too, where there is little memory.
type batchSize struct {
	// entries is how many a slow line allows, 0 for any number.
	entries int32
	// limit is the memory that a reply should take, in bytes, 0 for any; entry is that of
	// an entry, as far as is known: of the last reply, or of an earlier one with larger
	// entries, which counts half with each further reply. So a large entry among small
	// ones costs a few short replies.
	limit, entry int64
}

// size returns the batch size to ask for.
func (b *batchSize) size() int32 {
	n := b.entries
	if n == 0 {
		n = maxEntries
	}
	if b.limit > 0 {
		n = int32(max(1, min(int64(n), b.limit/max(b.entry, 1))))
	}
	return n
}

// took adapts the size to a reply of n entries that took d.
func (b *batchSize) took(d time.Duration, n, bytes int) {
	if n > 0 {
		b.entry = max(int64(bytes/n)+entrySize, b.entry/2)
	}
	switch {
	case d > slowReply && bytes >= largeReply:
		b.entries = max(1, int32(float64(n)*float64(quickReply)/float64(d)))
	case b.entries > 0 && d < quickReply && n >= int(b.entries):
		if b.entries *= 2; b.entries >= maxEntries/2 {
			b.entries = 0
		}
	}
}
