package applier

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// A head start that a failover of the target, a lost line or a shutdown ends is sent again.
func TestHeadStartSentAgain(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	failures := []error{
		servererr.New(servererr.InterruptedDueToReplStateChange, "stepped down"),
		servererr.New(servererr.InterruptedAtShutdown, "shutting down"),
		&mongo.LostError{Err: errEnded},
	}
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) != "createIndexes" || len(failures) == 0 {
			return nil, false
		}
		err := failures[0]
		failures = failures[1:]
		return err, false
	})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	a.awaitListed("x?")
	r.target.hang(t, false)
	a.drain()
}

// A restart after the startIndexBuild, or at it, runs the head start again, until its commit
// or abort. One that had begun with it is not built twice.
func TestHeadStartResumed(t *testing.T) {
	for name, c := range map[string]struct {
		end  string
		want []string
	}{"commit": {"commitIndexBuild", []string{"x"}}, "abort": {"abortIndexBuild", nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := hanging(t)
			a := r.live(t, func(c *Config) { c.IndexSlots = &IndexSlots{used: 9} }) // it only waits
			l.alone(buildOp("startIndexBuild", 1, "x"))
			l.inserts(10)
			a.send(l, start)
			a.reaches(l.optime())
			a.crash()
			for range 2 {
				a = r.live(t, nil)
				a.awaitListed("x?")
				a.send(l, start)
				a.reaches(l.optime())
				a.crash()
			}
			a = r.live(t, nil)
			l.alone(buildOp(c.end, 1, "x"))
			a.send(l, start)
			r.target.hang(t, false)
			a.reaches(l.optime())
			a.drain()
			if got := r.target.listed(t); !slices.Equal(got, c.want) {
				t.Errorf("indexes %v", got)
			}
			if n := r.target.built(t); n != 1 {
				t.Errorf("%d builds", n)
			}
			if docs := r.target.documents(t, "replicator.builds"); len(docs) > 0 {
				t.Errorf("recorded: %v", docs)
			}
		})
	}
}

// The record of a build of a collection that is no longer there is deleted.
func TestHeadStartOfAnotherCollection(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	a.awaitListed("x?")
	a.reaches(l.optime())
	a.crash()
	r.target.run(t, "db", bson.D{{Key: "drop", Value: "a"}})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	a = r.live(t, nil)
	l.inserts(1)
	a.send(l, optimeOf(0))
	a.reaches(l.optime())
	a.drain()
	if docs := r.target.documents(t, "replicator.builds"); len(docs) > 0 || len(r.target.listed(t)) > 0 {
		t.Errorf("recorded: %v, indexes %v", docs, r.target.listed(t))
	}
}

// An abort leaves an index that the target had before the build.
func TestAbortLeavesOthers(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.fields(t, bson.D{{Key: "x", Value: 1}}, bson.D{{Key: "v", Value: 1}, {Key: "w", Value: 1}})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x", "y"))
	a.send(l, start)
	a.awaitListed("x", "v", "y")
	after := l.optime()
	l.alone(buildOp("abortIndexBuild", 1, "x", "y"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "x", "v")
}

// On a target that drops no index while it builds another one of the collection, an abort
// does not wait for the head start of another build. That one is built at its commit.
func TestAbortEasesOthers(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	a.awaitListed("x")
	r.target.hang(t, true)
	after := l.optime()
	l.alone(buildOp("startIndexBuild", 2, "y"))
	a.send(l, after)
	a.awaitListed("x", "y?")
	after = l.optime()
	l.alone(buildOp("abortIndexBuild", 1, "x"))
	l.inserts(10)
	a.send(l, after)
	a.reaches(l.optime())
	r.target.hang(t, false)
	after = l.optime()
	l.alone(buildOp("commitIndexBuild", 2, "y"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "y")
}
