package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease/locks"
)

// clockOnly is a control plane that tells the time, unless err is set, and refuses writes.
type clockOnly struct {
	locks.Store
	err error
}

// Clock implements locks.Store.
func (c *clockOnly) Clock(context.Context) (locks.Moment, error) { return locks.Moment{}, c.err }

var errRefused = errors.New("not authorized on replicator")

// Call implements mongo.Caller.
func (*clockOnly) Call(context.Context, mongo.Command) (bson.Raw, error) { return nil, errRefused }

// TestReadySaysWhich: a control plane that answers, and cannot be told how links end, is not said to be away.
func TestReadySaysWhich(t *testing.T) {
	t.Parallel()
	ended := agent.Status{Member: "m", Links: []agent.LinkStatus{{Link: "a", State: agent.Ended, LastFailure: &agent.Failure{At: time.Unix(1, 0), Code: 6}}}}
	for name, tt := range map[string]struct {
		status agent.Status
		away   error
		want   string
	}{
		"ready":           {status: agent.Status{}},
		"cannot be told":  {status: ended, want: "the control plane answers, but for"},
		"away":            {status: agent.Status{}, away: errors.New("no primary"), want: "the control plane has not answered for"},
		"away, and ended": {status: ended, away: errors.New("no primary"), want: "the control plane has not answered for"},
	} {
		store := &clockOnly{err: tt.away}
		c := newControlPlane(store)
		c.failures = &failureBoard{target: store, db: "replicator", group: "links", member: "m", written: map[string]toldFailure{}}
		long := time.Now().Add(-time.Hour)
		c.heard, c.told = long, long
		c.ask(t.Context(), tt.status, func(string) bool { return false })
		switch err := c.ready(); {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
