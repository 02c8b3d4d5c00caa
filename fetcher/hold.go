package fetcher

import (
	"sort"

	"github.com/oplogrep/replicator/oplog"
)

// held are replies that have been read and checked, in order, and not been handed
// on. The zero value holds nothing.
type held struct {
	replies []oplog.Reply
	// bytes is the memory that all of them take.
	bytes int64
}

func (h *held) push(r oplog.Reply) {
	h.replies = append(h.replies, r)
	h.bytes += r.Bytes
}

// pop returns the oldest reply, as far as it is committed. It is false if there is
// nothing to hand on. Where a reply is split, its buffer lives as long as its last
// part, and is counted with that one.
func (h *held) pop(committed oplog.OpTime) (oplog.Reply, bool) {
	if len(h.replies) == 0 {
		return oplog.Reply{}, false
	}
	r := &h.replies[0]
	n := len(r.Entries)
	if r.Entries[n-1].OpTime.After(committed) {
		n = sort.Search(n, func(i int) bool { return r.Entries[i].OpTime.After(committed) })
	}
	switch n {
	case 0:
		return oplog.Reply{}, false
	case len(r.Entries):
		out := *r
		h.replies[0] = oplog.Reply{}
		if h.replies = h.replies[1:]; len(h.replies) == 0 {
			h.replies = nil
		}
		h.bytes -= out.Bytes
		return out, true
	}
	out := oplog.Reply{Entries: r.Entries[:n:n], Bytes: int64(n) * entrySize, Received: r.Received}
	r.Entries = r.Entries[n:]
	r.Bytes -= out.Bytes
	h.bytes -= out.Bytes
	return out, true
}

// drop forgets everything.
func (h *held) drop() { *h = held{} }

// rawBytes is the size of entries as they were sent, in bytes.
func rawBytes(entries []oplog.Entry) int64 {
	var n int64
	for i := range entries {
		n += int64(len(entries[i].Raw))
	}
	return n
}
