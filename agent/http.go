package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const index = `replicator agent

/status       the links of this process, as JSON; /status?pretty for people
/status/LINK  what one of them is doing
/healthz      200 while the process works, whatever its links do
/readyz       200 while it takes part, 503 and why while it does not
/metrics      for Prometheus
`

// Status is what the agent shows of itself.
type Status struct {
	Version   string    `json:"version"`
	Member    string    `json:"member"`
	StartedAt time.Time `json:"startedAt"`
	At        time.Time `json:"at"`
	// Ready is false while the process takes part in nothing, for this reason.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// MaxLinks is how many links it runs at the most.
	MaxLinks int `json:"maxLinks"`
	// FileLinks is how many links the file had when it was last read, FileAt when that was.
	// FileError is why it could not be read since.
	FileLinks int       `json:"fileLinks"`
	FileAt    time.Time `json:"fileAt"`
	FileError string    `json:"fileError,omitempty"`
	// Links are those that the process is to run, by name.
	Links []LinkStatus `json:"links"`
}

// LinkStatus is the state of one link.
type LinkStatus struct {
	Link string `json:"link"`
	// Term is that of the assignment, Assigned when it was made.
	Term     int64     `json:"term"`
	Assigned time.Time `json:"assigned"`
	State    State     `json:"state"`
	Since    time.Time `json:"since"`
	Why      string    `json:"why,omitempty"`
	// Run is the link's own state, nil while it does not run.
	Run *Brief `json:"run,omitempty"`
	// Failures counts the ends with an error, of which LastFailure is the last. NextTry is when
	// it starts again.
	Failures    int        `json:"failures"`
	LastFailure *Failure   `json:"lastFailure,omitempty"`
	NextTry     *time.Time `json:"nextTry,omitempty"`
}

// Status returns the state of the process and its links.
func (a *Agent) Status() Status {
	a.mu.Lock()
	s := Status{
		Version: a.cfg.Version, Member: a.cfg.Member, StartedAt: a.started.UTC(), At: time.Now().UTC(), MaxLinks: a.cfg.Max,
		FileLinks: len(a.links), FileAt: a.loaded.UTC(), FileError: a.fault, Links: []LinkStatus{},
	}
	jobs := a.sortedJobs()
	a.mu.Unlock()
	err := a.ready()
	if s.Ready = err == nil; !s.Ready {
		s.Reason = err.Error()
	}
	for _, j := range jobs {
		s.Links = append(s.Links, j.status())
	}
	return s
}

func (a *Agent) ready() error {
	if a.cfg.Ready == nil {
		return nil
	}
	return a.cfg.Ready()
}

// sortedJobs returns the jobs by name. The caller has a.mu.
func (a *Agent) sortedJobs() []*job {
	list := make([]*job, 0, len(a.jobs))
	for _, j := range a.jobs {
		list = append(list, j)
	}
	slices.SortFunc(list, func(x, y *job) int { return strings.Compare(x.name, y.name) })
	return list
}

func (j *job) status() LinkStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := LinkStatus{
		Link: j.name, Term: j.term, Assigned: j.since.UTC(), State: j.state, Since: j.entered.UTC(), Why: j.why,
		Failures: j.failures, LastFailure: j.failure,
	}
	if !j.nextTry.IsZero() {
		next := j.nextTry.UTC()
		s.NextTry = &next
	}
	if j.view != nil {
		b := j.view.Brief()
		s.Run = &b
	}
	return s
}

// Handler serves the state of the process and of its links, and their metrics with those of own.
// It answers GET only.
//
// /healthz answers 200 whatever the links do: to restart the process for the sake of one would
// end the others. Its text names the links that are not healthy. /readyz answers 503 while
// Config.Ready says so.
func (a *Agent) Handler(own prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, index) })
	mux.HandleFunc("/status", a.serveStatus)
	mux.HandleFunc("/status/{link}", a.serveLink)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, a.sentence()) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.ready(); err != nil {
			text(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		text(w, http.StatusOK, "ready\n")
	})
	// What one link cannot show must not hide the others.
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.GathererFunc(func() ([]*family, error) { return a.gather(own) }),
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelError)}))
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

func (a *Agent) serveStatus(w http.ResponseWriter, r *http.Request) {
	write := json.Marshal
	if r.URL.Query().Has("pretty") {
		write = func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }
	}
	body, err := write(a.Status())
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

// serveLink serves the status of one link.
func (a *Agent) serveLink(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	j := a.jobs[r.PathValue("link")]
	a.mu.Unlock()
	if j == nil {
		text(w, http.StatusNotFound, "this process does not run that link: replicator agent status says which one does\n")
		return
	}
	j.mu.Lock()
	view := j.view
	j.mu.Unlock()
	if view == nil {
		s := j.status()
		text(w, http.StatusServiceUnavailable, s.sentence())
		return
	}
	view.Status.ServeHTTP(w, r)
}

// sentence describes the process in a line for each thing that is wrong.
func (a *Agent) sentence() string {
	s := a.Status()
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d of at most %d links\n", s.Member, len(s.Links), s.MaxLinks)
	if s.FileError != "" {
		out.WriteString("the links file could not be read again: " + s.FileError + "\n")
	}
	for i := range s.Links {
		if l := &s.Links[i]; l.State != Running || l.Run != nil && !l.Run.Healthy {
			out.WriteString(l.sentence())
		}
	}
	return out.String()
}

func (l *LinkStatus) sentence() string {
	out := fmt.Sprintf("%s: %s", l.Link, l.State)
	if l.Why != "" {
		out += ": " + l.Why
	}
	if l.State == Ended && l.LastFailure != nil {
		out += fmt.Sprintf(" (exit code %d). %s", l.LastFailure.Code, l.LastFailure.Do)
	}
	if l.Run != nil && !l.Run.Healthy {
		out += ": " + l.Run.Verdict
		if l.Run.Next != "" {
			out += ". Next: " + l.Run.Next
		}
	}
	return out + "\n"
}
