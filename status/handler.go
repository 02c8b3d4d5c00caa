package status

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

const index = `replicator

/status    what the link is doing, as JSON; /status?pretty for people
/healthz   200 while it does what it should, 503 and why while it does not
/metrics   for Prometheus
`

// Handler serves a Tracker's snapshot and the metrics of a registry, which must be
// the Tracker's. It answers GET only.
//
// /healthz answers 503, and says why, if
//   - the link is stale, failed or stopped, or starting for longer than
//     a minute,
//   - attempts have failed for a minute and nothing was applied or copied since the first,
//   - nothing was applied for two minutes although there is something to apply, and no
//     server is known to be waited for,
//   - a collection could not be copied again, and is left out,
//   - the source has not answered for longer than a minute,
//   - a process that stands by could not look at the lease for longer than a minute,
//   - the spool is full for longer than a minute: the log is not
//     read meanwhile, and may roll over,
//   - the source's oplog rolls over in less than two minutes: at its
//     current pace the oldest entry will pass the position from which a restart
//     would read. An oplog whose whole window is shorter than that counts too.
//
// All but the first and the silence are for alerting an operator; restarting the program does not
// help, nor does it harm the copy, which resumes. A copy that is throttled, or not consistent yet,
// is healthy, and so is a process that stands by otherwise.
func Handler(t *Tracker, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, index)
	})
	mux.HandleFunc("/status", t.serveStatus)
	mux.HandleFunc("/healthz", t.serveHealth)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			text(w, http.StatusMethodNotAllowed, "only GET is answered\n")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// text answers with a text. Write errors are ignored: the client has gone.
func text(w http.ResponseWriter, code int, body string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

func (t *Tracker) serveStatus(w http.ResponseWriter, r *http.Request) {
	s := t.Snapshot()
	var body []byte
	var err error
	if r.URL.Query().Has("pretty") {
		body, err = json.MarshalIndent(s, "", "  ")
	} else {
		body, err = json.Marshal(s)
	}
	if err != nil {
		text(w, http.StatusInternalServerError, fmt.Sprintf("write the status as JSON: %v\n", err))
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n'))
}

func (t *Tracker) serveHealth(w http.ResponseWriter, _ *http.Request) {
	s := t.Snapshot()
	code := http.StatusOK
	if !s.Healthy() {
		code = http.StatusServiceUnavailable
	}
	text(w, code, s.Verdict.lines()+s.sentence())
}

// Healthy reports whether /healthz answers 200. It is for a Snapshot of a Tracker: the JSON
// form does not have it.
func (s *Snapshot) Healthy() bool { return !s.unwell }

// lines are the verdict, what to do, and what else is not good.
func (v *Verdict) lines() string {
	out := string(v.Level) + ": " + v.Sentence + "\n"
	if v.Next != "" {
		out += "next: " + v.Next + "\n"
	}
	if len(v.Also) > 0 {
		out += "also: " + strings.Join(v.Also, "\nalso: ") + "\n"
	}
	return out
}

// failedCollections returns the collections that are left out and no longer
// retried.
func (s *Snapshot) failedCollections() []string {
	var list []string
	for i := range s.LeftOut {
		if s.LeftOut[i].Failed != "" {
			list = append(list, s.LeftOut[i].Namespace)
		}
	}
	return list
}

func ofSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// sentence describes the link in a few lines.
func (s *Snapshot) sentence() string {
	out := fmt.Sprintf("%s for %s", s.State, s.At.Sub(s.Since).Round(time.Second))
	if s.Reason != "" {
		out += ": " + s.Reason
	}
	out += "\n"
	if monitor.State(s.State) == monitor.Standby {
		return out // It knows nothing of the rest.
	}
	out += s.doubts()
	if s.LagSeconds != nil {
		out += fmt.Sprintf("lag %.3f s at the source's last reply, %.1f s ago\n", *s.LagSeconds, *s.Source.DataAgeSeconds)
	} else {
		out += "lag not known: no reply from the source in this attempt\n"
	}
	if s.LastError != nil {
		out += fmt.Sprintf("last error, %s ago: %s\n", s.At.Sub(s.LastError.At).Round(time.Second), s.LastError.Error)
	}
	return out
}

// Page serves a Tracker's snapshot as /status of [Handler] does.
func Page(t *Tracker) http.Handler { return http.HandlerFunc(t.serveStatus) }
