package metrics

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md and the golden file anew")

// golden compares a text with a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *rewrite {
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Succeed(t, os.WriteFile(path, []byte(got), 0o600))
	}
	if diff := cmp.Diff(string(must.Get(os.ReadFile(path))(t)), got); diff != "" {
		t.Errorf("%s is not what there is (go test ./test/metrics -rewrite, then read the difference):\n%s", path, diff)
	}
}

// TestMetrics: docs/metrics.md has everything that is ever registered, with its kind and labels; names
// follow Prometheus's conventions; and what a link has counted at the end is what it has done.
func TestMetrics(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.mirror()
	families := p.gather()
	all := p.registry.gathered(families)
	for _, fault := range p.registry.faults {
		t.Error(fault)
	}
	lint(t, all)
	golden(t, "../../docs/metrics.md", page(all))
	golden(t, "testdata/metrics.txt", exposition(families))
}

const head = `# Metrics

Everything that ` + "`GET /metrics`" + ` may have. The [runbook](runbook.md#metrics) says which to watch; [alerts.md](alerts.md) has
alerts and a dashboard. Unknown values are missing, not 0, unless the line says so. An agent has the metrics of each of its links with the label ` + "`link`" + ` in addition. Go's
runtime and the process have client_golang's usual ones, ` + "`go_…` and `process_…`" + `. (` + "`go test ./test/metrics -rewrite`" + ` generates this page.)

| metric | type | labels | meaning |
|---|---|---|---|
`

// page is docs/metrics.md.
func page(all map[string]described) string {
	var out strings.Builder
	out.WriteString(head)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		labels := slices.Sorted(slices.Values(m.labels))
		for i, l := range labels {
			labels[i] = "`" + l + "`"
		}
		_, _ = fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(labels, ", "), strings.ReplaceAll(m.help, "|", `\|`))
	}
	return out.String()
}

// lint checks every metric, also those that have no value.
func lint(t *testing.T, all map[string]described) {
	t.Helper()
	var families []*dto.MetricFamily
	for _, m := range all {
		kind := dto.MetricType(dto.MetricType_value[strings.ToUpper(m.kind)])
		one := &dto.Metric{}
		for _, l := range m.labels {
			one.Label = append(one.Label, &dto.LabelPair{Name: &l})
		}
		families = append(families, &dto.MetricFamily{Name: &m.name, Help: &m.help, Type: &kind, Metric: []*dto.Metric{one}})
		if !strings.HasPrefix(m.name, "replicator_") {
			t.Errorf("%s does not begin with replicator_", m.name)
		}
		if len(m.help) < 10 || !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s is described as %q", m.name, m.help)
		}
	}
	for _, fault := range must.Get(promlint.NewWithMetricFamilies(families).Lint())(t) {
		t.Errorf("%s: %s", fault.Metric, fault.Text)
	}
}

// exact are the metrics that are the same in each run.
var exact = regexp.MustCompile(`^replicator_(` + strings.Join([]string{
	"agent_.*", "applier_(cuts_dropped|deletes_empty|divergences|kept_back_.*|ops|skipped_ops)(_total)?", "consistent", "copy_(number|phase)", "cut_interval_seconds",
	"deferred", "delay_seconds", "feedback_failures_total", "http_.*", "info", "initialsync_(docs|step).*", "kept_back_collections", "lacking",
	"lease_(fenced_writes|leader|renewal_failures|takeovers).*", "left_out_collections", "locks_(held|lost_total|attempts_total)", "paused", "state", "verdict", "verified_collections", "verify_.*",
}, "|") + `)$`)

// fleeting are metrics that are missing until something was measured long enough.
var fleeting = regexp.MustCompile(`^replicator_(lag_trend_ratio|oplog_.*|source_clock_ahead_seconds|stage_busy_ratio)$`)

// exposition has a line for each value, * for one that depends on the moment, and for hosts.
func exposition(families []*dto.MetricFamily) string {
	var out strings.Builder
	for _, f := range families {
		if fleeting.MatchString(f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			out.WriteString(f.GetName())
			for _, l := range m.GetLabel() {
				value := l.GetValue()
				if l.GetName() == "host" {
					value = "*"
				}
				_, _ = fmt.Fprintf(&out, " %s=%s", l.GetName(), value)
			}
			value := "*"
			if exact.MatchString(f.GetName()) {
				value = number(m)
			}
			out.WriteString(" " + value + "\n")
		}
	}
	return out.String()
}

func number(m *dto.Metric) string {
	switch {
	case m.GetCounter() != nil:
		return strconv.FormatFloat(m.GetCounter().GetValue(), 'g', -1, 64)
	case m.GetGauge() != nil:
		return strconv.FormatFloat(m.GetGauge().GetValue(), 'g', -1, 64)
	}
	return strconv.FormatFloat(math.NaN(), 'g', -1, 64)
}
