package web

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestBodies: which bodies are requests, and their outcome.
func TestBodies(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxWhy)
	for body, tt := range map[string]struct {
		code int
		want string // the request that is asked for, or the error
	}{
		`{"kind": "pause"}`: {202, "pause, ,"},
		`{"kind": "pause", "why": "a \"reason\"", "args": {"a": [1, null]}}`: {202, `pause, a "reason", {"a": [1, null]}`},
		`{"kind": "pause", "args": null}`:                                    {202, "pause, ,"},
		` {"kind":"pause","args": {} } ` + "\n":                              {202, "pause, , {}"},
		`{"kind": "pause", "why": "` + long + `"}`:                           {202, "pause, " + long},
		`{"kind": "pause", "why": "` + long + `x"}`:                          {400, "longer than 1024 bytes"},
		`{"kind": "pause", "by": "root"}`:                                    {400, `unknown field \"by\"`},
		`{"kind": "pause"} {"kind": "resume"}`:                               {400, "something follows"},
		`{"kind": "pause"}]`:                                                 {400, "something follows"},
		`{"kind": ""}`:                                                       {400, `no \"kind\"`},
		`{}`:                                                                 {400, `no \"kind\"`},
		`null`:                                                               {400, `no \"kind\"`},
		`[{"kind": "pause"}]`:                                                {400, "cannot unmarshal array"},
		`"pause"`:                                                            {400, "cannot unmarshal string"},
		`{"kind": 1}`:                                                        {400, "cannot unmarshal number"},
		`{"kind": "pause", "args": [1]}`:                                     {400, `\"args\" is not an object`},
		`{"kind": "pause", "args": "x"}`:                                     {400, `\"args\" is not an object`},
		`{"kind": "pause"`:                                                   {400, "unexpected EOF"},
		`kind=pause`:                                                         {400, "invalid character"},
		``:                                                                   {400, "EOF"},
		`{"kind": "dance"}`:                                                  {400, "refused: no such kind"},
		`{"kind": "late"}`:                                                   {503, errAway.Error()},
		`{"kind": "pause", "args": {"x": "` + strings.Repeat("y", bodyBytes) + `"}}`: {413, "larger than 64 KiB"},
		`{"kind": "pause"}` + strings.Repeat(" ", bodyBytes):                         {413, "larger than 64 KiB"},
	} {
		requests := &choosy{}
		w := call{method: http.MethodPost, target: "/requests", body: body, header: map[string]string{"Content-Type": "application/json"}}.to(t, server(t, config(requests)))
		if w.Code != tt.code {
			t.Errorf("%.50s: %d %s", body, w.Code, w.Body)
		}
		if tt.code != http.StatusAccepted {
			if !strings.Contains(w.Body.String(), tt.want) || len(requests.list) > 0 {
				t.Errorf("%.50s: %s, %+v", body, w.Body, requests.list)
			}
			continue
		}
		if r := requests.list[0]; len(requests.list) != 1 || !strings.HasPrefix(fmt.Sprintf("%s, %s, %s", r.Kind, r.Why, r.Args), tt.want) {
			t.Errorf("%.50s: %+v", body, requests.list)
		}
	}
}

// choosy refuses one kind, and cannot store another.
type choosy struct{ asked }

func (c *choosy) Ask(ctx context.Context, r Request) (string, error) {
	switch r.Kind {
	case "dance":
		return "", fmt.Errorf("%w: no such kind", ErrRefused)
	case "late":
		return "", errAway
	}
	return c.asked.Ask(ctx, r)
}

// waiting never answers of itself.
type waiting struct{ entered chan struct{} }

func (w *waiting) Ask(ctx context.Context, _ Request) (string, error) {
	w.entered <- struct{}{}
	<-ctx.Done()
	return "", fmt.Errorf("ask: %w", context.Cause(ctx))
}

func (w *waiting) List(ctx context.Context) (any, error) { return w.Ask(ctx, Request{}) }

// TestTargetAway: a target that does not answer costs a bounded number of requests a bounded time.
func TestTargetAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := &waiting{entered: make(chan struct{})}
		s := server(t, config(requests))
		began := time.Now()
		var all sync.WaitGroup
		post := call{method: http.MethodPost, target: "/requests", body: pauses, header: map[string]string{"Content-Type": "application/json"}}
		for i := range maxAsking {
			c := post
			if i%2 == 0 {
				c = call{target: "/requests"}
			}
			all.Go(func() {
				if w := c.to(t, s); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "deadline") || w.Header().Get("Retry-After") == "" {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
			<-requests.entered
		}
		for _, c := range []call{post, {target: "/requests"}} {
			if w := c.to(t, s); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "too many") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		all.Wait()
		if took := time.Since(began); took != askTimeout {
			t.Errorf("it took %s", took)
		}
		if w := (call{target: "/status"}).to(t, s); w.Code != http.StatusOK || len(s.asking) != 0 {
			t.Errorf("%d, %d places are taken", w.Code, len(s.asking))
		}
	})
}

// TestMemo: concurrent calls ask once, and the answer, or error, is kept for a short time. The question
// does not end with the first caller.
func TestMemo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemo()
		asked := 0
		ask := func(ctx context.Context) (any, error) {
			asked++
			time.Sleep(time.Second)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if asked == 2 {
				return nil, errAway
			}
			return asked, nil
		}
		gone, leave := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		for i := range 50 {
			ctx := t.Context()
			if i == 0 {
				ctx = gone
			}
			all.Go(func() {
				if v, err := m.get(ctx, ask); v != 1 || err != nil {
					t.Errorf("%v, %v", v, err)
				}
			})
			synctest.Wait()
		}
		errGone := errors.New("gone")
		leave(errGone)
		if _, err := m.get(gone, ask); !errors.Is(err, errGone) {
			t.Errorf("who has gone waits: %v", err)
		}
		all.Wait()
		for _, want := range []any{1, nil, 3} {
			for range 2 {
				v, err := m.get(t.Context(), ask)
				if v != want || (err == nil) != (want != nil) {
					t.Errorf("%v, %v; want %v", v, err, want)
				}
			}
			time.Sleep(memoFor)
		}
	})
}

// TestGzip: large answers are compressed for clients that accept that.
func TestGzip(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	text := strings.Repeat("x", gzipFrom)
	cfg.Link.Status = func() any { return text }
	for accepts, want := range map[string]bool{"": false, "gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0": false, "br": false, "x-gzip": false} {
		w := call{target: "/status", header: map[string]string{"Accept-Encoding": accepts}}.to(t, server(t, cfg))
		var body io.Reader = w.Body
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("%q: %v", accepts, w.Header())
		} else if got {
			body = must.Get(gzip.NewReader(body))(t)
		}
		if got := string(must.Get(io.ReadAll(body))(t)); got != `"`+text+"\"\n" {
			t.Errorf("%q: %d bytes", accepts, len(got))
		}
	}
}

// TestUnmarshalable: what cannot be JSON is an error, not an empty answer.
func TestUnmarshalable(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Link.Status = func() any { return func() {} }
	if w := (call{target: "/status"}).to(t, server(t, cfg)); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "write /status as JSON") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
