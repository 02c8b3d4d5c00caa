package serverquery

import (
	"errors"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxDepth is the server's limit on nested documents in a filter.
const maxDepth = 200

func badValue(format string, args ...any) error {
	return servererr.New(servererr.BadValue, format, args...)
}

func failedToParse(format string, args ...any) error {
	return servererr.New(servererr.FailedToParse, format, args...)
}

func notImplemented(format string, args ...any) error {
	return servererr.New(servererr.NotImplemented, format+" is not implemented", args...)
}

// validate refuses invalid BSON: callers pass on clients' documents.
func validate(doc []byte) error {
	if err := rawbson.Validate(doc); err != nil {
		return servererr.New(servererr.InvalidBSON, "%s", err)
	}
	return nil
}

// refusal makes a refusal of an error of the expressions.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e
	}
	return servererr.New(servererr.InvalidBSON, "%s", err)
}
