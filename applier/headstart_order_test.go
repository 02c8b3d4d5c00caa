package applier

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// The target receives the abort before the build that it aborts.
func TestAbortBeforeBuild(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	held, sent, executed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var arrives sync.Once
	var asked atomic.Int64
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		switch simcaller.Name(cmd) {
		case "createIndexes":
			defer close(executed)
			close(sent)
			<-held
			_, err := r.target.send(context.WithoutCancel(t.Context()), cmd)
			return cmp.Or(err, error(&mongo.LostError{})), false
		case "killSessions": // one before the build, one that meets nothing
			if asked.Add(1) == 3 {
				arrives.Do(func() { close(held) })
			}
		}
		return nil, false
	})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	<-sent
	after := l.optime()
	l.alone(buildOp("abortIndexBuild", 1, "x"))
	a.send(l, after)
	a.reaches(l.optime())
	arrives.Do(func() { close(held) })
	r.target.hang(t, false)
	<-executed
	a.drain()
	r.target.hasIndexes(t)
}

// A commit does not wait until its build may start.
func TestHeadStartQueued(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	sent := make(chan string, 10)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "createIndexes" {
			sent <- cmd.Body.Lookup("indexes", "0", "name").StringValue()
		}
		return nil, false
	})
	a := r.live(t, func(c *Config) { c.IndexBuilds = 1 })
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	if got := <-sent; got != "x" {
		t.Errorf("%s is built", got)
	}
	after := l.optime()
	l.alone(buildOp("startIndexBuild", 2, "y"))
	l.alone(buildOp("commitIndexBuild", 2, "y"))
	a.send(l, after)
	select {
	case got := <-sent:
		if got != "y" {
			t.Errorf("%s is built", got)
		}
	case <-time.After(time.Minute):
		t.Error("the commit waits for another build")
	}
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
}
