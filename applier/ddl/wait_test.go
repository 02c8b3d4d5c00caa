package ddl_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// player returns a reply for each command name in turn.
type player func(name string) (bson.D, error)

func (p player) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	elems, err := cmd.Body.Elements()
	if err != nil {
		return nil, err
	}
	reply, err := p(elems[0].Key())
	if err != nil {
		return nil, err
	}
	return bson.Marshal(reply)
}

// emptyDatabase replies as a target without collections; refuse replies to drops and
// creates.
func emptyDatabase(refuse func() (bson.D, error)) player {
	return func(name string) (bson.D, error) {
		switch name {
		case "listCollections", "find":
			return bson.D{{Key: "cursor", Value: bson.D{
				{Key: "id", Value: int64(0)},
				{Key: "ns", Value: "db.$cmd.listCollections"},
				{Key: "firstBatch", Value: bson.A{}},
			}}}, nil
		case "create":
			return refuse()
		}
		return bson.D{{Key: "ok", Value: 1}}, nil
	}
}

func create(t *testing.T, target mongo.Caller, observer event.Observer) (*ddl.Executor, *oplog.Op) {
	t.Helper()
	cat := must.Get(catalog.Load(t.Context(), target, nil))(t)
	sc := must.Get(scope.New(scope.Config{}))(t)
	exec := must.Get(ddl.New(ddl.Config{Target: target, Fence: plain{target}, Catalog: cat, Scope: sc, Link: "link", Observer: observer}))(t)
	return exec, (&bench{}).operation(t, `c db.$cmd {"create": "a"}`)
}

// TestWaits: the executor waits for obstacles that end by themselves, and for nothing
// else.
func TestWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  servererr.Code
		waits bool
	}{
		{servererr.LockTimeout, true},
		{servererr.ConflictingOperationInProgress, true},
		{servererr.BackgroundOperationInProgressForDatabase, true},
		{servererr.BackgroundOperationInProgressForNamespace, true},
		{servererr.NotWritablePrimary, false},
		{servererr.WriteConflict, true},
		{servererr.TemporarilyUnavailable, true},
		{servererr.ExceededMemoryLimit, true},
		{servererr.IndexBuildAborted, false},
		{servererr.Interrupted, false},
		{servererr.MaxTimeMSExpired, true},
	} {
		t.Run(c.code.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, stop := 0, errors.New("enough")
				target := emptyDatabase(func() (bson.D, error) {
					if n++; n == 5 {
						return nil, stop
					}
					return nil, servererr.New(c.code, "no")
				})
				waiting := 0
				exec, op := create(t, target, func(e event.Event) {
					if e.Message() == "command waits for other work of the target" {
						waiting++
					}
				})
				begin := time.Now()
				err := exec.Apply(t.Context(), op, ddl.Once)
				if took := time.Since(begin); c.waits != errors.Is(err, stop) || c.waits != (waiting == 1) ||
					c.waits && (took < 30*time.Millisecond || took > 2*time.Second) {
					t.Errorf("%v after %s and %d tries, said %d times", err, took, n, waiting)
				}
				if e, ok := errors.AsType[*servererr.Error](err); !c.waits && (!ok || e.Code != c.code || n != 1) {
					t.Errorf("%v after %d tries", err, n)
				}
			})
		})
	}
}

// TestWaitEnds: a wait can be cancelled.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		target := emptyDatabase(func() (bson.D, error) { return nil, servererr.New(servererr.LockTimeout, "no") })
		exec, op := create(t, target, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(time.Minute, func() { cancel(enough) })
		if err := exec.Apply(ctx, op, ddl.Once); !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}

// TestConcern: a command without a majority's acknowledgement does not count as executed.
func TestConcern(t *testing.T) {
	t.Parallel()
	target := emptyDatabase(func() (bson.D, error) {
		return bson.D{
			{Key: "ok", Value: 1},
			{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 189}, {Key: "errmsg", Value: "stepped down"}}},
		}, nil
	})
	exec, op := create(t, target, nil)
	err := exec.Apply(t.Context(), op, ddl.Copied) // not in a transaction
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.PrimarySteppedDown {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := ddl.New(ddl.Config{UniqueIndexes: 7})
	const want = "ddl: no target\nddl: no fence\nddl: no catalog\nddl: no scope\nddl: the link has no name\nddl: unknown policy 7 for unique indexes"
	if err == nil || err.Error() != want {
		t.Error(err)
	}
}
