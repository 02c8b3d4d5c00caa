package dispatch

import (
	"errors"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// serverStats is what a Server counts for serverStatus, and the parameters that
// were set. The zero value is ready but for started.
type serverStats struct {
	Started time.Time
	// Closed counts connections that have ended, awaiting those in an awaitable
	// hello.
	Closed, Awaiting atomic.Int64
	Ops              [opKinds]atomic.Int64

	// Mu guards the fields below.
	Mu         sync.Mutex
	Parameters map[string]bson.RawValue
	Commands   map[string]*tally
}

// tally counts the calls of one command.
type tally struct{ Total, Failed int64 }

// opKind is a kind of operation as opcounters tells them apart.
type opKind uint8

const (
	opInsert opKind = iota
	opQuery
	opUpdate
	opDelete
	opGetMore
	opCommand
	opKinds = iota
)

// OpNames are the names of opcounters, by kind of operation.
var OpNames = [opKinds]string{"insert", "query", "update", "delete", "getmore", "command"}

// count counts a command that was executed, or refused with err.
func (t *serverStats) count(r *Request, err error) {
	if r.Spec == nil {
		return
	}
	if !unauthorized(err) {
		t.countOps(r)
	}
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if t.Commands == nil {
		t.Commands = map[string]*tally{}
	}
	c := t.Commands[r.Spec.Name]
	if c == nil {
		c = &tally{}
		t.Commands[r.Spec.Name] = c
	}
	c.Total++
	if err != nil {
		c.Failed++
	}
}

func unauthorized(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && e.Code == servererr.Unauthorized
}

// countOps counts the operations of a command.
func (t *serverStats) countOps(r *Request) {
	switch r.Spec.Name {
	case "insert":
		t.Ops[opInsert].Add(int64(len(r.Docs["documents"])))
	case "find":
		t.Ops[opQuery].Add(1)
	case "update":
		t.Ops[opUpdate].Add(int64(len(r.Docs["updates"])))
	case "delete":
		t.Ops[opDelete].Add(int64(len(r.Docs["deletes"])))
	case "getMore":
		t.Ops[opGetMore].Add(1)
	default:
		t.Ops[opCommand].Add(1)
	}
}

// MemoryBytes is the memory that this process has from the system.
func MemoryBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
