package oplog

import "time"

// Reply is what one reply of a source's cursor brought.
type Reply struct {
	// Entries are in the log's order, views into the reply's buffer.
	Entries []Entry
	// Bytes is the memory that holding the reply takes, in bytes: its buffer and
	// the entries.
	Bytes int64
	// Received is when it came.
	Received time.Time
}
