package status

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestHandler(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	tr := newTracker(t, Config{Version: "v", Link: "l", Registry: registry})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	p.set(busy)
	h := Handler(tr, registry)

	code, header, body := get(t, h, http.MethodGet, "/status")
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" || strings.Count(body, "\n") != 1 {
		t.Errorf("/status: %d %v\n%s", code, header, body)
	}
	_, _, pretty := get(t, h, http.MethodGet, "/status?pretty")
	if strings.Count(pretty, "\n") < 50 {
		t.Errorf("/status?pretty:\n%s", pretty)
	}
	for _, text := range []string{body, pretty} {
		var s Snapshot
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil || s.Link != "l" || *s.LagSeconds != 12.25 {
			t.Errorf("%v: %+v", err, s)
		}
	}
	if code, _, body := get(t, h, http.MethodGet, "/metrics"); code != http.StatusOK ||
		!strings.Contains(body, `replicator_state{state="catching-up"} 1`) || !strings.Contains(body, `replicator_state{state="steady"} 0`) ||
		!strings.Contains(body, "replicator_lag_seconds 12.25") || !strings.Contains(body, `replicator_optime_seconds{kind="source"} 1012`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
	if code, _, body := get(t, h, http.MethodGet, "/"); code != http.StatusOK || !strings.Contains(body, "/healthz") {
		t.Errorf("/: %d\n%s", code, body)
	}
	if code, _, _ := get(t, h, http.MethodGet, "/nothing"); code != http.StatusNotFound {
		t.Errorf("/nothing: %d", code)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions} {
		for _, path := range []string{"/", "/status", "/healthz", "/metrics"} {
			if code, header, _ := get(t, h, method, path); code != http.StatusMethodNotAllowed || header.Get("Allow") != http.MethodGet {
				t.Errorf("%s %s: %d, Allow %q", method, path, code, header.Get("Allow"))
			}
		}
	}
}

// TestServe: a request that is under way is answered when the end comes.
func TestServe(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived, answer := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-answer
		_, _ = io.WriteString(w, "there")
	})
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, h) }()
	got := make(chan string, 1)
	transport := &http.Transport{}
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+"/", http.NoBody)
		if err != nil {
			got <- err.Error()
			return
		}
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		var b bytes.Buffer
		_, _ = b.ReadFrom(res.Body)
		got <- b.String()
	}()
	<-arrived
	stop(nil)
	close(answer)
	if text := <-got; text != "there" {
		t.Errorf("got %q", text)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	transport.CloseIdleConnections()
	if _, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil {
		t.Error("it is still listened")
	}
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := Serve(t.Context(), ln, http.NotFoundHandler()); err == nil || !strings.HasPrefix(err.Error(), "status: serve on 127.0.0.1:") {
		t.Errorf("%v", err)
	}
}
