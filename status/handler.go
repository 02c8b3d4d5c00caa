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
//   - a collection could not be copied again, and is left out,
//   - the source has not answered for longer than a minute,
//   - the spool of a copy is full for longer than a minute: the log is not
//     read meanwhile, and may roll over,
//   - the source's oplog rolls over in less than two minutes: at its
//     current pace the oldest entry will pass the position from which a restart
//     would read. An oplog whose whole window is shorter than that counts too.
//
// All but the first and the silence are for alerting an operator; restarting the program does not
// help, nor does it harm the copy, which resumes. A copy that is throttled, or not consistent yet,
// is healthy.
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
	code, body := http.StatusOK, s.sentence()
	if !t.healthy(&s) {
		code = http.StatusServiceUnavailable
	}
	if silent := t.silence(&s); silent > silentGrace {
		code = http.StatusServiceUnavailable
		body += fmt.Sprintf("nothing was heard of the source for %s\n", silent.Round(time.Second))
	}
	if failed := s.failedCollections(); len(failed) > 0 {
		// The sentence says what to do about it.
		code = http.StatusServiceUnavailable
	}
	if short := t.shortages(&s); len(short) > 0 {
		code = http.StatusServiceUnavailable
		body += strings.Join(short, "\n") + "\n"
	}
	text(w, code, body)
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

// healthy reports whether the link is healthy; see [Handler].
func (t *Tracker) healthy(s *Snapshot) bool {
	switch monitor.State(s.State) {
	case monitor.InitialSync, monitor.CatchingUp, monitor.Steady:
		return true
	case monitor.Starting:
		return s.At.Sub(s.Since) < startingGrace
	default:
		return false
	}
}

// shortages returns the resources that run out: spool space, oplog window.
func (t *Tracker) shortages(s *Snapshot) []string {
	var list []string
	if s.Copy != nil && s.Copy.Spool != nil && s.Copy.Spool.FullSeconds != nil {
		if full := ofSeconds(*s.Copy.Spool.FullSeconds); full > fullGrace {
			list = append(list, fmt.Sprintf("the spool is full for %s: %s", full.Round(time.Second), s.Copy.Spool.Why))
		}
	}
	if s.OplogRolloverSeconds != nil {
		switch left := ofSeconds(*s.OplogRolloverSeconds); {
		case s.OplogWindowLeftSeconds != nil && *s.OplogWindowLeftSeconds <= 0:
			list = append(list, "the source's oplog has rolled over what is still to be read")
		case left < leastRollover:
			list = append(list, fmt.Sprintf("the source's oplog rolls over in about %s", left.Round(time.Second)))
		}
	}
	return list
}

func ofSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// silence returns the time since the source last answered, in any attempt.
func (t *Tracker) silence(s *Snapshot) time.Duration {
	t.mu.Lock()
	heard := t.heard
	t.mu.Unlock()
	if at := s.Source.HeardAt; at != nil && at.After(heard) {
		heard = *at
	}
	return s.At.Sub(heard)
}

// sentence describes the link in a few lines.
func (s *Snapshot) sentence() string {
	out := fmt.Sprintf("%s for %s", s.State, s.At.Sub(s.Since).Round(time.Second))
	if s.Reason != "" {
		out += ": " + s.Reason
	}
	out += "\n"
	out += s.doubts()
	if s.LagSeconds != nil {
		out += fmt.Sprintf("lag %.3f s when the source was last heard of, %.1f s ago\n", *s.LagSeconds, *s.Source.DataAgeSeconds)
	} else {
		out += "lag not known: nothing was heard of the source in this attempt\n"
	}
	if s.LastError != nil {
		out += fmt.Sprintf("last error, %s ago: %s\n", s.At.Sub(s.LastError.At).Round(time.Second), s.LastError.Error)
	}
	return out
}
