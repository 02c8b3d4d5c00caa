package command

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/bucket"
)

// parameter is a server parameter.
type parameter struct {
	// get appends the value under the name.
	get func(s *Server, buf []byte, name string) []byte
	// kind is the type of what setParameter takes: only of parameters that change
	// nothing here. None means that it is not settable.
	kind bson.Type
	// on is the first value of a settable switch.
	on bool
	// runtime and startup say when the server itself takes values.
	runtime, startup bool
}

// parameters are those that this server knows of the server's hundreds: what
// drivers, shells and replicators ask for, with values that are true here.
var parameters = map[string]parameter{
	"authenticationMechanisms": {get: func(_ *Server, buf []byte, name string) []byte {
		return appendTexts(buf, name, []string{"SCRAM-SHA-1", "SCRAM-SHA-256"})
	}, startup: true},
	"authSchemaVersion": {get: fixed(int32(5))},
	"enableFlowControl": {get: fixed(false), runtime: true, startup: true},
	"enableTestCommands": {get: func(s *Server, buf []byte, name string) []byte {
		return bsoncore.AppendBooleanElement(buf, name, s.cfg.TestCommands)
	}, startup: true},
	"enableMajorityReadConcern": {get: fixed(true), startup: true},
	"featureCompatibilityVersion": {get: func(s *Server, buf []byte, name string) []byte {
		return bsoncore.AppendDocumentElement(buf, name, bsoncore.Document(s.fcvDocument()))
	}},
	"localLogicalSessionTimeoutMinutes": {get: fixed(int32(sessionTimeoutMinutes)), startup: true},
	"logLevel":                          {kind: bson.TypeInt32, runtime: true, startup: true},
	"notablescan":                       {get: fixed(false), runtime: true, startup: true},
	"quiet":                             {kind: bson.TypeBoolean, runtime: true, startup: true},
	"timeseriesBucketMaxCount":          {get: fixed(int32(bucket.MaxCount)), startup: true},
	"timeseriesBucketMaxSize":           {get: fixed(int32(bucket.MaxBytes)), startup: true},
	"traceExceptions":                   {kind: bson.TypeBoolean, runtime: true, startup: true},
	"transactionLifetimeLimitSeconds": {get: func(s *Server, buf []byte, name string) []byte {
		return bsoncore.AppendInt32Element(buf, name, int32(s.cfg.TransactionLifetime.Seconds()))
	}, runtime: true, startup: true},
	"ttlMonitorEnabled": {kind: bson.TypeBoolean, on: true, runtime: true, startup: true},
}

// fixed is a parameter's value that never changes.
func fixed[T int32 | bool](value T) func(*Server, []byte, string) []byte {
	return func(_ *Server, buf []byte, name string) []byte {
		switch v := any(value).(type) {
		case int32:
			return bsoncore.AppendInt32Element(buf, name, v)
		case bool:
			return bsoncore.AppendBooleanElement(buf, name, v)
		}
		return buf
	}
}

// appendParameter appends a parameter's value under a field's name.
func (s *Server) appendParameter(buf []byte, field, name string, p *parameter) []byte {
	if p.get != nil {
		return p.get(s, buf, field)
	}
	value := s.setValue(name, p)
	return append(bsoncore.AppendHeader(buf, bsoncore.Type(value.Type), field), value.Value...)
}

// setValue is the value of a settable parameter: that of setParameter, or its first.
func (s *Server) setValue(name string, p *parameter) bson.RawValue {
	s.stats.mu.Lock()
	value, ok := s.stats.parameters[name]
	s.stats.mu.Unlock()
	switch {
	case ok:
		return value
	case p.kind == bson.TypeBoolean:
		return bson.RawValue{Type: p.kind, Value: bsoncore.AppendBoolean(nil, p.on)}
	}
	return bson.RawValue{Type: p.kind, Value: make([]byte, 4)}
}

// flag is the value of a settable switch.
func (s *Server) flag(name string) bool {
	p := parameters[name]
	on, ok := s.setValue(name, &p).BooleanOK()
	return ok && on
}

func runGetParameter(_ context.Context, r *request, out *reply) error {
	first := firstElem(r.cmd)
	all, details := false, false
	if text, ok := first.Text(); ok && text == "*" {
		all = true
	} else if doc, ok := first.Document(); ok {
		e, _ := rawbson.Lookup(doc, "showDetails")
		details, _ = e.Bool()
		e, _ = rawbson.Lookup(doc, "allParameters")
		all, _ = e.Bool()
	}
	found := false
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if _, asked := rawbson.Lookup(r.cmd, name); !asked && !all {
			continue
		}
		p := parameters[name]
		found = true
		if !details {
			out.Buf = r.srv.appendParameter(out.Buf, name, name, &p)
			continue
		}
		i, buf := bsoncore.AppendDocumentElementStart(out.Buf, name)
		buf = r.srv.appendParameter(buf, "value", name, &p)
		buf = bsoncore.AppendBooleanElement(buf, "settableAtRuntime", p.runtime)
		buf = bsoncore.AppendBooleanElement(buf, "settableAtStartup", p.startup)
		out.Buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	}
	if !found {
		return servererr.New(servererr.InvalidOptions, "no option found to get")
	}
	return nil
}

// genericNames are arguments that every command may have and that are no
// parameters.
var genericNames = map[string]bool{
	"lsid": true, "txnNumber": true, "maxTimeMS": true, "readConcern": true, "writeConcern": true, "comment": true,
	"apiVersion": true, "apiStrict": true, "help": true,
}

// runSetParameter sets parameters, all or none. The reply has the former value of
// the last.
func runSetParameter(_ context.Context, r *request, out *reply) error {
	changes := map[string]bson.RawValue{}
	it := rawbson.NewIter(r.cmd)
	it.Next()
	for it.Next() {
		name := it.Name()
		if strings.HasPrefix(name, "$") || ignoredArguments[name] || genericNames[name] {
			continue
		}
		p, value, err := settable(&it.Elem)
		if err != nil {
			return err
		}
		changes[string(it.Key)] = value
		out.Buf = r.srv.appendParameter(out.Buf[:4], "was", name, p)
	}
	if len(changes) == 0 {
		return servererr.New(servererr.InvalidOptions, "no option found to set, use help:true to see options ")
	}
	r.srv.stats.mu.Lock()
	defer r.srv.stats.mu.Unlock()
	if r.srv.stats.parameters == nil {
		r.srv.stats.parameters = map[string]bson.RawValue{}
	}
	maps.Copy(r.srv.stats.parameters, changes)
	return nil
}

// settable reads a new value of a parameter, or refuses it.
func settable(e *rawbson.Elem) (*parameter, bson.RawValue, error) {
	p, ok := parameters[e.Name()]
	var value bson.RawValue
	switch {
	case !ok:
		return nil, value, servererr.New(servererr.InvalidOptions,
			"attempted to set unrecognized parameter [%s], use help:true to see options ", e.Name())
	case !p.runtime:
		return nil, value, servererr.New(servererr.IllegalOperation, "not allowed to change [%s] at runtime", e.Name())
	case p.kind == 0:
		return nil, value, servererr.New(servererr.NotImplemented, "setting the parameter %s is not implemented here", e.Name())
	case p.kind == bson.TypeBoolean:
		value = bson.RawValue{Type: p.kind, Value: []byte{0}}
		if e.Truth() {
			value.Value[0] = 1
		}
		return &p, value, nil
	}
	n, isNumber := e.Int64()
	if !isNumber || n < 0 || n > 5 {
		return nil, value, servererr.New(servererr.BadValue, "Invalid value for %s: %s", e.Name(), bsontext.Value(e.Raw()))
	}
	return &p, bson.RawValue{Type: p.kind, Value: bsoncore.AppendInt32(nil, int32(n))}, nil
}
