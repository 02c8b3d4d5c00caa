package bench

import (
	"errors"
	"strings"
	"testing"
)

// TestPipeline: all of the log arrives, from wherever it is read.
func TestPipeline(t *testing.T) {
	w := presetOf(t, "mixed", 500)
	for end, name := range map[string]string{memoryEnd: "memory/discard", "": "set/discard"} {
		t.Run(name, func(t *testing.T) {
			run, err := Pipeline(t.Context(), Config{Workload: w, Source: end, Rounds: 2, Writers: 3, BatchOps: 70})
			if err != nil {
				t.Fatal(err)
			}
			ops, bytes, err := logSize(w)
			if err != nil {
				t.Fatal(err)
			}
			f := runFigures{run, "pipeline/mixed/" + name + "/writers=3/batch=70/ops=500/documents=500"}
			f.check(t, "pipeline", int(ops), 2)
			source, target, _ := strings.Cut(strings.ReplaceAll(name, "set", oneEmbedded.String()), "/")
			if run.Bytes != bytes || run.Ends() != source+" → "+target {
				t.Errorf("%d bytes of %d, %s", run.Bytes, bytes, run.Ends())
			}
			if len(run.Notes) == 0 || !strings.Contains(run.Notes[0], "memory limit") {
				t.Errorf("notes %q", run.Notes)
			}
		})
	}
}

func TestPipelineRefuses(t *testing.T) {
	_, err := Pipeline(t.Context(), Config{Workload: presetOf(t, "updates", 20), Source: "mongodb://a"})
	if _, ok := errors.AsType[*ConfigError](err); !ok {
		t.Errorf("from a set that a connection string names: %v", err)
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
