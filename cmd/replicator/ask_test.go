package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestAsk: only the status of the link that was asked for counts, of the process that runs it, in
// a form that is understood. A process that runs several links has one for each.
func TestAsk(t *testing.T) {
	t.Parallel()
	const dr = `{"link": "dr", "verdict": {"name": "steady"}, "lease": {"process": "vm:1:2:3"}}`
	for _, tt := range []struct {
		name, status, of string // what /status and /status/dr answer
		process, want    string
	}{
		{"the process", dr, "", "vm:1:2:3", ""},
		{"any process", dr, "", "", ""},
		{"another process", dr, "", "vm:1:2:4", "it is not the process vm:1:2:4"},
		{"another link", strings.ReplaceAll(dr, "dr", "up"), "", "", "404"},
		{"one of several links", `{"version": "1", "links": [{"link": "dr"}]}`, dr, "vm:1:2:3", ""},
		{"two other links", `{"version": "1"}`, strings.ReplaceAll(dr, "dr", "up"), "", "it does not run that link"},
		{"no verdict", `{"link": "dr", "state": "failed", "lease": {"process": "vm:1:2:3"}}`, "", "vm:1:2:3", "no verdict"},
		{"something else", "hello", "", "", "does not answer like a replicator"},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tt.status)) })
		if tt.of != "" {
			mux.HandleFunc("/status/dr", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(tt.of)) })
		}
		server := httptest.NewServer(mux)
		s, err := must.Get(newAsker(""))(t).ask(t.Context(), place{address: server.Listener.Addr().String()}, "dr", tt.process)
		server.Close()
		switch {
		case tt.want == "" && (err != nil || s.Link != "dr"):
			t.Errorf("%s: %v, link %q", tt.name, err, s.Link)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestPlacesOf: where a process may serve its status, by its id.
func TestPlacesOf(t *testing.T) {
	t.Parallel()
	for process, want := range map[string]string{
		"db-7.example.net:9200:1795465153:152acebb7e7747ab": "db-7.example.net:9200",
		"fe80::1:9200:1795465153:152acebb7e7747ab":          "[fe80::1]:9200",
		"db-7:agent-3:1795465153:152acebb7e7747ab":          "",
		"db-7:pid4711:1795465153:152acebb7e7747ab":          "",
		"db-7:70000:1795465153:152acebb7e7747ab":            "",
		"db-7:0:1795465153:152acebb7e7747ab":                "",
		"something":                                         "",
		"":                                                  "",
	} {
		var got []string
		for _, at := range placesOf(process) {
			got = append(got, at.address)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q", process, got)
		}
	}
}
