package dispatch

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/bucket"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Parameter is a server parameter.
type Parameter struct {
	// get appends the value under the name.
	get func(s *Server, buf []byte, name string) []byte
	// Kind is the type of what setParameter takes: only of parameters that change
	// nothing here. None means that it is not settable.
	Kind bson.Type
	// on is the first value of a settable switch, first that of a settable number.
	on    bool
	first int32
	// Runtime and startup say when the server itself takes values.
	Runtime, Startup bool
}

const maxBuilds = "maxNumActiveUserIndexBuilds"

// Parameters are the supported ones of the server's hundreds: those that
// drivers, shells and replicators read, with values that are true here.
var Parameters = map[string]Parameter{
	"authenticationMechanisms": {get: func(_ *Server, buf []byte, name string) []byte {
		return AppendTexts(buf, name, []string{"SCRAM-SHA-1", "SCRAM-SHA-256"})
	}, Startup: true},
	"authSchemaVersion":         {get: fixed(int32(5))},
	"enableFlowControl":         {get: fixed(false), Runtime: true, Startup: true},
	"enableTestCommands":        {get: fixed(true), Startup: true},
	"enableMajorityReadConcern": {get: fixed(true), Startup: true},
	"featureCompatibilityVersion": {get: func(s *Server, buf []byte, name string) []byte {
		return bsoncore.AppendDocumentElement(buf, name, bsoncore.Document(s.FCVDocument()))
	}},
	"localLogicalSessionTimeoutMinutes": {get: fixed(int32(SessionTimeoutMinutes)), Startup: true},
	"logLevel":                          {Kind: bson.TypeInt32, Runtime: true, Startup: true},
	maxBuilds:                           {Kind: bson.TypeInt32, first: 3, Runtime: true, Startup: true},
	"notablescan":                       {get: fixed(false), Runtime: true, Startup: true},
	"quiet":                             {Kind: bson.TypeBoolean, Runtime: true, Startup: true},
	"timeseriesBucketMaxCount":          {get: fixed(int32(bucket.MaxCount)), Startup: true},
	"timeseriesBucketMaxSize":           {get: fixed(int32(bucket.MaxBytes)), Startup: true},
	"traceExceptions":                   {Kind: bson.TypeBoolean, Runtime: true, Startup: true},
	"transactionLifetimeLimitSeconds": {get: func(s *Server, buf []byte, name string) []byte {
		return bsoncore.AppendInt32Element(buf, name, int32(s.Config.TransactionLifetime.Seconds()))
	}, Runtime: true, Startup: true},
	"ttlMonitorEnabled": {Kind: bson.TypeBoolean, on: true, Runtime: true, Startup: true},
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

// AppendParameter appends a parameter's value under a field's name.
func (s *Server) AppendParameter(buf []byte, field, name string, p *Parameter) []byte {
	if p.get != nil {
		return p.get(s, buf, field)
	}
	value := s.setValue(name, p)
	return append(bsoncore.AppendHeader(buf, bsoncore.Type(value.Type), field), value.Value...)
}

// setValue is the value of a settable parameter: that of setParameter, or its first.
func (s *Server) setValue(name string, p *Parameter) bson.RawValue {
	s.Stats.Mu.Lock()
	value, ok := s.Stats.Parameters[name]
	s.Stats.Mu.Unlock()
	switch {
	case ok:
		return value
	case p.Kind == bson.TypeBoolean:
		return bson.RawValue{Type: p.Kind, Value: bsoncore.AppendBoolean(nil, p.on)}
	}
	return bson.RawValue{Type: p.Kind, Value: bsoncore.AppendInt32(nil, p.first)}
}

// flag is the value of a settable switch.
func (s *Server) flag(name string) bool {
	p := Parameters[name]
	on, ok := s.setValue(name, &p).BooleanOK()
	return ok && on
}

// FCVDocument is the present document, without its _id. If the set did not save
// one it is the version that the server was made with.
func (s *Server) FCVDocument() bson.Raw {
	var doc bson.Raw
	_ = s.Config.Store.Read(func(r *storage.Reader) error { // reading does not fail
		_, rec, ok := FCVRecord(r.View(bson.Timestamp{}))
		if ok {
			doc = slices.Clone(rec.Doc)
		}
		return nil
	})
	if doc == nil {
		return bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "version", s.fcvText()))
	}
	it := rawbson.NewIter(doc)
	var rest []byte
	for it.Next() {
		if !it.Is("_id") {
			rest = arg.Append(rest, it.Name(), &it.Elem)
		}
	}
	return bsoncore.BuildDocument(nil, rest)
}

// fcvText is the feature compatibility version that the server was made with.
func (s *Server) fcvText() string { return strconv.Itoa(s.FCV[0]) + "." + strconv.Itoa(s.FCV[1]) }

// The feature compatibility version is a document, which is logged like any other:
//
//	{_id: "featureCompatibilityVersion", version: "5.0"}
//
// On the way to another version it has a targetVersion as well, and, downwards, a
// previousVersion; version is the lower of the two then. VersionNS and VersionID are where it is.
const (
	VersionNS = oplog.Namespace("admin.system.version")
	VersionID = "featureCompatibilityVersion"
)

// FCVRecord finds the document in a view.
func FCVRecord(v storage.View) (*storage.Collection, storage.Record, bool) {
	coll, ok := v.Collection(VersionNS)
	if !ok {
		return nil, storage.Record{}, false
	}
	rec, ok := coll.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, VersionID)})
	return coll, rec, ok
}
