package transcript

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

func TestExceptions(t *testing.T) {
	known := []exception{
		{"s", "5:1", PartReply, 3, 4, "code", "why one"},
		{"s", "5:1", PartEntry, 7, 7, "", "why two"},
		{"s", "5:1", PartData, 0, 0, "", "why three"},
		{"other", "5:1", PartReply, 1, 1, "", "of another recording"},
		{"s", "6:1", PartReply, 1, 1, "", "of a later recording of the same name"},
	}
	p := player{pairs: newPairs(), recording: &recording{scenario: &corpus.Scenario{Name: "s", Meta: corpus.Meta{Last: "5:1"}}}}
	p.found = []Difference{
		{Part: PartReply, At: 3, Path: "code"},
		{Part: PartReply, At: 3, Path: "errmsg", What: "stays"},
		{Part: PartReply, At: 4, Path: "code"},
		{Part: PartReply, At: 5, Path: "code", What: "stays too"},
		{Part: PartEntry, At: 7, Path: "o"},
		{Part: PartEntry, At: 8, Path: "o", What: "and this"},
	}
	p.except(known)
	if p.report.Exceptions != 2 {
		t.Errorf("%d exceptions applied, want 2", p.report.Exceptions)
	}
	got := p.report.String()
	for _, want := range []string{"exceptions: 2", "stays", "stays too", "and this", "does not apply any more: why three"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if len(p.report.Differences) != 4 {
		t.Errorf("%d differences stay, want 4", len(p.report.Differences))
	}
}
