package workload_test

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/bench/workload"
)

func TestPresets(t *testing.T) {
	t.Parallel()
	var names []string
	for _, w := range workload.Presets() {
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
		names = append(names, w.Name)
		if got, err := workload.Preset(w.Name); err != nil || got != w {
			t.Errorf("%s: got %v, %v", w.Name, got, err)
		}
	}
	const want = "small-inserts, updates, mass-update, deletes, mixed, hot, coalesce, large-docs, txn, backlog"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("presets are %s", got)
	}
	if _, err := workload.Preset("fast"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an unknown preset: %v", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	type W = workload.Workload
	mix := workload.Mix{Insert: 1, Update: 1, Delete: 1}
	updates := workload.Mix{Update: 1}
	deletes := workload.Mix{Delete: 1}
	tests := []struct {
		name string
		w    W
		want string // of the error; empty for none
	}{
		{"nothing", W{}, ""},
		{"negative", W{Ops: -1}, "ops: -1 is negative"},
		{"negative documents", W{Documents: -2}, "documents: -2 is negative"},
		{"a negative weight", W{Mix: workload.Mix{Insert: 2, Update: -1}}, "mix.update: -1 is no weight"},
		{"a negative weight of a delta", W{Deltas: workload.Deltas{Text: -1}}, "deltas.text: -1 is no weight"},
		{"too small", W{Size: 60}, "size: 60 is not in"},
		{"too large", W{Size: 9 << 20}, "size: 9437184 is not in"},
		{"as small as can be", W{Size: 90}, ""},
		{"many fields of a small document", W{Size: 100, Deltas: workload.Deltas{Many: 1}}, "deltas.many: a document of less than 192 bytes has not 10 fields to set"},
		{"spread", W{Spread: 3}, "spread: 3 is not in 0 to 2"},
		{"namespaces", W{Namespaces: 10_001}, "namespaces: 10001 is not in 1 to 10000"},
		{"indexes", W{Indexes: 13}, "indexes: 13 is not in 0 to 12"},
		{"most indexes", W{Indexes: 12}, ""},
		{"updates of nothing", W{Mix: updates}, "documents: updates and deletes need some"},
		{"updates", W{Mix: updates, Documents: 1}, ""},
		{"deletes", W{Mix: deletes, Ops: 100, Documents: 100}, ""},
		{"too many deletes", W{Mix: deletes, Ops: 100, Documents: 99}, "documents: 99, 0 of them hot, are too few for about 100 deletes"},
		{"deletes and hot documents", W{Mix: deletes, Ops: 100, Documents: 100, Hot: 10, HotShare: 0.5}, "documents: 100, 10 of them hot, are too few"},
		{"as many inserts as deletes", W{Mix: mix, Documents: 1}, ""},
		{"distinct", W{Mix: updates, Ops: 10, Documents: 10, Distinct: true}, ""},
		{"not distinct", W{Mix: updates, Ops: 11, Documents: 10, Distinct: true}, "documents: 10 are too few for 11 operations on distinct ones"},
		{"distinct inserts", W{Ops: 11, Distinct: true}, ""},
		{"more hot than there are", W{Mix: updates, Documents: 10, Hot: 11, HotShare: 0.5}, "hot: 11 is not in 0 to 10, the documents"},
		{"hot without a share", W{Mix: updates, Documents: 10, Hot: 1}, "hot and hotShare: one is nothing without the other"},
		{"a share of none", W{Mix: updates, Documents: 10, HotShare: 0.1}, "hot and hotShare: one is nothing without the other"},
		{"a share above 1", W{Mix: updates, Documents: 10, Hot: 1, HotShare: 2}, "hotShare: 2 is no share"},
		{"two choices", W{Mix: updates, Documents: 10, Ops: 10, Hot: 1, HotShare: 0.5, Distinct: true}, "there can be one"},
		{"repeat", W{Repeat: -1}, "repeat: -1 is negative"},
		{"repeat of distinct", W{Repeat: 2, Phases: true}, "repeat: it does not go with distinct or phases"},
		{"share of transactions", W{TxnShare: 1.1}, "txnShare: 1.1 is no share"},
		{"operations of no transaction", W{TxnOps: 5}, "txnOps: it is nothing without txnShare"},
		{"transactions in phases", W{Phases: true, TxnShare: 1}, "phases: they do not go with"},
		{"large transactions", W{TxnShare: 1, TxnOps: 100_000}, "txnOps: 100000 operations of 200 bytes are more than one entry may have"},
		{"a file in place of all", W{File: "x", Size: -1}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.w.Name = "this"
			err := test.w.Validate()
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `"this"`)):
				t.Errorf("got %v, want %s", err, test.want)
			}
			if test.w.File != "" {
				return
			}
			if _, made := workload.New(test.w); (made == nil) != (err == nil) {
				t.Errorf("Validate says %v, New %v", err, made)
			}
		})
	}
	err := W{Size: 60, Indexes: -1, TxnOps: 5}.Validate()
	for _, part := range []string{"size", "indexes", "txnOps"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("not all faults: %v", err)
		}
	}
}
