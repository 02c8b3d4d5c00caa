package plan

import (
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// Check returns the error with which Build would end for an operation on a document, whatever the target has. It does not parse deltas.
func Check(op *oplog.Op) error {
	if op.Kind != oplog.KindUpdate {
		return nil
	}
	form, err := update.Classify(op.O)
	if err == nil && form == update.FormDelta {
		_, err = update.DeltaOf(op.O)
	}
	if err != nil {
		return op.Fault("o", err)
	}
	return nil
}
