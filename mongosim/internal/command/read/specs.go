package read

import (
	"slices"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func findSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{
			Name: "find", Run: runFind, StructName: "FindCommandRequest", Fields: findFields, Secondary: dispatch.OptIn,
			InTxn: true, Concern: true, Snapshot: true, Check: dispatch.MayOn("find"),
		},
		{
			Name: "aggregate", Run: runAggregate, Fields: aggregateFields, Secondary: dispatch.OptIn,
			InTxn: true, Concern: true, Snapshot: true, Check: dispatch.MayOn("find"),
		},
		{
			Name: "count", Run: runCount, Fields: countFields, Secondary: dispatch.OptIn, Concern: true, Check: dispatch.MayOn("find"),
		},
		{
			Name: "distinct", Run: runDistinct, Fields: distinctFields, Secondary: dispatch.OptIn,
			InTxn: true, Concern: true, Snapshot: true, Check: dispatch.MayOn("find"),
		},
		{Name: "explain", Run: refuseRead, Secondary: dispatch.OptIn, Check: dispatch.NeedsDB("find")},
		{Name: "mapReduce", Aliases: []string{"mapreduce"}, Run: refuseRead, Secondary: dispatch.OptIn, Check: dispatch.MayOn("find")},
	}
}

// Specs returns the commands of this package.
func Specs() []dispatch.Spec { return slices.Concat(findSpecs(), cursorSpecs(), listSpecs()) }
