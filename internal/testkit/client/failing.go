package client

import (
	"context"
	"errors"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// ErrNoPrimary is the error of a set without a primary.
var ErrNoPrimary = errors.New("no primary")

// Failing is a set that has no primary while Away is set: calls have no reply.
type Failing struct {
	mongo.Caller
	Away atomic.Bool
}

// Call implements mongo.Caller.
func (f *Failing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if f.Away.Load() {
		return nil, &mongo.LostError{Err: ErrNoPrimary}
	}
	return f.Caller.Call(ctx, cmd)
}
