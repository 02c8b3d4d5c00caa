package metrics

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// described is a metric as its collector describes it.
type described struct {
	name, help string
	labels     []string
	// kind is counter, gauge or histogram.
	kind string
}

// recorder is a registry that remembers everything it ever had: a spool's metrics go with the
// spool.
type recorder struct {
	*prometheus.Registry

	mu     sync.Mutex // guards what follows
	all    map[string]described
	faults []string
}

func newRecorder() *recorder {
	return &recorder{Registry: prometheus.NewRegistry(), all: map[string]described{}}
}

// Register implements prometheus.Registerer.
func (r *recorder) Register(c prometheus.Collector) error {
	for _, d := range descriptionsOf(c) {
		r.note(d, kindOf(c))
	}
	return r.Registry.Register(c)
}

// MustRegister implements prometheus.Registerer.
func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *recorder) note(d *prometheus.Desc, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := parse(d)
	if err != nil {
		r.faults = append(r.faults, err.Error())
		return
	}
	if m.kind = kind; kind == "" {
		m.kind = gauge
		if strings.HasSuffix(m.name, "_total") {
			m.kind = counter
		}
	}
	r.all[m.name] = m
}

// gathered corrects the kinds of what there is, and returns all that was ever registered.
func (r *recorder) gathered(families []*dto.MetricFamily) map[string]described {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range families {
		if m, known := r.all[f.GetName()]; known {
			m.kind = strings.ToLower(f.GetType().String())
			r.all[m.name] = m
		}
	}
	return r.all
}

const counter, gauge, histogram = "counter", "gauge", "histogram"

// kindOf returns the kind of the metrics of a collector, empty if its type does not tell. It must
// not collect: what it would ask may be about to be made.
func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return counter
	case *prometheus.GaugeVec:
		return gauge
	case *prometheus.HistogramVec, prometheus.Histogram:
		return histogram
	}
	return ""
}

func descriptionsOf(c prometheus.Collector) []*prometheus.Desc {
	out := make(chan *prometheus.Desc)
	var list []*prometheus.Desc
	var received sync.WaitGroup
	received.Go(func() {
		for d := range out {
			list = append(list, d)
		}
	})
	c.Describe(out)
	close(out)
	received.Wait()
	return list
}

// form is the text of a description, which has no accessors.
var form = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)", unit: "[^"]*", constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

func parse(d *prometheus.Desc) (described, error) {
	m := form.FindStringSubmatch(d.String())
	if m == nil {
		return described{}, fmt.Errorf("%s is not understood", d)
	}
	out := described{name: m[1], help: strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(m[2])}
	for label := range strings.SplitSeq(strings.Trim(m[3]+","+m[4], ","), ",") {
		if name, _, _ := strings.Cut(label, "="); name != "" {
			out.labels = append(out.labels, name)
		}
	}
	return out, nil
}
