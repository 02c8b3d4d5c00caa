package transcript

import (
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

const corpusDir = "../../../testdata/corpus"

// TestTranscripts replays every recording.
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
	reordered := 0
	for i := range reports {
		if reports[i].Reordered {
			reordered++
		}
	}
	if reordered != 1 {
		t.Errorf("columns have another order in %d recordings, want 1", reordered)
	}
}
