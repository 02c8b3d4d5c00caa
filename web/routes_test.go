package web

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestRoutes: what each address answers.
func TestRoutes(t *testing.T) {
	t.Parallel()
	cfg := config(&asked{})
	away := config(&asked{err: errAway})
	away.Ready = func() error { return errors.New("starting") }
	away.Link.Health = func() (bool, string) { return false, "broken\n" }
	away.Links = func(context.Context) (any, error) { return nil, errAway }
	away.Link.History = nil
	for _, tt := range []struct {
		of     Config
		target string
		code   int
		kind   string
		want   string
	}{
		{cfg, "/", 200, "text/plain; charset=utf-8", "POST /requests"},
		{cfg, "/status", 200, "application/json", `{"link":"l","lag":null}` + "\n"},
		{cfg, "/status?pretty", 200, "application/json", "\n  \"lag\": null\n"},
		{cfg, "/healthz", 200, "text/plain; charset=utf-8", "good\n"},
		{away, "/healthz", 503, "text/plain; charset=utf-8", "broken\n"},
		{cfg, "/readyz", 200, "text/plain; charset=utf-8", "ready\n"},
		{away, "/readyz", 503, "text/plain; charset=utf-8", "starting\n"},
		{cfg, "/history", 200, "application/json", `"1h0m0s"`},
		{cfg, "/history?range=24h", 200, "application/json", `"24h0m0s"`},
		{cfg, "/history?range=25h", 400, "application/json", `{"error":"range is 1h, 6h or 24h"}`},
		{away, "/history", 404, "text/plain; charset=utf-8", ""},
		{cfg, "/requests", 200, "application/json", `["one"]`},
		{away, "/requests", 503, "application/json", errAway.Error()},
		{cfg, "/links", 200, "application/json", `["l"]`},
		{away, "/links", 503, "application/json", errAway.Error()},
		{cfg, "/metrics", 200, "", ""},
		{cfg, "/openapi.json", 200, "application/json", `"3.1.0"`},
		{cfg, "/nothing", 404, "text/plain; charset=utf-8", ""},
		{cfg, "/debug/pprof/", 404, "text/plain; charset=utf-8", ""},
		{cfg, "/link/l/status", 404, "text/plain; charset=utf-8", ""},
	} {
		w := call{target: tt.target}.to(t, server(t, tt.of))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) || tt.kind != "" && w.Header().Get("Content-Type") != tt.kind {
			t.Errorf("%s: %d %s %s", tt.target, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %v", tt.target, w.Header())
		}
	}
}

// TestPage: the page is served where a process has one, for each of its links too.
func TestPage(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("page of " + r.URL.Path)) })
	cfg.Find = func(name string) (Link, error) {
		switch name {
		case "a":
			return Link{Status: func() any { return snapshot{Link: "a"} }}, nil
		case "starting":
			return Link{}, errors.New("starting: waits for room")
		}
		return Link{}, ErrNoLink
	}
	s := server(t, cfg)
	for target, want := range map[string]string{
		"/": "200 page of /", "/fleet": "200 page of /fleet", "/page/x.js": "200 page of /page/x.js",
		"/link/a/": "200 page of /", "/link/a/page/x.js": "200 page of /page/x.js", "/link/b/": "404 {", "/link/b/page/x.js": "404 {",
		"/link/a": "307 ", "/link/a/status": `200 {"link":"a"`, "/status/a": `200 {"link":"a"`, "/link/b/status": `404 {"error":"no such link"}`,
		"/link/starting/status": `503 {"error":"starting: waits for room"}`, "/link/a/history": "404 {", "/link/a/requests": "404 {", "/link/a/healthz": "404 {",
		"/link/starting/events": "503 {", "/link/b/events": "404 {", "/link/a/metrics": "404 ",
	} {
		w := call{target: target}.to(t, s)
		if got := strconv.Itoa(w.Code) + " " + w.Body.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}
