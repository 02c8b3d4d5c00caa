package replay

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// writeRecord updates the record of an entry's session, as part of the entry's
// unit. Records are not in the log: each member derives them from it.
func writeRecord(u *storage.Unit, e *oplog.Entry) error {
	if !e.HasSession() {
		return nil
	}
	s := e.Session()
	r := opwrite.Record{TxnNumber: s.TxnNumber, LastWrite: e.OpTime, Wall: e.Wall}
	switch e.Command {
	case oplog.CommandCommitTransaction:
		r.State = opwrite.StateCommitted
	case oplog.CommandAbortTransaction:
		r.State = opwrite.StateAborted
	case oplog.CommandApplyOps:
		if s.MultiOpType == 1 {
			break
		}
		group, err := e.ApplyOps()
		if err != nil {
			return err
		}
		switch {
		case group.PartialTxn && !s.PrevOpTime.IsNull():
			return nil // set by the first part
		case group.PartialTxn:
			r.State, r.Start = opwrite.StateInProgress, e.OpTime
		case group.Prepare:
			r.State, r.Start = opwrite.StatePrepared, e.OpTime
			if !s.PrevOpTime.IsNull() {
				before, ok, err := opwrite.ReadRecord(u.View(), s.LSID)
				if err != nil {
					return err
				}
				if ok && !before.Start.IsNull() {
					r.Start = before.Start
				}
			}
		default:
			r.State = opwrite.StateCommitted
		}
	default:
	}
	return opwrite.WriteRecord(u, s.LSID, &r)
}

// keepImage stores the document that a retry of a findAndModify will need, if the
// entry says so (since 6.0).
func keepImage(u *storage.Unit, e *oplog.Entry, pre, post bson.Raw) error {
	from := e.Session()
	if from.LSID == nil {
		return nil
	}
	wanted, ok := rawbson.Lookup(e.Raw, "needsRetryImage")
	if !ok {
		return nil
	}
	kind, image := opwrite.PreImage, pre
	switch text, _ := wanted.Text(); text {
	case "preImage":
	case "postImage":
		kind, image = opwrite.PostImage, post
	default:
		return fmt.Errorf("needsRetryImage is %s", wanted.Raw())
	}
	if image == nil {
		return nil // in a copy that is newer than the log
	}
	s := opwrite.Session{LSID: from.LSID, TxnNumber: from.TxnNumber}
	return opwrite.WriteImage(u, &s, e.OpTime.TS, kind, image)
}
