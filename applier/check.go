package applier

import (
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/oplog"
)

// Check returns the error with which Run would end for an operation on a document that is mirrored, as far as the operation alone shows
// it. The target may still refuse what it accepts.
func Check(op *oplog.Op) error { return plan.Check(op) }
