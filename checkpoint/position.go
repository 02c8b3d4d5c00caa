package checkpoint

import (
	"cmp"
	"fmt"
	"math"

	"github.com/oplogrep/replicator/oplog"
)

// AllOps is the Op of a Position after the last operation of its entry.
const AllOps = math.MaxInt64

// Position is a place in the oplog that is finer than an entry: the operation Op,
// from 0, of the transaction or of the single entry at OpTime. As the position of a
// lane it means that all of the lane's operations up to and including it are in the
// target, and none after it.
type Position struct {
	OpTime oplog.OpTime
	Op     int64
}

// Compare orders positions.
func (p Position) Compare(q Position) int {
	if c := p.OpTime.Compare(q.OpTime); c != 0 {
		return c
	}
	return cmp.Compare(p.Op, q.Op)
}

// String returns the position as TIMESTAMP tTERM and, within an entry, #OP.
func (p Position) String() string {
	if p.Op == AllOps {
		return p.OpTime.String()
	}
	return fmt.Sprintf("%s#%d", p.OpTime, p.Op)
}

// Progress is the progress of a link.
type Progress struct {
	// Applied is the last entry up to which everything has been acknowledged by
	// the target, AppliedWall its primary's clock.
	Applied     oplog.OpTime
	AppliedWall int64 // milliseconds since the epoch
	// FetchFrom is the optime from which a restart at Applied reads the oplog.
	FetchFrom oplog.OpTime
	// Durable is the last entry up to which everything is majority-committed in the
	// target. Durable <= Applied.
	Durable     oplog.OpTime
	DurableWall int64 // milliseconds since the epoch
	// Ops is the number of operations applied since the start. Entries that change
	// nothing do not count.
	Ops int64
}
