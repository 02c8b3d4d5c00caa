package dispatch

import (
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// stableCommands are the commands of version 1 of the server's stable API.
var stableCommands = map[string]bool{
	"abortTransaction": true, "aggregate": true, "collMod": true, "commitTransaction": true,
	"count": true, "create": true, "createIndexes": true, "delete": true, "drop": true, "dropDatabase": true,
	"dropIndexes": true, "endSessions": true, "explain": true, "find": true, "findAndModify": true, "getMore": true,
	"hello": true, "insert": true, "killCursors": true, "listCollections": true, "listDatabases": true,
	"listIndexes": true, "ping": true, "refreshSessions": true, "saslContinue": true, "saslStart": true, "update": true,
}

// parseAPIVersion refuses versions of the stable API other than the only one.
func (r *Request) parseAPIVersion(e *rawbson.Elem) error {
	version, ok := e.Text()
	if !ok {
		return WrongType("APIParametersFromClient", "apiVersion", e.Type, "string")
	}
	if version != "1" {
		return servererr.New(servererr.APIVersionError, "API version must be \"1\"")
	}
	return nil
}

// parseAPIStrict refuses commands outside of the stable API for clients that
// require it. Options and stages are not checked.
func (r *Request) parseAPIStrict(e *rawbson.Elem) error {
	strict, ok := e.Bool()
	if !ok {
		return WrongType("APIParametersFromClient", "apiStrict", e.Type, "bool")
	}
	if !strict || stableCommands[r.Spec.Name] {
		return nil
	}
	return servererr.New(servererr.APIStrictError, "Provided apiStrict:true, but the command %s is not in API Version 1. "+
		"Information on supported commands and migrations in API Version 1 can be found at "+
		"https://dochub.mongodb.org/core/manual-versioned-api", r.Name)
}
