package oplog

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Session has the fields of an entry that link it to others of its session. Its zero value
// is that of an entry without them.
type Session struct {
	// LSID is the logical session, nil if there is none.
	LSID bson.Raw
	// TxnNumber is the number of the session's transaction or retryable write; see
	// HasTxnNumber.
	TxnNumber int64
	// StmtID is the statement number, or an array of them, of a retryable write. Its
	// type is zero if there is none.
	StmtID bson.RawValue
	// PrevOpTime is the previous entry of the same transaction, or the previous write
	// of the session. It is null for the first; see HasPrevOpTime.
	PrevOpTime OpTime
	// MultiOpType is 1 for an applyOps that contains several retryable writes, and is
	// not part of a transaction (since 7.0).
	MultiOpType int64
	// HasTxnNumber and HasPrevOpTime distinguish a zero from an absent field.
	HasTxnNumber, HasPrevOpTime bool
}

// fieldsOfSession are the fields that a Session is read from.
const fieldsOfSession = fieldLSID | fieldTxnNumber | fieldStmtID | fieldPrevOpTime | fieldMultiOpType

// Session reads the fields of the entry's session from Raw, where Parse has checked them.
// It walks over the entry if there are any.
func (e *Entry) Session() Session {
	var s Session
	if e.session == 0 {
		return s
	}
	for it := rawbson.NewIter(e.Raw); it.Next(); {
		s.field(&it.Elem)
	}
	return s
}

// HasTxnNumber reports whether the entry has the number of a transaction or retryable write.
func (e *Entry) HasTxnNumber() bool { return e.session&fieldTxnNumber != 0 }

// HasSession reports whether the entry has the session and the number of a transaction or
// retryable write.
func (e *Entry) HasSession() bool {
	const both = fieldLSID | fieldTxnNumber
	return e.session&both == both
}

// field reads a field, and returns its bit, 0 if it is none of the session's. It reports
// whether the value is of the right type.
func (s *Session) field(f *rawbson.Elem) (bit fields, ok bool) {
	switch f.Name() {
	case "lsid":
		s.LSID, ok = f.Document()
		return fieldLSID, ok
	case "txnNumber":
		s.TxnNumber, ok = f.Int64()
		s.HasTxnNumber = true
		return fieldTxnNumber, ok
	case "stmtId":
		s.StmtID = f.Raw()
		return fieldStmtID, f.Type == bson.TypeInt32 || f.Type == bson.TypeArray
	case "prevOpTime":
		s.PrevOpTime, ok = opTimeOf(f)
		s.HasPrevOpTime = true
		return fieldPrevOpTime, ok
	case "multiOpType":
		s.MultiOpType, ok = f.Int64()
		return fieldMultiOpType, ok
	default:
		return 0, false
	}
}

// InTransaction reports whether the entry is part of a transaction, or of another
// chain of entries that takes effect as a whole: its PrevOpTime links it to the
// chain's other parts. A retryable write also has a PrevOpTime, but it links other
// writes of its session; so does an applyOps of MultiOpType 1.
func (e *Entry) InTransaction() bool {
	switch e.Command {
	case CommandApplyOps, CommandCommitTransaction, CommandAbortTransaction:
		if e.session&fieldPrevOpTime == 0 {
			return false
		}
		return e.session&fieldMultiOpType == 0 || e.Session().MultiOpType != 1
	default:
		return false
	}
}
