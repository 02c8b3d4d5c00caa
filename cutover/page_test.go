package cutover_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/status"
)

// TestPage: docs/cutover.md has a row for each precondition, in order, and says which can be
// waived.
func TestPage(t *testing.T) {
	t.Parallel()
	_, page, _ := strings.Cut(string(must.Get(os.ReadFile("../docs/cutover.md"))(t)), "| precondition |")
	table, _, _ := strings.Cut(page, "\n\n")
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|.*$").FindAllStringSubmatch(table, -1) {
		rows = append(rows, m[1])
		waives := strings.Contains(m[0], "`--waive "+m[1]+"`")
		if waives != slices.Contains(cutover.Waivable(), m[1]) {
			t.Errorf("%s: that it can be waived: the page says %v", m[1], waives)
		}
	}
	var want []string
	s := status.Snapshot{}
	for _, p := range s.Readiness(status.ReadinessLimits{}).Preconditions {
		want = append(want, p.Name)
	}
	if want = append(want, cutover.WayBack, cutover.DeferredIndexes); !slices.Equal(rows, want) {
		t.Errorf("the page has %v, want %v", rows, want)
	}
	if err := cutover.CheckWaived(cutover.Waivable()); err != nil {
		t.Error(err)
	}
	if err := cutover.CheckWaived([]string{"verified", "consistent"}); err == nil || !strings.Contains(err.Error(), `"consistent" cannot be waived`) {
		t.Errorf("got %v", err)
	}
}

// TestSum: only what may be waived is, and only where it was asked for.
func TestSum(t *testing.T) {
	t.Parallel()
	list := func() []status.Precondition {
		return []status.Precondition{
			{Name: "lag", Standing: status.NotKnown, Next: "Wait."},
			{Name: "verified", Standing: status.Unmet, Next: "Compare."},
			{Name: "lacking", Standing: status.Met},
		}
	}
	for _, tt := range []struct {
		waived []string
		want   string
	}{
		{nil, "unknown unmet met"},
		{[]string{"verified", "lacking"}, "unknown waived met"},
		{[]string{"lag"}, "unknown unmet met"},
	} {
		var r cutover.Report
		r.Sum(list(), tt.waived)
		var got []string
		for _, p := range r.Preconditions {
			got = append(got, string(p.Standing))
			if (p.Next == "") != (p.Standing == status.Met || p.Standing == status.Waived) {
				t.Errorf("%s: next %q", p.Name, p.Next)
			}
		}
		if strings.Join(got, " ") != tt.want || r.Ready {
			t.Errorf("%v: %v, ready %v", tt.waived, got, r.Ready)
		}
	}
	var r cutover.Report
	if r.Sum(list()[1:], []string{"verified"}); !r.Ready {
		t.Errorf("everything is met or waived: %+v", r)
	}
}
