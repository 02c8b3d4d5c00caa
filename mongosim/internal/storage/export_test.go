package storage

import "go.mongodb.org/mongo-driver/v2/bson"

// First returns the oldest entry.
func (v OplogView) First() (OplogEntry, bool) { return v.entry(0) }

// Oldest returns the lowest timestamp that can still be read.
func (r *Reader) Oldest() bson.Timestamp {
	r.s.pinMu.Lock()
	defer r.s.pinMu.Unlock()
	return unpacked(r.s.oldest)
}
