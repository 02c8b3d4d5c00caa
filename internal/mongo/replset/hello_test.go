package replset_test

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
)

// says is a member that answers each command with the same document.
type says bson.D

// Call implements mongo.Caller.
func (s says) Call(context.Context, mongo.Command) (bson.Raw, error) { return bson.Marshal(bson.D(s)) }

// TestIdentifyUnconfigured: a member that has just been started, or that was removed from its set, does not say
// which set it belongs to. That passes; a server that is no member of a set stays that.
func TestIdentifyUnconfigured(t *testing.T) {
	t.Parallel()
	ghost := says{
		{Key: "ismaster", Value: false},
		{Key: "secondary", Value: false},
		{Key: "info", Value: "Does not have a valid replica set config"},
		{Key: "isreplicaset", Value: true},
		{Key: "ok", Value: 1},
	}
	standalone := says{{Key: "ismaster", Value: true}, {Key: "ok", Value: 1}}
	for name, tt := range map[string]struct {
		member says
		passes bool
	}{"a member without a configuration": {ghost, true}, "a standalone server": {standalone, false}} {
		if _, err := replset.Identify(t.Context(), tt.member); err == nil || errors.Is(err, replset.ErrNoConfig) != tt.passes {
			t.Errorf("%s: %v", name, err)
		}
	}
}
