package txn

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// OldestOpen returns the first entry of the open chain that began first, as of
// the entry that was added last. It is false where no chain is open. Checkpoints
// are taken from Result.FetchFrom.
func (a *Assembler) OldestOpen() (oplog.OpTime, bool) {
	if a.oldest == nil {
		return oplog.OpTime{}, false
	}
	return a.oldest.start, true
}

// OpenInfo is what is known of a transaction whose end has not been added yet.
type OpenInfo struct {
	// Start and Last are its first and its latest entry.
	Start, Last oplog.OpTime
	// LSID is the session, nil where there is none.
	LSID bson.Raw
	// TxnNumber is the session's transaction, 0 where there is no session.
	TxnNumber int64
	// Prepared tells that only its commit or abort is missing.
	Prepared bool
	// Parts is how many entries there are so far, Count how many operations in
	// them.
	Parts, Count int
	// Bytes is what the operations take in the log, Spilled what the parts take
	// in files, 0 where all of them are in memory.
	Bytes, Spilled int64
}

// Open returns the open transactions, the oldest first.
func (a *Assembler) Open() []OpenInfo {
	var infos []OpenInfo
	for c := a.oldest; c != nil; c = c.newer {
		infos = append(infos, OpenInfo{
			Start: c.start, Last: c.last, LSID: bytes.Clone(c.lsid), TxnNumber: c.txnNumber,
			Prepared: c.prepared, Parts: c.parts, Count: c.count, Bytes: c.bytes, Spilled: c.store.spilled(),
		})
	}
	return infos
}

// spilled returns how many bytes the parts take in files.
func (s *store) spilled() int64 {
	var n int64
	for _, x := range s.extents {
		n += x.end - x.at
	}
	return n
}
