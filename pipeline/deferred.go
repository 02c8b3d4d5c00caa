package pipeline

import (
	"slices"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// deferredOf returns the indexes that are deferred, by the source's collection; nil if that is not
// known.
func deferredOf(list ddl.Specs, names resync.Scope) map[oplog.Namespace][]string {
	if list == nil {
		return nil
	}
	of := map[oplog.Namespace][]string{}
	for i := range list {
		if ns, ok := names.Source(list[i].NS); ok && list[i].Index != "" {
			of[ns] = append(of[ns], list[i].Index)
		}
	}
	for _, indexes := range of {
		slices.Sort(indexes)
	}
	return of
}
