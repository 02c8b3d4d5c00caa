package oplog

import "time"

// Reply is one reply of a source's cursor.
type Reply struct {
	// Entries are in the log's order, as views into the reply's buffer.
	Entries []Entry
	// Bytes is the memory that the reply occupies, in bytes: its buffer and the
	// entries.
	Bytes int64
	// Received is when it arrived.
	Received time.Time
}
