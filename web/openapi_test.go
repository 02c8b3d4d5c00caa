package web

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
)

// described is a server whose document is read.
type described struct {
	*testing.T
	s   *Server
	doc map[string]any
	c   *jsonschema.Compiler
}

// describe reads a server's own description of it. Objects with listed properties may have no others.
func describe(t *testing.T, cfg Config) *described {
	t.Helper()
	d := &described{T: t, s: server(t, cfg), c: jsonschema.NewCompiler()}
	w := call{target: "/openapi.json"}.to(t, d.s)
	doc := must.Get(jsonschema.UnmarshalJSON(w.Body))(t)
	d.doc, _ = doc.(map[string]any)
	if d.doc["openapi"] != "3.1.0" {
		t.Fatalf("%v", d.doc["openapi"])
	}
	closeObjects(d.doc["components"])
	must.Succeed(t, d.c.AddResource("openapi.json", doc))
	d.c.AssertFormat()
	return d
}

func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, listed := v["properties"].(map[string]any); listed && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		for _, child := range v {
			closeObjects(child)
		}
	case []any:
		for _, child := range v {
			closeObjects(child)
		}
	}
}

// at walks into the document.
func at(v any, path ...string) any {
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// schema compiles the schema at a place of the document.
func (d *described) schema(path ...string) *jsonschema.Schema {
	d.Helper()
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for i := range path {
		path[i] = escape.Replace(path[i])
	}
	return must.Get(d.c.Compile("openapi.json#/" + strings.Join(path, "/")))(d.T)
}

// answer checks an answer against the document.
func (d *described) answer(path string, c call) {
	d.Helper()
	w := c.to(d.T, d.s)
	place := []string{"paths", path, strings.ToLower(c.method), "responses", strconv.Itoa(w.Code)}
	if at(d.doc, place...) == nil {
		place[len(place)-1] = "default"
	}
	kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	place = append(place, "content", kind, "schema")
	if at(d.doc, place...) == nil {
		d.Errorf("%s %s answers %d %s, which is not described: %s", c.method, c.target, w.Code, kind, w.Body)
		return
	}
	var body any = w.Body.String()
	if kind == "application/json" {
		body = must.Get(jsonschema.UnmarshalJSON(w.Body))(d.T)
	}
	if err := d.schema(place...).Validate(body); err != nil {
		d.Errorf("%s %s: %v\n%.300v", c.method, c.target, err, body)
	}
}

// full fills a value with something everywhere.
func full(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		full(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1700000000, 5).UTC()))
			return
		}
		for _, field := range v.Fields() {
			if field.CanSet() {
				full(field)
			}
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"a": 1}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			full(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		element := reflect.New(v.Type().Elem()).Elem()
		full(element)
		v.SetMapIndex(reflect.ValueOf("a").Convert(v.Type().Key()), element)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	default:
	}
}

// filled returns a value with something in every field.
func filled[T any]() (v T) {
	full(reflect.ValueOf(&v).Elem())
	return v
}

// TestOpenAPI: the document and the handlers say the same: every route and method is in both, and
// what a handler answers is as the document says, whether it succeeds or fails.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	requests := &asked{}
	cfg := config(requests)
	cfg.Find = func(name string) (Link, error) {
		if name != "a" {
			return Link{}, ErrNoLink
		}
		return Link{
			Status: func() any { return filled[status.Snapshot]() }, Health: func() (bool, string) { return false, "broken\n" },
			History: func(time.Duration) (any, error) { return nil, errAway }, Requests: records{},
		}, nil
	}
	cfg.Link.Status = func() any { return filled[process]() }
	cfg.Types = Types{Status: process{}, LinkStatus: status.Snapshot{}, Links: []string{}, Requests: []request.Record{}}
	cfg.Link.Requests = records{}
	d := describe(t, cfg)
	paths, _ := d.doc["paths"].(map[string]any)
	var operations []string
	for path, item := range paths {
		for method := range item.(map[string]any) {
			operations = append(operations, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(operations)
	for _, op := range operations {
		method, path, _ := strings.Cut(op, " ")
		if path == "/events" || path == "/link/{link}/events" {
			continue // TestStream
		}
		for _, link := range []string{"a", "b"} {
			c := call{method: method, target: strings.ReplaceAll(path, "{link}", link)}
			if method == http.MethodPost {
				c.header, c.body = map[string]string{"Content-Type": "application/json"}, pauses
				d.answer(path, call{method: method, target: c.target, body: pauses}) // no type
			}
			d.answer(path, c)
		}
	}
	d.answer("/history", call{method: http.MethodGet, target: "/history?range=x"})
	// Every served path is described. Those of the page and of profiles are not part of the interface.
	for _, r := range append(d.s.table(), d.s.linkTable(nil, Link{})...) {
		if !r.absent && !slices.Contains(operations, r.method+" "+r.path) {
			t.Errorf("%s %s is not described", r.method, r.path)
		}
	}
	if len(operations) != len(d.s.table())+len(d.s.linkTable(nil, Link{}))+1 { // /status/{link}
		t.Errorf("%d operations: %q", len(operations), operations)
	}
}

// process is what a process of many links shows of itself.
type process struct {
	Member string    `json:"member"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
	Links  []struct {
		Link string           `json:"link"`
		Next *time.Time       `json:"next,omitempty"`
		Last map[string]int64 `json:"last"`
	} `json:"links"`
}

// records are requests with a list.
type records struct{}

func (records) List(context.Context) (any, error) {
	return []request.Record{filled[request.Record]()}, nil
}

func (records) Ask(_ context.Context, r Request) (string, error) { return r.Kind, nil }

// TestSnapshotSchema: the schema of a Snapshot has each of its fields, and says which may be null and
// which may be missing.
func TestSnapshotSchema(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Types.Status = status.Snapshot{}
	d := describe(t, cfg)
	schema := d.schema("components", "schemas", "Status")
	valid := func(change func(m map[string]any)) error {
		text := must.Get(json.Marshal(filled[status.Snapshot]()))(t)
		v := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
		change(v.(map[string]any))
		return schema.Validate(v)
	}
	for name, tt := range map[string]struct {
		change func(m map[string]any)
		ok     bool
	}{
		"as it is":                  {func(map[string]any) {}, true},
		"an unknown lag":            {func(m map[string]any) { m["lagSeconds"] = nil }, true},
		"no lag":                    {func(m map[string]any) { delete(m, "lagSeconds") }, false},
		"a lag in words":            {func(m map[string]any) { m["lagSeconds"] = "1" }, false},
		"no copy":                   {func(m map[string]any) { delete(m, "copy") }, true},
		"no state":                  {func(m map[string]any) { delete(m, "state") }, false},
		"the state is null":         {func(m map[string]any) { m["state"] = nil }, false},
		"a time that is none":       {func(m map[string]any) { m["at"] = "yesterday" }, false},
		"something else":            {func(m map[string]any) { m["wishes"] = 1 }, false},
		"attempts are no integer":   {func(m map[string]any) { m["attempts"] = 1.5 }, false},
		"a verdict without a level": {func(m map[string]any) { delete(m["verdict"].(map[string]any), "level") }, false},
	} {
		if err := valid(tt.change); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
