package ends

import (
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// What a statement costs a real server (5.0.7, one member, flushes of a link), in
// nanoseconds of its CPU on the machine where it was measured: reading the message, the
// indexes, its own oplog and journal, and a share of the transaction are included. See
// docs/performance.md, Calibration.
const (
	costUpdate   = 12_350 // one $set of one document
	costPipeline = 15_700 // a pipeline, for one document
	costReplace  = 16_900
	costDelete   = 10_700
	costUpdateIn = 5_500 // the same update for several documents, by {_id: {$in: …}}, for each
	costDeleteIn = 9_150 // the same for deletes
	// costInsert was not measured alone: it is what remains of the MixedCost of a backlog
	// of two inserts, two updates and a delete.
	costInsert = 17_850
)

// The costs of a backlog of two inserts, two updates and a delete, in nanoseconds of CPU
// per operation on the machine where they were measured.
const (
	// MixedCost is that of a real target of this program, SourceCost that of its source.
	MixedCost  = 14_200
	SourceCost = 500
	// SecondaryCost is that of a real secondary and of its source.
	SecondaryCost = 13_600 + 800
	// CalibrationCores is how many cores that machine had. All of them were busy.
	CalibrationCores = 2
)

// costOwn is what a calibrated server costs for each statement without Work, in
// nanoseconds of that machine: it is a part of what the statement has to cost.
const costOwn = 1_100

// costOf is the cost of one statement of a command, and the number of its documents.
// Nil stands for a statement that is not looked into.
func costOf(command string, statement bson.Raw) (nanoseconds int64, documents int) {
	switch command {
	case "insert":
		return costInsert, 1
	case "delete":
		if n := listed(statement); n > 0 {
			return int64(n) * costDeleteIn, n
		}
		return costDelete, 1
	}
	u, _ := rawbson.Lookup(statement, "u")
	switch n := listed(statement); {
	case n > 0:
		return int64(n) * costUpdateIn, n
	case u.Type == bson.TypeArray:
		return costPipeline, 1
	case u.Type == bson.TypeEmbeddedDocument && isReplacement(u.Value):
		return costReplace, 1
	}
	return costUpdate, 1
}

// listed is the number of _ids of a statement for several documents, 0 for any other.
func listed(statement bson.Raw) (n int) {
	q, _ := rawbson.Lookup(statement, "q")
	filter, _ := q.Document()
	id, _ := rawbson.Lookup(filter, "_id")
	condition, ok := id.Document()
	if !ok {
		return 0
	}
	in, _ := rawbson.Lookup(condition, "$in")
	list, _ := in.Array()
	for it := rawbson.NewIter(list); it.Next(); {
		n++
	}
	return n
}

func isReplacement(u bson.Raw) bool {
	it := rawbson.NewIter(u)
	return !it.Next() || len(it.Key) == 0 || it.Key[0] != '$'
}

// stepsPerMicrosecond is how many steps Work made in a microsecond of CPU on the machine
// where the costs were measured.
const stepsPerMicrosecond = 533

// sunk keeps the compiler from removing the work.
var sunk atomic.Uint64

// Work uses the CPU for as long as the machine of the calibration would for this many
// nanoseconds: the same number of steps on every machine, of which a slower one takes
// longer.
func Work(nanoseconds int64) {
	x := uint64(nanoseconds) | 1
	for range nanoseconds * stepsPerMicrosecond / 1000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sunk.Store(x)
}
