package mongo

import (
	"bytes"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// WriteError is the error of one statement of a write command.
type WriteError struct {
	// Index is the statement's index in the command.
	Index int
	servererr.Error
}

// quietField is for how long a server that is shutting down will still answer, in
// milliseconds.
const quietField = "remainingQuiesceTimeMillis"

// Check returns the *servererr.Error of a reply, nil if the command succeeded.
func Check(reply bson.Raw) error {
	if ok, found := rawbson.Lookup(reply, "ok"); found && ok.Truth() {
		return nil
	}
	e := readError(reply, "errmsg")
	// A member that is shutting down returns quietField with the error.
	if quiet, err := reply.LookupErr(quietField); err == nil && e.Info == nil {
		e.Info = bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, quietField,
			bsoncore.Value{Type: bsoncore.Type(quiet.Type), Data: quiet.Value}))
	}
	return e
}

// Written returns how many documents a write command inserted, matched or deleted,
// according to its reply. If statements failed it returns the error of the first one,
// whose Info is a copy of the element of writeErrors, with the key of a duplicate.
func Written(reply bson.Raw) (int64, error) {
	var n int64
	var found bool
	it := rawbson.NewIter(reply)
	for it.Next() {
		switch {
		case it.Is("n"):
			n, found = it.Int64()
		case it.Is("writeErrors"):
			refused, err := WriteErrors(reply)
			if err != nil {
				return 0, err
			}
			if len(refused) > 0 {
				if doc, ok := reply.Lookup("writeErrors", "0").DocumentOK(); ok {
					refused[0].Info = bytes.Clone(doc)
				}
				return 0, &refused[0].Error
			}
		}
	}
	switch err := it.Err(); {
	case err != nil:
		return 0, fmt.Errorf("read the reply to a write: %w", err)
	case !found:
		return 0, errors.New("read the reply to a write: it has no n")
	}
	return n, nil
}

// WriteErrors returns the errors of the statements of a write command.
func WriteErrors(reply bson.Raw) ([]WriteError, error) {
	v, err := reply.LookupErr("writeErrors")
	if err != nil {
		return nil, nil //nolint:nilerr // The field is absent where nothing was refused.
	}
	list, ok := v.ArrayOK()
	if !ok {
		return nil, fmt.Errorf("read writeErrors of a reply: not an array but %s", v.Type)
	}
	values, err := list.Values()
	if err != nil {
		return nil, fmt.Errorf("read writeErrors of a reply: %w", err)
	}
	out := make([]WriteError, 0, len(values))
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return nil, fmt.Errorf("read writeErrors of a reply: an element is %s", v.Type)
		}
		index, ok := doc.Lookup("index").AsInt64OK()
		if !ok {
			return nil, errors.New("read writeErrors of a reply: an element has no index")
		}
		out = append(out, WriteError{Index: int(index), Error: *readError(doc, "errmsg")})
	}
	return out, nil
}

// ConcernError returns the write concern error of a reply, nil if there is none. The
// write was executed, but its write concern is not known to be satisfied.
func ConcernError(reply bson.Raw) *servererr.Error {
	doc, ok := reply.Lookup("writeConcernError").DocumentOK()
	if !ok {
		return nil
	}
	return readError(doc, "errmsg")
}

// readError reads the code, message and labels of a document.
func readError(doc bson.Raw, message string) *servererr.Error {
	e := &servererr.Error{}
	if code, ok := doc.Lookup("code").AsInt64OK(); ok {
		e.Code = servererr.Code(code)
	}
	e.Message, _ = doc.Lookup(message).StringValueOK()
	if info, ok := doc.Lookup("errInfo").DocumentOK(); ok {
		e.Info = info
	}
	if labels, ok := doc.Lookup("errorLabels").ArrayOK(); ok {
		values, _ := labels.Values()
		for _, v := range values {
			if s, ok := v.StringValueOK(); ok {
				e.Labels = append(e.Labels, s)
			}
		}
	}
	return e
}
