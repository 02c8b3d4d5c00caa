package txn

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// OldestOpen returns the first entry of the oldest open chain, as of the last entry
// added. It returns false if no chain is open. Checkpoints use Result.FetchFrom.
func (a *Assembler) OldestOpen() (oplog.OpTime, bool) {
	if a.oldest == nil {
		return oplog.OpTime{}, false
	}
	return a.oldest.start, true
}

// OpenInfo describes a transaction whose end has not been added yet.
type OpenInfo struct {
	// Start and Last are its first and its latest entry.
	Start, Last oplog.OpTime
	// LSID is the session, nil if there is none.
	LSID bson.Raw
	// TxnNumber is the session's transaction number, 0 without a session.
	TxnNumber int64
	// Prepared is set if only its commit or abort is missing.
	Prepared bool
	// Parts is the number of entries so far, Count the number of operations in them.
	Parts, Count int
	// Bytes is the size of the operations in the log, Spilled the size of the parts
	// in files, 0 if all are in memory.
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

// spilled returns the size of the parts in files, in bytes.
func (s *store) spilled() int64 {
	var n int64
	for _, x := range s.extents {
		n += x.end - x.at
	}
	return n
}
