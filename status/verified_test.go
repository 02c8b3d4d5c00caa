package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
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
	text := string(must.Get(json.Marshal(s.Verified))(t))
	if !strings.Contains(text, `"moreUnchecked":20`) || !strings.Contains(text, `"moreDiffering":150`) {
		t.Error(text)
	}
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

// TestVerifiedListed: the readiness says which collections its number cannot be of: nothing lists those that were made
// since the last comparison of everything.
func TestVerifiedListed(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cut := standing.Cut{Source: bson.Timestamp{T: uint32(at.Unix())}, At: at} //nolint:gosec // a time of this century
	st := &standing.Standing{AsOf: &cut, Verified: 7, Collections: 7, New: 1}
	st.Round = standing.Round{N: 3, At: at.Add(20 * time.Second), Complete: 2, Last: &standing.Ended{From: at.Add(-time.Second), To: at.Add(time.Second)}}
	s := &Snapshot{Verified: NewVerified(st, at.Add(time.Minute))}
	const want = "7 collections, no difference, as of 2026-01-02 03:04:05 UTC; 1 new ones are not compared yet; those made since 2026-01-02 03:04:04 UTC may be missing"
	if p := verifiedReady(s, &ReadinessLimits{Verified: time.Hour}); p.Standing != Met || p.Value != want {
		t.Errorf("%+v, want %q", p, want)
	}
}

// TestVerifiedNew: the readiness says how many collections are not compared yet, as they are new, or could not be the last time.
func TestVerifiedNew(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cut := standing.Cut{Source: bson.Timestamp{T: uint32(at.Unix())}, At: at} //nolint:gosec // a time of this century
	for _, tt := range []struct {
		isNew, unchecked int
		want             string
	}{
		{0, 0, "7 collections, no difference, as of 2026-01-02 03:04:05 UTC"},
		{2, 0, "7 collections, no difference, as of 2026-01-02 03:04:05 UTC; 2 new ones are not compared yet"},
		{2, 1, "7 collections, no difference, as of 2026-01-02 03:04:05 UTC; 2 new ones are not compared yet; 1 could not be compared since"},
	} {
		st := &standing.Standing{AsOf: &cut, Verified: 7, Collections: 7, New: tt.isNew, Unchecked: make([]standing.Collection, tt.unchecked)}
		s := &Snapshot{Verified: NewVerified(st, at.Add(time.Minute))}
		if p := verifiedReady(s, &ReadinessLimits{Verified: time.Hour}); p.Standing != Met || p.Value != tt.want {
			t.Errorf("%+v, want %q", p, tt.want)
		}
	}
}

// TestForeignUnlisted: foreign writes to namespaces that are not listed need an operator, although those that are listed are copied
// again, or were.
func TestForeignUnlisted(t *testing.T) {
	t.Parallel()
	copying := []guard.Touched{{NS: "d.c", Source: "d.c", Count: 2, Copying: true}}
	for _, tt := range []struct {
		listed         []guard.Touched
		more           int64
		sentence, next string
	}{
		{nil, 0, "", ""},
		{copying, 0, "2 writes to d.c", "Wait until they are copied again."},
		{copying, 7, "9 writes to d.c, and to namespaces that are not listed", "guard"},
		{nil, 7, "7 writes to namespaces that are not listed", "guard"},
	} {
		s := &Snapshot{Link: "dr", State: string(monitor.Failed)}
		addGuard(s, &monitor.Snapshot{Guard: &guard.Status{Mode: guard.Alarm, State: guard.State{Touched: tt.listed, More: tt.more}}})
		ready := foreignReady(s, &ReadinessLimits{})
		if where := strings.TrimPrefix(ready.Value, "something else has written to "); tt.sentence != "" && !strings.HasSuffix(tt.sentence, where) {
			t.Errorf("%+v: %+v", tt, ready)
		}
		sentence, _ := foreign(s)
		if (sentence == "") != (tt.sentence == "") || !strings.Contains(sentence, tt.sentence) {
			t.Errorf("%+v: %q", tt, sentence)
		}
		if sentence == "" {
			continue
		}
		if next := dealWithForeign(s); !strings.Contains(next, tt.next) {
			t.Errorf("%+v: %q", tt, next)
		}
	}
}
