package metadata_test

import (
	"os"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/metadata"
)

// TestRunbookDeletes: what the runbook runs to delete a link names each collection that has
// documents of one.
func TestRunbookDeletes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n### Deleting a link\n")
	_, after, _ = strings.Cut(after, "for (const c of [")
	list, _, found := strings.Cut(after, "]")
	if !found {
		t.Fatal("the runbook has no list of collections")
	}
	for _, of := range metadata.DocumentsOf("dr") {
		if !strings.Contains(list, `"`+of.Collection+`"`) {
			t.Errorf("%s is not in %s", of.Collection, list)
		}
	}
}
