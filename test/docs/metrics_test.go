package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	metricRow  = regexp.MustCompile("(?m)^\\| `(replicator_[a-z_]+)` \\| [a-z]+ \\| (.*?) \\| ")
	metricSpan = regexp.MustCompile("`(replicator_[a-z_]*[a-z])(?:\\{([^}`]*)\\})?`")
	watchedRow = regexp.MustCompile("(?m)^\\| (`[a-z_]+(?:\\{[^}]*\\})?`(?:, `[a-z_]+(?:\\{[^}]*\\})?`)*) \\| ")
)

// TestMetricNames: metrics that pages name, with their labels, are in docs/metrics.md.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	all := pages(t)
	known := map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(all["../../docs/metrics.md"], -1) {
		known[m[1]] = m[2]
	}
	named := 0
	check := func(page, name, labels string) {
		t.Helper()
		named++
		has, ok := known[name]
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"); !ok && base != name {
			has, ok = known[base]
		}
		if !ok {
			t.Errorf("%s: there is no metric %s", page, name)
			return
		}
		for label := range strings.SplitSeq(labels, ",") {
			if label, _, _ := strings.Cut(strings.TrimSpace(label), "="); label != "" && !slices.Contains(strings.Split(has, ", "), "`"+label+"`") {
				t.Errorf("%s: %s has no label %s, but %s", page, name, label, has)
			}
		}
	}
	for page, text := range all {
		if strings.HasSuffix(page, "CHANGELOG.md") {
			continue // It has the old names of renamed metrics.
		}
		for _, m := range metricSpan.FindAllStringSubmatch(text, -1) {
			check(page, m[1], m[2])
		}
	}
	_, table, _ := strings.Cut(all["../../docs/runbook.md"], "| metric, after `replicator_` |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := 0
	for _, m := range watchedRow.FindAllStringSubmatch(table, -1) {
		rows++
		for span := range strings.SplitSeq(m[1], ", `") {
			name, labels, _ := strings.Cut(strings.Trim(span, "`}"), "{")
			check("docs/runbook.md", "replicator_"+name, labels)
		}
	}
	if len(known) < 100 || named < 80 || rows < 10 {
		t.Errorf("%d metrics; pages name %d, the runbook has %d rows", len(known), named, rows)
	}
}
