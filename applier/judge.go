package applier

import (
	"errors"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
)

// The dispositions of an error of a flush.
const (
	end     = mongo.End     // of the attempt
	again   = mongo.Again   // the same flush, later
	smaller = mongo.Smaller // less at once
	single  = mongo.Other   // one operation is at fault
)

func asServerError(err error) (*servererr.Error, bool) {
	return errors.AsType[*servererr.Error](err)
}

// isStop reports whether an error is final and names its operation.
func isStop(err error) bool {
	_, diverged := errors.AsType[*DivergenceError](err)
	_, unique := errors.AsType[*UniqueError](err)
	_, refused := errors.AsType[*OpError](err)
	_, stuck := errors.AsType[*StuckError](err)
	return diverged || unique || refused || stuck
}

// judge returns the disposition of an error of a flush or of a commit.
func judge(err error) mongo.Disposition {
	if errors.Is(err, lease.ErrFenced) || errors.Is(err, lease.ErrRewound) || isStop(err) {
		return end
	}
	if _, crowded := errors.AsType[*crowdedError](err); crowded {
		return smaller
	}
	if _, short := errors.AsType[*shortError](err); short || errors.Is(err, errOneByOne) {
		return single
	}
	return mongo.DispositionOf(err)
}
