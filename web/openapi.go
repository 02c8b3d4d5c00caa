package web

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types describe what the functions of a [Config] and a [Link] return: a value of each type, or nil
// where it can be anything.
type Types struct {
	// Status is that of the top, LinkStatus that of /link/NAME/status.
	Status, LinkStatus       any
	History, Links, Requests any
}

// object is a JSON object.
type object = map[string]any

func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.document()) }

// document describes the interface, as OpenAPI 3.1.
func (s *Server) document() object {
	schemas := &schemas{defs: object{
		"Error":   object{"type": "object", "required": []string{"error"}, "properties": object{"error": object{"type": "string"}}},
		"Asked":   object{"type": "object", "required": []string{"id"}, "properties": object{"id": object{"type": "string"}}},
		"OpenAPI": object{"type": "object", "required": []string{"openapi", "info", "paths"}},
		"Request": object{
			"type": "object", "required": []string{"kind"}, "additionalProperties": false,
			"properties": object{
				"kind": object{"type": "string", "minLength": 1},
				"why":  object{"type": "string", "maxLength": maxWhy},
				"args": object{"type": []string{"object", "null"}},
			},
		},
	}}
	t := &s.cfg.Types
	schemas.name("Status", t.Status)
	schemas.name("LinkStatus", t.LinkStatus)
	schemas.name("History", t.History)
	schemas.name("Links", t.Links)
	schemas.name("Requests", t.Requests)
	paths := object{}
	for _, r := range s.table() {
		if !r.absent {
			add(paths, r.path, &r, r.answers.schema, false)
		}
	}
	if s.cfg.Find != nil {
		for _, r := range s.linkTable(nil, Link{}) {
			schema := r.answers.schema
			if schema == "Status" {
				schema = "LinkStatus"
				add(paths, "/status/{link}", &r, schema, true)
			}
			add(paths, "/link/{link}"+r.path, &r, schema, true)
		}
	}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": s.cfg.Title, "version": s.cfg.Version, "description": "See docs/http.md. Unknown values are null. Clients must ignore fields that they do not know."},
		"paths":   paths,
		"components": object{
			"schemas":         schemas.defs,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
	}
}

// add adds an operation.
func add(paths object, path string, r *route, schema string, ofLink bool) {
	item, _ := paths[path].(object)
	if item == nil {
		item = object{}
		paths[path] = item
	}
	okCode, kind := http.StatusOK, "text/plain"
	content := object{"schema": object{"type": "string"}}
	switch {
	case schema != "":
		kind, content = "application/json", object{"schema": ref(schema)}
	case r.path == "/events":
		kind = "text/event-stream"
	}
	op := object{"summary": r.summary}
	if r.method == http.MethodPost {
		okCode = http.StatusAccepted
		op["security"] = []object{{"token": []string{}}, {}}
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": ref("Request")}}}
	}
	replies := object{strconv.Itoa(okCode): object{"description": "as asked", "content": object{kind: content}}}
	if r.answers.fails != 0 && kind == "text/plain" {
		replies[strconv.Itoa(r.answers.fails)] = object{"description": "why not", "content": object{kind: content}}
	}
	replies["default"] = object{"description": "why it was not answered", "content": object{"application/json": object{"schema": ref("Error")}}}
	op["responses"] = replies
	if list := parameters(r, ofLink); len(list) > 0 {
		op["parameters"] = list
	}
	item[strings.ToLower(r.method)] = op
}

func parameters(r *route, ofLink bool) []object {
	var list []object
	text := func(name, in string, schema object) {
		schema["type"] = "string"
		list = append(list, object{"name": name, "in": in, "required": in == "path", "schema": schema})
	}
	if ofLink {
		text("link", "path", object{})
	}
	switch r.path {
	case "/history":
		text("range", "query", object{"enum": []string{"1h", "6h", "24h"}, "default": "1h"})
	case "/events":
		text("Last-Event-ID", "header", object{})
	case "/status":
		text("pretty", "query", object{})
	}
	return list
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// schemas are the JSON schemas of Go types.
type schemas struct {
	defs  object
	names map[reflect.Type]string
}

// name adds the schema of a value's type under a name.
func (s *schemas) name(name string, v any) {
	if v == nil {
		s.defs[name] = object{}
		return
	}
	if s.names == nil {
		s.names = map[reflect.Type]string{}
	}
	t := reflect.TypeOf(v)
	s.names[t] = name
	s.defs[name] = s.fields(t)
}

var (
	timeType   = reflect.TypeFor[time.Time]()
	marshaler  = reflect.TypeFor[json.Marshaler]()
	rawMessage = reflect.TypeFor[json.RawMessage]()
)

// of returns the schema of a type.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t == rawMessage, t.Implements(marshaler), t.Kind() == reflect.Interface:
		return object{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return object{"anyOf": []object{s.of(t.Elem()), {"type": "null"}}}
	case reflect.Struct:
		return s.named(t)
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	default:
		return object{"type": "integer"}
	}
}

// named returns a reference to the schema of a struct, which it adds. Two types of the same name
// get two.
func (s *schemas) named(t reflect.Type) object {
	if name, ok := s.names[t]; ok {
		return ref(name)
	}
	if t.Name() == "" {
		return s.fields(t)
	}
	name := t.Name()
	for n := 2; s.defs[name] != nil; n++ {
		name = t.Name() + strconv.Itoa(n)
	}
	s.names[t] = name
	s.defs[name] = object{} // it may contain itself
	s.defs[name] = s.fields(t)
	return ref(name)
}

// fields returns the schema of a struct, or of any other type.
func (s *schemas) fields(t reflect.Type) object {
	if t.Kind() != reflect.Struct || t == timeType || t.Implements(marshaler) {
		return s.of(t)
	}
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous && name == "" || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		of := f.Type
		optional := strings.Contains(opts, "omitempty") || strings.Contains(opts, "omitzero")
		if optional && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		properties[name] = s.of(of)
		if !optional {
			required = append(required, name)
		}
	}
	slices.Sort(required)
	return object{"type": "object", "properties": properties, "required": required}
}
