package storage

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// version is one state of a document or of a catalog entry. Versions of one thing
// are a chain from the newest back, of which only the first may be uncommitted.
type version[T any] struct {
	// ts is the commit timestamp, seq the number of the commit in the order in
	// which commits were made; both are 0 in databases without versions. A prepared
	// unit may commit at a time that is past, so the two orders differ.
	ts, seq uint64
	// unit is the open unit that made the version, nil once it is committed.
	unit *Unit
	prev *version[T]
	// gone marks the end: the document is deleted, the collection dropped.
	gone bool
	val  T
}

// none is after every timestamp and every commit.
const none = math.MaxUint64

// view is a timestamp, or a unit's view.
type view struct {
	s *Store
	// ts and seq bound the visible commits of other units.
	ts, seq uint64
	u       *Unit
}

// seen returns the version that v shows, or nil if it shows nothing.
func seen[T any](head *version[T], v *view) *version[T] {
	for x := head; x != nil; x = x.prev {
		switch {
		case x.unit == nil && x.ts <= v.ts && x.seq <= v.seq, x.unit != nil && x.unit == v.u:
			if x.gone {
				return nil
			}
			return x
		}
	}
	return nil
}

// committed returns the newest committed version, which may be one that is gone.
func committed[T any](head *version[T]) *version[T] {
	if head != nil && head.unit != nil {
		return head.prev
	}
	return head
}

// conflict reports whether u must not change head.
func conflict[T any](head *version[T], u *Unit) bool {
	switch {
	case head == nil:
		return false
	case head.unit != nil:
		return head.unit != u
	default:
		return u.isLater(head.ts, head.seq)
	}
}

// put makes val the state of head as u sees it. It reports whether that took a new
// version, which has to be committed or undone.
func put[T any](head **version[T], u *Unit, val T, gone bool) (*version[T], bool) {
	if old := *head; old != nil && old.unit == u {
		old.val, old.gone = val, gone
		return old, false
	}
	v := &version[T]{unit: u, prev: *head, val: val, gone: gone}
	*head = v
	return v, true
}

// unlink takes v out of its chain.
func unlink[T any](head **version[T], v *version[T]) {
	for at := head; *at != nil; at = &(*at).prev {
		if *at == v {
			*at = v.prev
			return
		}
	}
}

func packed(ts bson.Timestamp) uint64 { return uint64(ts.T)<<32 | uint64(ts.I) }

func unpacked(ts uint64) bson.Timestamp {
	return bson.Timestamp{T: uint32(ts >> 32), I: uint32(ts)}
}
