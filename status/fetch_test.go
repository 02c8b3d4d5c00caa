package status_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/status"
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
		s, err := status.Ask(t.Context(), server.Listener.Addr().String(), "dr", tt.process)
		server.Close()
		switch {
		case tt.want == "" && (err != nil || s.Link != "dr"):
			t.Errorf("%s: %v, link %q", tt.name, err, s.Link)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
