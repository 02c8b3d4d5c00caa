package batcher

import (
	"bytes"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Where users and roles are.
const (
	users = "admin.system.users"
	roles = "admin.system.roles"
)

// isAlone tells whether an operation changes more than documents.
func isAlone(op *oplog.Op) bool {
	switch {
	case op.Kind == oplog.KindCommand:
		return true
	case op.Kind.IsCRUD():
		return op.NS.IsSystemViews() || op.NS == users || op.NS == roles
	default:
		return false
	}
}

// signs are how the namespaces of isAlone stand at the end of a field in an entry.
var signs = [][]byte{[]byte(".system.views\x00"), []byte(users + "\x00"), []byte(roles + "\x00")}

// suspects finds groups of operations that have to be alone because of one of
// their namespaces. A transaction of commands says so; for the rest its operations
// would have to be read once more, from a file maybe. So only those are read whose
// entries have such a name anywhere in their bytes, which is a matter of
// nanoseconds: those of users and roles (some commands change them in a
// transaction), and chance hits.
type suspects struct {
	// open tells that a part of some open transaction had a sign.
	open bool
}

// held looks at an entry that may be a part of a transaction.
func (s *suspects) held(e *oplog.Entry) {
	if e.Command == oplog.CommandApplyOps {
		s.open = s.open || hasSign(e.Raw)
	}
}

// reset forgets the parts: no transaction is open any more.
func (s *suspects) reset() { s.open = false }

// isAlone tells whether a transaction has to be alone.
func (s *suspects) isAlone(e *oplog.Entry, t *txn.Transaction) (bool, error) {
	if t.HasCommand {
		return true, nil
	}
	if !s.open && !hasSign(e.Raw) {
		return false, nil
	}
	return holdsAlone(t)
}

// holdsAlone reads a transaction.
func holdsAlone(t *txn.Transaction) (bool, error) {
	for op, err := range t.Ops() {
		if err != nil {
			return false, err
		}
		if isAlone(&op) {
			return true, nil
		}
	}
	return false, nil
}

func hasSign(raw []byte) bool {
	for _, sign := range signs {
		if bytes.Contains(raw, sign) {
			return true
		}
	}
	return false
}
