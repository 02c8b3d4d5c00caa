package ends

import (
	"context"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/oplog"
)

// First is the optime before the first entry of every log that is made here.
var First = oplog.NewOpTime(1_700_000_000, 1, 1)

// Memory is a member whose log is in memory, and which sends it as fast as it is
// asked. It is for one reader at a time.
type Memory struct {
	// Entries and Ops are how many it has, Bytes their size; Last is the newest one.
	Entries, Ops int
	Bytes        int64
	Last         oplog.OpTime
}

// NewMemory makes a workload's log. A reply has perReply bytes at most; zero means
// 16 MiB.
func NewMemory(w workload.Workload, perReply int) (*Memory, error) { panic("not written yet") }

// Host is a name for it.
func (m *Memory) Host() string { panic("not written yet") }

// Call implements call.Caller: find and getMore on the log; anything else is ok. At
// the end of the log it waits until ctx is done.
func (m *Memory) Call(ctx context.Context, cmd call.Command) (raw []byte, err error) {
	panic("not written yet")
}

// Rewind begins anew: the next find answers with the beginning.
func (m *Memory) Rewind() { panic("not written yet") }

// End is a set that is connected to.
type End struct {
	Set *mdb.Set
	URI string
	// Embedded tells that it is an embedded set. Version is the server's, or that
	// which is played, or "null".
	Embedded bool
	Version  string
}

// Open connects to the set that uri names.
func Open(ctx context.Context, uri string) (*End, error) { panic("not written yet") }

// StartEmbedded starts an embedded set of one member and connects to it. Seeds of
// two sets must differ.
func StartEmbedded(ctx context.Context, seed int64, oplogBytes int64) (*End, error) {
	panic("not written yet")
}

// StartPlayed starts an embedded set that has the log of a workload behind First, and
// what was there before it. Last is the newest entry.
func StartPlayed(ctx context.Context, seed int64, w workload.Workload) (end *End, last oplog.OpTime, err error) {
	panic("not written yet")
}

// Close disconnects, and ends an embedded set.
func (e *End) Close() { panic("not written yet") }

// Fill makes the collections, with indexes and documents, in databases that are
// dropped before.
func (e *End) Fill(ctx context.Context, collections []workload.Collection) error {
	panic("not written yet")
}

// Null is a server on loopback that acknowledges every command as if it had done
// it, with the right counts. Until Arm it hands all to an embedded set behind it, so
// that a link can be made; from then on it stores nothing.
type Null struct{ *End }

// StartNull starts one.
func StartNull(ctx context.Context, seed int64) (*Null, error) { panic("not written yet") }

// Arm makes it forget everything from now on, or ends that.
func (n *Null) Arm(on bool) { panic("not written yet") }

// Commands is how many commands it has acknowledged since Arm, Statements how many
// writes were in them.
func (n *Null) Commands() (commands, statements int64) { panic("not written yet") }
