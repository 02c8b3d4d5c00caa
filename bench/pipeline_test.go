package bench

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/bench/ends"
)

// TestPipeline: all of the log arrives, from wherever it is read, whatever is behind.
func TestPipeline(t *testing.T) {
	w := presetOf(t, "mixed", 500)
	w.DDLEvery = 200
	for _, end := range []struct{ source, target, name string }{
		{memoryEnd, "", "memory/discard"},
		{"", discardEnd, "set/discard"},
		{memoryEnd, nullEnd, "memory/null"},
		{"", nullEnd, "set/null"},
	} {
		t.Run(end.name, func(t *testing.T) {
			run, err := Pipeline(t.Context(), Config{
				Workload: w, Source: end.source, Target: end.target, Rounds: 2, Writers: 3, BatchOps: 70,
			})
			if err != nil {
				t.Fatal(err)
			}
			ops, bytes, err := logSize(w)
			if err != nil {
				t.Fatal(err)
			}
			f := runFigures{run, "pipeline/mixed/" + end.name + "/writers=3/batch=70/ops=500/documents=500"}
			f.check(t, "pipeline", int(ops), 2)
			source, target, _ := strings.Cut(strings.ReplaceAll(end.name, "set", oneEmbedded.String()), "/")
			if run.Bytes != bytes || run.Ends() != source+" → "+target {
				t.Errorf("%d bytes of %d, %s", run.Bytes, bytes, run.Ends())
			}
			if len(run.Notes) == 0 || !strings.Contains(run.Notes[0], "memory limit") {
				t.Errorf("notes %q", run.Notes)
			}
		})
	}
}

// TestPipelineOfASet: a set that is named by a connection string gets the workload
// written, and it is read from its log.
func TestPipelineOfASet(t *testing.T) {
	end, err := ends.StartEmbedded(t.Context(), sourceSeed, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	for _, to := range []string{discardEnd, ""} {
		run, err := Pipeline(t.Context(), Config{Workload: presetOf(t, "updates", 200), Source: end.URI, Target: to, Rounds: 2})
		if err != nil {
			t.Fatal(err)
		}
		if run.Ops != 200 || run.Source != oneEmbedded || run.Target.String() != discardEnd {
			t.Errorf("%d operations from %s to %s", run.Ops, run.Source, run.Target)
		}
	}
	if _, err := Pipeline(t.Context(), Config{Workload: presetOf(t, "updates", 20), Source: end.URI, Target: end.URI}); err == nil {
		t.Error("a set was mirrored to itself")
	}
}

// TestShort: that operations get lost is an error, not a fast run.
func TestShort(t *testing.T) {
	c := Config{Workload: presetOf(t, "small-inserts", 100), Source: memoryEnd}
	c.setDefaults()
	s, err := openSource(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.ops++
	if err := s.discard(t.Context()); err == nil || !strings.Contains(err.Error(), "100 of 101") {
		t.Errorf("one is missing: %v", err)
	}
}
