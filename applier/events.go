package applier

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of log attributes.
const (
	keyNS   = "ns"
	keyByID = "byID"
	// keyOneLane counts collections that have one lane.
	keyOneLane = "oneLane"
	// keyFew counts collections that have a few lanes.
	keyFew     = "fewLanes"
	keyOpTime  = "optime"
	keyLane    = "lane"
	keyFrom    = "from"
	keyID      = "id"
	keyWhat    = "what"
	keyOps     = "ops"
	keyCause   = "cause"
	keyWhy     = "why"
	keyWaited  = "waited"
	keyIndex   = "index"
	keyCommand = "command"
	keyTo      = "to"
)

// CommandApplied announces that a command of the source's oplog (DDL) is in the target.
type CommandApplied struct {
	// Command is its name, NS its namespace at the source, To the new name of a rename.
	Command string
	NS, To  oplog.Namespace
	OpTime  oplog.OpTime
}

// Message implements event.Event.
func (CommandApplied) Message() string { return "command applied" }

// Level implements event.Event. An application may send many: the log has them only if it
// is asked for them.
func (CommandApplied) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e CommandApplied) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyCommand, e.Command), slog.String(keyNS, string(e.NS)), slog.String(keyOpTime, e.OpTime.String())}
	if e.To != "" {
		attrs = append(attrs, slog.String(keyTo, string(e.To)))
	}
	return slog.GroupValue(attrs...)
}

// applied counts and announces a command that is in the target. wall is the source's clock
// at it.
func (d *dispatcher) applied(op *oplog.Op, at oplog.OpTime, wall int64) {
	d.arrived(1, wall)
	d.acknowledged(1, wall)
	d.metrics.ops[oplog.KindCommand].Inc()
	d.stats.commands.Add(1)
	ns, to, err := op.Target()
	if err != nil {
		ns = op.NS // it was parsed by the function that executed it
	}
	d.cfg.Observer.Tell(CommandApplied{Command: op.Command.String(), NS: ns.Clone(), To: to.Clone(), OpTime: at})
}

// logNotAtomic logs that a source transaction cannot be one transaction of the target.
func (a *Applier) logNotAtomic(at oplog.OpTime, ops int, why string) {
	a.cfg.Observer.Log(slog.LevelInfo, "a transaction is applied in several",
		slog.String(keyOpTime, at.String()), slog.Int(keyOps, ops), slog.String(keyWhy, why))
}

// someOf returns the first few names of lists.
func someOf(lists ...[]oplog.Namespace) string {
	const most = 5
	names := make([]string, 0, most+1)
	for _, ns := range slices.Concat(lists...) {
		if len(names) == most {
			names = append(names, "...")
			break
		}
		names = append(names, string(ns))
	}
	return strings.Join(names, " ")
}
