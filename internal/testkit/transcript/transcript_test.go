package transcript

import (
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

const corpusDir = "../../../testdata/corpus"

// TestTranscripts replays every recording, and prints how many exceptions applied.
func TestTranscripts(t *testing.T) {
	scenarios, err := corpus.Open(corpusDir)
	if err != nil {
		t.Fatal(err)
	}
	reports := make([]Report, len(scenarios))
	t.Run("all", func(t *testing.T) {
		for i := range scenarios {
			s := &scenarios[i]
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				reports[i] = Replay(t.Context(), s, Options{})
				if t.Log(reports[i].String()); !reports[i].OK() {
					t.Fail()
				}
			})
		}
	})
	applied := 0
	for i := range reports {
		applied += reports[i].Exceptions
	}
	t.Logf("exceptions: %d", applied)
	if want := len(exceptions) + 1; applied != want { // the order of columns is one
		t.Errorf("%d of %d exceptions applied", applied, want)
	}
}
