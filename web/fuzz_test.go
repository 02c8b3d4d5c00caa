package web

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
)

// FuzzBody: no body makes the decoder panic, and what it takes is what the body says, within its
// bounds.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{pauses, `{"kind":"throttle","why":"x","args":{"copyOpsPerSecond":null}}`, `{"kind":"a"}{}`, `{"KIND":"a"}`, `{"kind":"a","kind":"b"}`, `{"args":[]}`, "\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, refused := decode(bytes.NewReader(body))
		if refused != nil {
			if refused.code < 400 || refused.code > 499 || refused.text == "" {
				t.Errorf("%+v", refused)
			}
			return
		}
		var said map[string]json.RawMessage
		if err := json.Unmarshal(body, &said); err != nil {
			t.Fatalf("taken, and no object: %v", err)
		}
		for name := range said {
			if !strings.EqualFold(name, "kind") && !strings.EqualFold(name, "why") && !strings.EqualFold(name, "args") {
				t.Errorf("taken with %q", name)
			}
		}
		if r.Kind == "" || len(r.Why) > maxWhy || r.Args != nil && (!json.Valid(r.Args) || r.Args[0] != '{') {
			t.Errorf("%+v", r)
		}
	})
}

// FuzzRequest: whatever the method, address, Host, Origin, token and body, the server answers, only an authorized
// client makes a change, and nothing is served under a path with two spellings.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/status?pretty", "localhost", "", "", "", "")
	f.Add("POST", "/requests", "127.0.0.1:9216", "http://127.0.0.1:9216", "application/json", "", pauses)
	f.Add("POST", "/link/a/requests", "[::1]:9216", "null", "text/plain", "Bearer x", pauses)
	f.Add("POST", "/requests", "evil.example", "http://evil.example", "application/json", "Bearer 0123456789abcdef", pauses)
	f.Add("GET", "/link/../status", "localhost:1", "", "", "", "")
	f.Add("GET", "/..%2fstatus", "localhost", "", "", "", "")
	f.Add("HEAD", "//events", "localhost", "", "", "", "")
	f.Fuzz(func(t *testing.T, method, target, host, origin, kind, auth, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") || strings.Contains(u.Path, "/events") {
			return // net/http refuses it before; streams do not end
		}
		requests := &asked{}
		cfg := config(requests)
		cfg.Find = func(string) (Link, error) { return cfg.Link, nil }
		s := server(t, cfg)
		r := (&http.Request{
			Method: method, URL: u, RequestURI: target, Host: host, RemoteAddr: "127.0.0.1:1", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Origin": {origin}, "Content-Type": {kind}, "Authorization": {auth}}, Body: http.NoBody,
		}).WithContext(t.Context())
		if body != "" {
			r.Body = readCloser{strings.NewReader(body)}
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 599 {
			t.Errorf("code %d", w.Code)
		}
		if w.Code < 300 && (u.RawPath != "" || path.Clean(u.Path) != u.Path && path.Clean(u.Path)+"/" != u.Path) {
			t.Errorf("%q is answered: %d", target, w.Code)
		}
		if len(requests.list) > 0 {
			name := hostOf(host)
			if own, err := url.Parse(origin); method != http.MethodPost || name != "localhost" && !strings.HasPrefix(name, "127.") && !strings.Contains(name, ":") ||
				origin != "" && (err != nil || own.Host != host) {
				t.Errorf("%s %s of %q from %q: %+v", method, target, host, origin, requests.list)
			}
		}
	})
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }
