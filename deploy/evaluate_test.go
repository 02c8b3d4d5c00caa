package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
)

// evaluator evaluates rules over a store, as Prometheus does: all of them at each step, in the order of the
// file, and an alert fires once its expression has held for its time.
type evaluator struct {
	t      *testing.T
	engine *promql.Engine
	store  *store
	rules  []rulefmt.Rule
	// names are, by rule, the metrics of its expression: without any of them it has no result.
	names [][]string
	// active has, by rule, since when each of its alerts holds; told are the series that a rule had
	// at the last step.
	active []map[string]time.Time
	told   []map[string]labels.Labels
}

func newEvaluator(t *testing.T, rules *rulefmt.RuleGroups, s *store) *evaluator {
	e := &evaluator{t: t, store: s, engine: promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1 << 20, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: parsing,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
	})}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.KeepFiringFor != 0 {
				t.Fatalf("%s: keep_firing_for is not known here", r.Alert)
			}
			var names []string
			for _, s := range selectors(t, r.Expr) {
				names = append(names, s.Name)
			}
			e.rules, e.names = append(e.rules, r), append(e.names, names)
			e.active, e.told = append(e.active, map[string]time.Time{}), append(e.told, nil)
		}
	}
	return e
}

// query evaluates an expression at a time.
func (e *evaluator) query(expr string, at time.Time) promql.Vector {
	e.t.Helper()
	q, err := e.engine.NewInstantQuery(e.t.Context(), e.store, nil, expr, at)
	if err != nil {
		e.t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	result := q.Exec(e.t.Context())
	v, err := result.Vector()
	if err != nil {
		e.t.Fatalf("%s: %v", expr, err)
	}
	return slices.Clone(v)
}

// step evaluates all rules at a time.
func (e *evaluator) step(at time.Time) {
	e.t.Helper()
	for i := range e.rules {
		r := &e.rules[i]
		told := map[string]labels.Labels{}
		tell := func(l labels.Labels, v float64) {
			told[l.String()] = l
			e.store.add(l, at.UnixMilli(), v)
		}
		held := map[string]time.Time{}
		var samples promql.Vector
		if slices.ContainsFunc(e.names[i], e.store.has) {
			samples = e.query(r.Expr, at)
		}
		for _, sample := range samples {
			if r.Record != "" {
				tell(labels.NewBuilder(sample.Metric).Set(labels.MetricName, r.Record).Labels(), sample.F)
				continue
			}
			l := e.alert(r, sample)
			since, known := e.active[i][l.String()]
			if !known {
				since = at
			}
			held[l.String()] = since
			state := "pending"
			if at.Sub(since) >= time.Duration(r.For) {
				state = "firing"
			}
			tell(labels.NewBuilder(l).Set(labels.MetricName, "ALERTS").Set("alertstate", state).Labels(), 1)
		}
		for key, l := range e.told[i] {
			if _, still := told[key]; !still {
				e.store.stale(l, at.UnixMilli())
			}
		}
		e.active[i], e.told[i] = held, told
	}
}

// alert returns the labels of an alert. All its texts must come out without a gap.
func (e *evaluator) alert(r *rulefmt.Rule, sample promql.Sample) labels.Labels {
	e.t.Helper()
	b := labels.NewBuilder(sample.Metric).Del(labels.MetricName).Set("alertname", r.Alert)
	for name, text := range r.Labels {
		b.Set(name, text)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Annotations)) {
		if text := expand(e.t, r.Annotations[name], sample); strings.Contains(text, " .") || strings.Contains(text, " ,") || strings.HasSuffix(text, "#") {
			e.t.Errorf("%s: %s is %q", r.Alert, name, text)
		}
	}
	return b.Labels()
}

// expand returns the text of an annotation.
func expand(t *testing.T, text string, sample promql.Sample) string {
	t.Helper()
	data := template.AlertTemplateData(sample.Metric.Map(), nil, "", sample)
	const vars = "{{$labels := .Labels}}{{$value := .Value}}"
	none := func(context.Context, string, time.Time) (promql.Vector, error) {
		return nil, fmt.Errorf("no queries in a text")
	}
	out, err := template.NewTemplateExpander(t.Context(), vars+text, "text", data, model.Time(sample.T), none, nil, nil).Expand()
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return out
}
