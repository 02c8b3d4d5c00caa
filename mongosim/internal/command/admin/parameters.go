package admin

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
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func runGetParameter(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	first := dispatch.FirstElem(r.Cmd)
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
	for _, name := range slices.Sorted(maps.Keys(dispatch.Parameters)) {
		if _, asked := rawbson.Lookup(r.Cmd, name); !asked && !all {
			continue
		}
		p := dispatch.Parameters[name]
		found = true
		if !details {
			out.Buf = r.Server.AppendParameter(out.Buf, name, name, &p)
			continue
		}
		i, buf := bsoncore.AppendDocumentElementStart(out.Buf, name)
		buf = r.Server.AppendParameter(buf, "value", name, &p)
		buf = bsoncore.AppendBooleanElement(buf, "settableAtRuntime", p.Runtime)
		buf = bsoncore.AppendBooleanElement(buf, "settableAtStartup", p.Startup)
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
func runSetParameter(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	changes := map[string]bson.RawValue{}
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	for it.Next() {
		name := it.Name()
		if strings.HasPrefix(name, "$") || dispatch.IgnoredArguments[name] || genericNames[name] {
			continue
		}
		p, value, err := settable(&it.Elem)
		if err != nil {
			return err
		}
		changes[string(it.Key)] = value
		out.Buf = r.Server.AppendParameter(out.Buf[:4], "was", name, p)
	}
	if len(changes) == 0 {
		return servererr.New(servererr.InvalidOptions, "no option found to set, use help:true to see options ")
	}
	r.Server.Stats.Mu.Lock()
	defer r.Server.Stats.Mu.Unlock()
	if r.Server.Stats.Parameters == nil {
		r.Server.Stats.Parameters = map[string]bson.RawValue{}
	}
	maps.Copy(r.Server.Stats.Parameters, changes)
	return nil
}

// settable reads a new value of a parameter, or refuses it.
func settable(e *rawbson.Elem) (*dispatch.Parameter, bson.RawValue, error) {
	p, ok := dispatch.Parameters[e.Name()]
	var value bson.RawValue
	switch {
	case !ok:
		return nil, value, servererr.New(servererr.InvalidOptions,
			"attempted to set unrecognized parameter [%s], use help:true to see options ", e.Name())
	case !p.Runtime:
		return nil, value, servererr.New(servererr.IllegalOperation, "not allowed to change [%s] at runtime", e.Name())
	case p.Kind == 0:
		return nil, value, servererr.New(servererr.NotImplemented, "setting the parameter %s is not implemented here", e.Name())
	case p.Kind == bson.TypeBoolean:
		value = bson.RawValue{Type: p.Kind, Value: []byte{0}}
		if e.Truth() {
			value.Value[0] = 1
		}
		return &p, value, nil
	}
	n, isNumber := e.Int64()
	if !isNumber || n < 0 || n > 5 {
		return nil, value, servererr.New(servererr.BadValue, "Invalid value for %s: %s", e.Name(), bsontext.Value(e.Raw()))
	}
	return &p, bson.RawValue{Type: p.Kind, Value: bsoncore.AppendInt32(nil, int32(n))}, nil
}
