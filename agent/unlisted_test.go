package agent

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// A process whose file does not have the link for long says so, so that another one gets it.
func TestUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.set("a=1")
		_, result := b.work("b")
		time.Sleep(unlistedFor - time.Second)
		b.set("a=2") // another change does not restart the time
		select {
		case err := <-result:
			t.Fatalf("too soon: %v", err)
		default:
		}
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case err := <-result:
			if !errors.Is(err, errUnlisted) {
				t.Errorf("got %v", err)
			}
		default:
			t.Error("it waits on, and no process runs the link")
		}
		_, result = b.work("b")
		time.Sleep(unlistedFor - time.Second)
		b.set("a=2", "b=1")
		time.Sleep(time.Hour)
		b.expect("once the file has it", "b1")
		if len(result) != 0 {
			t.Errorf("it has ended: %v", <-result)
		}
	})
}

// What Work returns is shown to others: it says no more than the explanation does.
func TestKeepsFailingSecretly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.cfg.Explain = func(error) Failure { return Failure{Code: 8, Error: "no reply of mongodb://u:***@h", Helps: true} }
		b.set("a=1")
		b.fail("a", errPassing)
		_, result := b.work("a")
		if err := <-result; !errors.Is(err, errPassing) || err.Error() != "no reply of mongodb://u:***@h" {
			t.Errorf("got %v", err)
		}
	})
}

// broken is a registry that cannot be read.
type broken struct{}

func (broken) Gather() ([]*dto.MetricFamily, error) { return nil, errors.New("collected twice") }

// The metrics of one link cannot be read: those of the others are served.
func TestBrokenMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.set("a=1", "b=1")
		b.work("a")
		b.work("b")
		b.jobs["b"].show(View{Summary: func() Summary { return Summary{} }, Metrics: broken{}})
		code, body := get(b, prometheus.NewRegistry(), "/metrics")
		if code != http.StatusOK || !strings.Contains(body, `lag{a="1",link="a",z="2"} 0`+"\n") {
			t.Errorf("%d %s", code, body)
		}
	})
}

// Two scrapes at the same time do not write the same labels: the race detector tells.
func TestScrapedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.set("a=1")
		b.work("a")
		own := prometheus.NewRegistry()
		var scrapes sync.WaitGroup
		for range 2 {
			scrapes.Go(func() { get(b, own, "/metrics") })
		}
		scrapes.Wait()
		b.jobs["a"].mu.Lock()
		links := b.jobs["a"].view.Metrics
		b.jobs["a"].mu.Unlock()
		families, err := links.Gather()
		for _, f := range families {
			for _, l := range f.GetMetric()[0].GetLabel() {
				if f.GetName() == "leads" && l.GetValue() != "in the target" {
					t.Errorf("the link's own metric now has %s, %v", l, err)
				}
			}
		}
	})
}
