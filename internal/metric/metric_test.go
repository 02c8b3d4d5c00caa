package metric

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func counter(help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "eggs_total", Help: help})
}

func TestRegisterAgain(t *testing.T) {
	reg := prometheus.NewRegistry()
	first := Register(reg, counter("Eggs."))
	first.Inc()
	second := Register(reg, counter("Eggs."))
	second.Inc()
	if first != second {
		t.Error("the second stage counts on its own")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetMetric()[0].GetCounter().GetValue() != 2 {
		t.Errorf("the registry shows %v; want one counter of 2", families)
	}
}

func TestRegisterNowhere(t *testing.T) {
	c := counter("Eggs.")
	if Register(nil, c) != c {
		t.Error("another counter came back")
	}
}

// TestRegisterClash takes a name for something else: once with another help,
// once for another kind of metric.
func TestRegisterClash(t *testing.T) {
	for name, second := range map[string]func(prometheus.Registerer){
		"help": func(reg prometheus.Registerer) { Register(reg, counter("Hens.")) },
		"kind": func(reg prometheus.Registerer) {
			Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "eggs_total", Help: "Eggs."}, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			Register(reg, counter("Eggs."))
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "metric: one name for two metrics: ") {
					t.Errorf("panic %q, want one about two metrics of one name", text)
				}
			}()
			second(reg)
		})
	}
}
