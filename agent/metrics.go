package agent

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// family is a metric with all its labels.
type family = dto.MetricFamily

// linkLabel is the label that the metrics of links get.
const linkLabel = "link"

// states are all states of a link.
var states = []State{Waiting, Running, Draining, Retrying, Ended}

// Register registers the metrics of the agent itself.
func (a *Agent) Register(r prometheus.Registerer) error {
	return errors.Join(
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "replicator_agent_ready", Help: "1 while the process takes part, 0 while it cannot reach the control plane, or cannot tell it how links end.",
		}, func() float64 { return truth(a.ready() == nil) })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "replicator_agent_max_links", Help: "How many links the process runs at the most.",
		}, func() float64 { return float64(a.cfg.Max) })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "replicator_agent_file_valid", Help: "1 if the links file could be read the last time.",
		}, func() float64 { return truth(a.Status().FileError == "") })),
		r.Register(perLink{
			a:        a,
			state:    prometheus.NewDesc("replicator_agent_link_state", "1 for the state that the link is in on this process, 0 for the others.", []string{linkLabel, "state"}, nil),
			failures: prometheus.NewDesc("replicator_agent_link_failures_total", "How often the link has ended with an error since it was assigned.", []string{linkLabel}, nil),
			code:     prometheus.NewDesc("replicator_agent_link_exit_code", "The exit code of the link's last end, while it does not run.", []string{linkLabel}, nil),
		}),
	)
}

// perLink are the metrics of links that do not come from the links.
type perLink struct {
	a                     *Agent
	state, failures, code *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c perLink) Describe(out chan<- *prometheus.Desc) {
	out <- c.state
	out <- c.failures
	out <- c.code
}

// Collect implements prometheus.Collector.
func (c perLink) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.a.Status().Links {
		for _, s := range states {
			out <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, truth(l.State == s), l.Link, string(s))
		}
		out <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(l.Failures), l.Link)
		if l.LastFailure != nil && (l.State == Ended || l.State == Retrying) {
			out <- prometheus.MustNewConstMetric(c.code, prometheus.GaugeValue, float64(l.LastFailure.Code), l.Link)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// gather returns the metrics of the process and of its links, the latter with the label link.
func (a *Agent) gather(own prometheus.Gatherer) ([]*family, error) {
	all := map[string]*family{}
	var faults []error
	add := func(of prometheus.Gatherer, link string) {
		families, err := of.Gather()
		if err != nil {
			faults = append(faults, err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				label(m, link)
			}
			if have := all[f.GetName()]; have != nil {
				have.Metric = append(have.Metric, f.GetMetric()...)
			} else {
				all[f.GetName()] = f
			}
		}
	}
	add(own, "")
	a.mu.Lock()
	jobs := a.sortedJobs()
	a.mu.Unlock()
	for _, j := range jobs {
		j.mu.Lock()
		view := j.view
		j.mu.Unlock()
		if view != nil {
			add(view.Metrics, j.name)
		}
	}
	list := make([]*family, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return list, errors.Join(faults...)
}

// label sets the label link of a metric. What the link calls itself is its name in the target,
// which two links of one file may share. The labels that are there belong to the link's registry.
func label(m *dto.Metric, link string) {
	if link == "" {
		return
	}
	name := linkLabel
	m.Label = slices.DeleteFunc(slices.Clone(m.GetLabel()), func(l *dto.LabelPair) bool { return l.GetName() == name })
	m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &link})
	slices.SortFunc(m.GetLabel(), func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
}
