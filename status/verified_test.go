package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/verify/standing"
)

// TestMoreThanListed: collections that differ, or could not be compared, count although they are not listed.
func TestMoreThanListed(t *testing.T) {
	t.Parallel()
	st := &standing.Standing{Differences: 250, MoreUnchecked: 20, MoreDiffering: 150}
	for i := range 100 {
		st.Unchecked = append(st.Unchecked, standing.Collection{Why: "planted"})
		st.Differing = append(st.Differing, standing.Differing{NS: "d.c", Differences: int64(i)})
	}
	s := &Snapshot{Verified: NewVerified(st, time.Now())}
	values := map[string]float64{}
	gauge := func(_ *prometheus.Desc, value float64, labels ...string) { values[strings.Join(labels, " ")] = value }
	(&collector{}).collectVerified(s.Verified, gauge, func(*prometheus.Desc, *float64) {})
	if values["unchecked"] != 120 {
		t.Errorf("the metric: %v", values)
	}
	if text, _ := differs(s); !strings.Contains(text, "250 differences in d.c, d.c, d.c, d.c, d.c and 245 more") {
		t.Error(text)
	}
	if p := verifiedReady(s, &ReadinessLimits{}); !strings.Contains(fmt.Sprint(p), "and 245 more") {
		t.Errorf("%+v", p)
	}
}
