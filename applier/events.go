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
)

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
