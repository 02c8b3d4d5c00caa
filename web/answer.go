package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// gzipFrom is the size from which answers are compressed.
const gzipFrom = 4 << 10

// answers are what a route answers: the name of the type of its JSON, empty for text, and the code
// of its errors, 0 for none.
type answers struct {
	schema string
	fails  int
}

// text answers with a text. Write errors are ignored: the client has gone.
func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, body)
}

// answer answers with JSON, indented for ?pretty.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, v any) {
	body, err := json.Marshal(v)
	if err == nil && r.URL.Query().Has("pretty") {
		var out bytes.Buffer
		err = json.Indent(&out, body, "", "  ")
		body = out.Bytes()
	}
	if err != nil {
		text(w, http.StatusInternalServerError, fmt.Sprintf("write %s as JSON: %v\n", r.URL.Path, err))
		return
	}
	s.send(w, r, http.StatusOK, body)
}

// send sends JSON.
func (s *Server) send(w http.ResponseWriter, r *http.Request, code int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	body = append(body, '\n')
	if len(body) < gzipFrom || !takesGzip(r) {
		w.WriteHeader(code)
		_, _ = w.Write(body)
		return
	}
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	w.WriteHeader(code)
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	_, _ = z.Write(body)
	_ = z.Close()
}

// takesGzip reports whether a client takes compressed answers.
func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.TrimSpace(name) == "gzip" {
			q := strings.ReplaceAll(quality, " ", "")
			return q != "q=0" && !strings.HasPrefix(q, "q=0.0")
		}
	}
	return false
}

// refuse answers with the reason why a request is not answered.
func (s *Server) refuse(w http.ResponseWriter, why *refusal) {
	s.metrics.refused.WithLabelValues(why.kind).Inc()
	if why.code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="replicator"`)
	}
	fault(w, why.code, why.text)
}

// fail answers that something that has to be asked does not answer.
func (s *Server) fail(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "2")
	fault(w, http.StatusServiceUnavailable, err.Error())
}

// nothing answers that a link has no such thing.
func (s *Server) nothing(w http.ResponseWriter) {
	fault(w, http.StatusNotFound, "not found")
}

// noLink answers that there is no such link, or why it has nothing to show.
func (s *Server) noLink(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrNoLink) {
		fault(w, http.StatusNotFound, err.Error())
		return
	}
	s.fail(w, err)
}

// fault answers with an error.
func fault(w http.ResponseWriter, code int, why string) {
	body, _ := json.Marshal(struct {
		Error string `json:"error"`
	}{strings.ToValidUTF8(why, "?")})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// decode reads the body of a request: {"kind": …, "why": …, "args": {…}}.
func decode(body io.Reader) (Request, *refusal) {
	var in struct {
		Kind string          `json:"kind"`
		Why  string          `json:"why"`
		Args json.RawMessage `json:"args"`
	}
	bad := func(format string, args ...any) (Request, *refusal) {
		return Request{}, &refusal{http.StatusBadRequest, "body", "the body is not a request: " + fmt.Sprintf(format, args...)}
	}
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(&in)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
			if e, ok := errors.AsType[*http.MaxBytesError](more); ok {
				err = e
			}
		}
	}
	switch _, large := errors.AsType[*http.MaxBytesError](err); {
	case large:
		return Request{}, &refusal{http.StatusRequestEntityTooLarge, "body", fmt.Sprintf("the body is larger than %d KiB", bodyBytes>>10)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Request{}, &refusal{http.StatusRequestTimeout, "body", "the body did not arrive in time"}
	case err != nil:
		return bad("%v", err)
	case in.Kind == "":
		return bad(`there is no "kind"`)
	case len(in.Why) > maxWhy:
		return bad(`"why" is longer than %d bytes`, maxWhy)
	}
	args := bytes.TrimSpace(in.Args)
	if len(args) > 0 && !bytes.Equal(args, []byte("null")) {
		if args[0] != '{' {
			return bad(`"args" is not an object`)
		}
	} else {
		args = nil
	}
	return Request{Kind: in.Kind, Why: in.Why, Args: args}, nil
}

// maxWhy bounds the reason of a request.
const maxWhy = 1 << 10

// memo keeps an answer for a short time, so that many clients cost the target one read.
type memo struct {
	// turn has one place, for the client whose request reads, and guards the rest.
	turn  chan struct{}
	at    time.Time
	value any
	err   error
}

// memoFor is how long an answer is kept.
const memoFor = 5 * time.Second

func newMemo() *memo { return &memo{turn: make(chan struct{}, 1)} }

// get returns the answer of ask, or the one that is kept.
func (m *memo) get(ctx context.Context, ask func(context.Context) (any, error)) (any, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	if !m.at.IsZero() && time.Since(m.at) < memoFor {
		return m.value, m.err
	}
	// Others wait for the same answer: it does not end with the first client.
	ctx, cancel := context.WithTimeout(lifeOf(ctx), askTimeout)
	defer cancel()
	m.value, m.err = ask(ctx)
	m.at = time.Now()
	return m.value, m.err
}
