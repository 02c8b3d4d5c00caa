package workload_test

import (
	"testing"

	"github.com/oplogrep/replicator/bench/workload"
)

func newGenerator(tb testing.TB, w workload.Workload) *workload.Generator {
	tb.Helper()
	g, err := workload.New(w)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func newLog(tb testing.TB, w workload.Workload) *workload.Log {
	tb.Helper()
	l, err := workload.NewLog(w, first)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
