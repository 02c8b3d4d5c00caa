package workload

import (
	"fmt"
	"strings"
)

// Presets returns the named workloads, in the order in which they are shown:
// small-inserts, updates, mass-update, deletes, mixed, hot, coalesce, large-docs, txn, backlog.
//
// They are made to be changed: most often Ops and Documents, which go up and down
// together where every document is met once.
func Presets() []Workload {
	return []Workload{
		{Name: "small-inserts", Ops: 400_000, Mix: Mix{Insert: 1}},
		{
			Name: "updates", Ops: 200_000, Documents: 200_000, Distinct: true,
			Mix: Mix{Update: 1}, Deltas: Deltas{Set: 0.9, Nested: 0.1},
		},
		{
			// What updateMany logs, for 10,000 documents each time.
			Name: "mass-update", Ops: 200_000, Documents: 200_000, Distinct: true, Namespaces: 1,
			Mix: Mix{Update: 1}, Deltas: Deltas{Set: 1}, Alike: 10_000,
		},
		{Name: "deletes", Ops: 200_000, Documents: 200_000, Distinct: true, Mix: Mix{Delete: 1}},
		{
			Name: "mixed", Ops: 200_000, Documents: 50_000, Spread: 0.5, Indexes: 1,
			Mix:      Mix{Insert: 0.4, Update: 0.4, Delete: 0.1, Replace: 0.1},
			Deltas:   Deltas{Set: 0.4, Many: 0.1, Nested: 0.15, Array: 0.15, Unset: 0.1, Dotted: 0.05, Text: 0.05},
			TxnShare: 0.05,
		},
		{
			Name: "hot", Ops: 200_000, Documents: 50_000, Hot: 100, HotShare: 0.9,
			Mix: Mix{Update: 1}, Deltas: Deltas{Set: 0.8, Nested: 0.2},
		},
		{
			// A document is inserted, updated some times and sometimes deleted, so
			// that about a tenth of the operations is left.
			Name: "coalesce", Ops: 200_000, Documents: 20_000, Repeat: 20,
			Mix: Mix{Insert: 0.05, Update: 0.9, Delete: 0.05}, Deltas: Deltas{Set: 0.8, Nested: 0.2},
		},
		{
			Name: "large-docs", Ops: 5_000, Documents: 2_000, Size: 64 << 10, Spread: 0.5,
			Mix:    Mix{Insert: 0.5, Update: 0.4, Replace: 0.1},
			Deltas: Deltas{Set: 0.9, Array: 0.1},
		},
		{
			Name: "txn", Ops: 200_000, Documents: 50_000, TxnShare: 1,
			Mix: Mix{Insert: 0.5, Update: 0.4, Delete: 0.1},
		},
		{Name: "backlog", Ops: 1_000_000, Size: 250, Phases: true},
	}
}

// Preset returns one of them. The error of an unknown one names all.
func Preset(name string) (Workload, error) {
	var names []string
	for _, w := range Presets() {
		if w.Name == name {
			return w, nil
		}
		names = append(names, w.Name)
	}
	return Workload{}, fmt.Errorf("no workload %q: there are %s", name, strings.Join(names, ", "))
}
