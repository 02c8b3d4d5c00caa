package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/web"
)

// Status is the state of the agent.
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
	Run *Summary `json:"run,omitempty"`
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
		b := j.view.Summary()
		s.Run = &b
	}
	return s
}

// Web serves the process: its state and that of its links, and their metrics with those of
// own.
//
// /healthz answers 200 whatever the links do: to restart the process for the sake of one would
// end the others. Its text names the links that are not healthy. /readyz answers 503 while
// Config.Ready says so.
func (a *Agent) Web(own prometheus.Gatherer) web.Config {
	return web.Config{
		Title: "replicator agent",
		Link: web.Link{
			Status: func() any { return a.Status() },
			Health: func() (bool, string) { return true, a.sentence() },
		},
		Find: a.Link, Ready: a.ready, Log: a.cfg.Log,
		// A link that cannot be shown must not hide the others.
		Metrics: prometheus.GathererFunc(func() ([]*family, error) { return a.gather(own) }), MetricsPartly: true,
	}
}

// Link returns the view of one link of the process. Its error is a [web.ErrNoLink], or says why there
// is nothing to show.
func (a *Agent) Link(name string) (web.Link, error) {
	a.mu.Lock()
	j := a.jobs[name]
	a.mu.Unlock()
	if j == nil {
		return web.Link{}, fmt.Errorf("%w in this process: replicator agent status says which one has it", web.ErrNoLink)
	}
	j.mu.Lock()
	view := j.view
	j.mu.Unlock()
	if view == nil {
		s := j.status()
		return web.Link{}, errors.New(strings.TrimSpace(s.Sentence()))
	}
	return view.Link, nil
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
			out.WriteString(l.Sentence())
		}
	}
	return out.String()
}

// Sentence describes the link in a line.
func (l *LinkStatus) Sentence() string {
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
