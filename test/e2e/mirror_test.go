package e2e

import (
	"testing"

	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/mirrored"
)

// TestMirrorCorpus mirrors what a real server logged, by way of the pipeline, and
// compares with what that server had.
func TestMirrorCorpus(t *testing.T) {
	scenarios, err := corpus.Open("../../testdata/corpus")
	if err != nil {
		t.Fatal(err)
	}
	for i := range scenarios {
		s := &scenarios[i]
		t.Run(s.Name, func(t *testing.T) {
			r := mirrored.Prove(t.Context(), s, mirrored.Options{Seed: 1})
			t.Log(r.String())
			if !r.OK() {
				t.Fail()
			}
		})
	}
}
