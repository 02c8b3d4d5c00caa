package applier

import (
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// TestBuildCommittedAgain: a commitIndexBuild that an attempt has executed, and not recorded as done, is executed again by
// the next one, which finds the index and its deferred options.
func TestBuildCommittedAgain(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	l.alone(commandOp("db", bson.D{
		{Key: "commitIndexBuild", Value: "a"},
		{Key: "indexBuildUUID", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), 1)}},
		{Key: "indexes", Value: bson.A{bson.D{
			{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x"}, {Key: "expireAfterSeconds", Value: 3600},
		}}},
	}))
	var mu sync.Mutex
	deferred, dead := false, false
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch name, _ := cmd.Body.Lookup("update").StringValueOK(); {
		case name == metadata.Deferred:
			deferred = true
		case deferred && simcaller.Name(cmd) == "listCollections":
			dead = true
		}
		if dead {
			return &mongo.LostError{Err: errCrash}, false
		}
		return nil, false
	})
	a := r.live(t, nil)
	a.send(l, start)
	if err := <-a.done; !errors.Is(err, errCrash) {
		t.Fatalf("it ended with %v", err)
	}
	r.target.intercept(nil)
	r.target.hasIndexes(t, "x")
	if st := a.link.State(); !st.Applied.Before(l.optime()) {
		t.Fatalf("the commit is recorded, at %s", st.Applied)
	}
	a = r.live(t, nil)
	a.send(l, start)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "x")
	if docs := r.target.documents(t, "replicator.deferred"); len(docs) != 1 {
		t.Errorf("deferred: %v", docs)
	}
}
