package browser

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/web/page"
)

//go:embed testdata/base.json
var baseJSON string

// base is when base.json is of: its times are moved so that it is of now.
var base = time.Date(2026, 11, 24, 14, 2, 8, 200e6, time.UTC)

// object is JSON.
type object = map[string]any

// state returns the Snapshot of base.json, changed: a path of names, each followed by its value. The
// path must be there, but for its last name with a "+" before it.
func state(changes ...any) object {
	var s object
	if err := json.Unmarshal([]byte(baseJSON), &s); err != nil {
		panic(err)
	}
	for i := 0; i < len(changes); i += 2 {
		at, names := s, strings.Split(changes[i].(string), ".")
		for _, name := range names[:len(names)-1] {
			at = at[name].(object)
		}
		last := names[len(names)-1]
		name, added := strings.CutPrefix(last, "+")
		if _, ok := at[name]; ok == added {
			panic(fmt.Sprintf("base.json and the path %s: there is %v", changes[i], ok))
		}
		if changes[i+1] == missing {
			delete(at, name)
		} else {
			at[name] = changes[i+1]
		}
	}
	return s
}

// missing deletes a field.
const missing = "\x00missing"

var rfc3339 = regexp.MustCompile(`"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z"`)

// moved returns the JSON of v, with all times moved from base to now.
func moved(v any, now time.Time) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return rfc3339.ReplaceAllStringFunc(string(text), func(t string) string {
		at, err := time.Parse(time.RFC3339Nano, t[1:len(t)-1])
		if err != nil {
			panic(err)
		}
		return `"` + at.Add(now.Sub(base)).UTC().Format(time.RFC3339Nano) + `"`
	})
}

// fixture is a server with canned answers.
type fixture struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex // guards the rest
	state    object
	history  object
	links    any
	token    string        // wanted of POST, if not empty
	requests []object      // POSTed, as they came
	stored   []any         // the requests of a state without control, as the target has them
	changed  chan struct{} // closed when state has changed
	events   []string      // sent to all streams that are open, in order
	mute     bool          // streams say nothing
	still    time.Time     // statuses are of then, if not zero
	streams  int           // opened so far
}

// serve starts a server with the page.
func serve(t testing.TB, s object) *fixture {
	f := &fixture{t: t, state: s, history: historyOf("1h"), changed: make(chan struct{})}
	f.Server = httptest.NewServer(f.handler())
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) stop() {
	f.Server.CloseClientConnections()
	f.Server.Close()
}

// set changes the answers.
func (f *fixture) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fixture) handler() http.Handler {
	mux := http.NewServeMux()
	static := page.Handler()
	for _, pattern := range []string{"/{$}", "/fleet", "/page/"} {
		mux.Handle(pattern, static)
	}
	mux.HandleFunc("GET /events", f.serveEvents)
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		h := f.history
		if span := r.URL.Query().Get("range"); span != "1h" {
			h = historyOf(span)
		}
		// The points end now, as the server's do, however long the page took to ask.
		step := int64(h["stepSeconds"].(int))
		h["from"] = (time.Now().Unix()/step - points + 1) * step
		answer(w, http.StatusOK, h)
	})
	mux.HandleFunc("GET /links", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		answer(w, http.StatusOK, f.links)
	})
	mux.HandleFunc("GET /requests", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if control, ok := f.state["control"].(object); ok {
			answer(w, http.StatusOK, control["requests"])
			return
		}
		answer(w, http.StatusOK, f.stored)
	})
	mux.HandleFunc("POST /requests", f.take)
	return mux
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(moved(v, time.Now())))
}

// take records a request, and puts it into the Snapshot as asked.
func (f *fixture) take(w http.ResponseWriter, r *http.Request) {
	var body object
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("Content-Type") != "application/json" {
		answer(w, http.StatusBadRequest, object{"error": fmt.Sprintf("the body: %v", err)})
		return
	}
	f.mu.Lock()
	token := f.token
	f.mu.Unlock()
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		answer(w, http.StatusUnauthorized, object{"error": "a token is wanted"})
		return
	}
	id := ""
	f.set(func() {
		f.requests = append(f.requests, body)
		id = fmt.Sprint(100 + len(f.requests))
		f.outcome(object{
			"id": id, "kind": body["kind"], "by": "page", "why": body["why"], "args": body["args"],
			"at": base.Format(time.RFC3339Nano), "state": "asked",
		})
	})
	answer(w, http.StatusAccepted, object{"id": id})
}

// outcome puts a request into the Snapshot, in place of the one of the same id. The fixture is locked.
func (f *fixture) outcome(r object) {
	control, ok := f.state["control"].(object)
	was := f.stored
	if ok {
		was = control["requests"].([]any)
	}
	list := []any{r}
	for _, old := range was {
		if old.(object)["id"] != r["id"] {
			list = append(list, old)
		}
	}
	if ok {
		control["requests"] = list
	} else {
		f.stored = list
	}
}

// serveEvents is a stream: the state, each second and on each change, and the events.
func (f *fixture) serveEvents(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	f.mu.Lock()
	f.streams++
	sent := len(f.events)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		now, changed, out := time.Now(), f.changed, ""
		if !f.mute {
			if !f.still.IsZero() {
				now = f.still
			}
			out = "event: status\ndata: " + moved(f.state, now) + "\n\n"
			for ; sent < len(f.events); sent++ {
				out += "event: event\ndata: " + f.events[sent] + "\n\n"
			}
		}
		f.mu.Unlock()
		if _, err := w.Write([]byte(out)); err != nil || flush.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// points are those of a history.
const points = 360

// historyOf returns a history with a busy hour in it.
func historyOf(span string) object {
	seconds := map[string]int{"1h": 3600, "6h": 21600, "24h": 86400}[span]
	step := seconds / points
	wave := func(mean, swing, period, spike float64) []any {
		out := make([]any, points)
		for i := range out {
			x := float64(i)
			v := mean + swing*math.Sin(x/period) + swing/3*math.Sin(x*1.7)
			if d := x - 210; d > 0 && d < 60 {
				v += spike * math.Sin(d/60*math.Pi)
			}
			if i >= 95 && i < 108 { // the process was not there
				out[i] = nil
				continue
			}
			out[i] = math.Max(0, math.Round(v*1000)/1000)
		}
		return out
	}
	none := make([]any, points)
	at := func(ago time.Duration) string { return base.Add(-ago).Format(time.RFC3339Nano) }
	return object{
		"at": at(0), "stepSeconds": step,
		"series": object{
			"lagSeconds": wave(0.4, 0.2, 20, 42), "oldestUnappliedSeconds": wave(0.8, 0.3, 20, 47),
			"latencyP50Seconds": wave(0.02, 0.006, 31, 20), "latencyP95Seconds": wave(0.09, 0.02, 27, 37), "latencyP99Seconds": wave(0.3, 0.1, 22, 45),
			"insertsPerSecond": wave(400, 80, 33, -250), "updatesPerSecond": wave(730, 120, 41, -400), "deletesPerSecond": wave(58, 20, 17, -30), "commandsPerSecond": wave(0.1, 0.1, 9, 0),
			"bytesPerSecond": wave(1.4e6, 3e5, 37, -9e5), "bufferBytes": wave(1.2e6, 4e5, 29, 2.3e8), "spoolBytes": wave(0, 0, 1, 8e8),
			"oplogWindowSeconds": wave(93900, 300, 100, -4000), "copyDocs": none, "copyBytes": none, "copyEtaSeconds": none,
		},
		"events": []any{
			object{"id": 1000, "at": at(46 * time.Minute), "level": "INFO", "kind": "control", "message": "paused", "fields": object{"by": "mira", "why": "replace the disk of dr1", "request": "17"}},
			object{"id": 1001, "at": at(44 * time.Minute), "level": "INFO", "kind": "lease", "message": "lease acquired", "fields": object{"term": "12", "process": "mirror-2/4711", "before": "mirror-1/902"}},
			object{"id": 1002, "at": at(31 * time.Minute), "level": "INFO", "kind": "source", "message": "sync source chosen", "fields": object{"from": "db3.prod:27017", "to": "db2.prod:27017", "why": "closest member of those that are caught up (1.1 ms)"}},
			object{"id": 1003, "at": at(24 * time.Minute), "level": "WARN", "kind": "target", "message": "the target is slow: flow control", "fields": object{"side": "target", "for": "31 s"}},
			object{"id": 1004, "at": at(13 * time.Minute), "level": "INFO", "kind": "ddl", "message": "create index applied", "fields": object{"namespace": "shop.orders", "index": "email_1", "deferred": "unique"}},
			object{"id": 1005, "at": at(4 * time.Minute), "level": "ERROR", "kind": "target", "message": "attempt ended", "fields": object{"error": "applier: write dr0: connection to dr1.backup:27017 closed by the server"}},
		},
	}
}
