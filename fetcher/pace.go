package fetcher

import "time"

const (
	// slowReply is after how long a reply counts as slow, and quickReply is how long
	// the next one is to take.
	slowReply  = 2 * time.Second
	quickReply = time.Second
	// largeReply is the least size of a slow reply, in bytes: a small one waited for
	// entries, and not for the line.
	largeReply = 256 << 10
)

// batchSize is how many entries the next reply may have. The zero value is as many as
// are allowed at all. Over a slow line less is asked for: a reply of 16 MiB that takes
// minutes is read again as a whole if the line breaks, and nothing of it can be
// applied before it is there.
type batchSize struct{ entries int32 }

// size returns the batch size to ask for.
func (b *batchSize) size() int32 {
	if b.entries == 0 {
		return maxEntries
	}
	return b.entries
}

// took learns from a reply of n entries.
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
