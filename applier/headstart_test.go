package applier

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// hang makes index builds of the target hang, or continue.
func (g *simTarget) hang(t testing.TB, on bool) {
	t.Helper()
	mode := "off"
	if on {
		mode = "alwaysOn"
	}
	g.run(t, "admin", bson.D{{Key: "configureFailPoint", Value: "hangAfterStartingIndexBuild"}, {Key: "mode", Value: mode}})
}

// listed returns the indexes of db.a besides that on _id, those in progress with a "?".
func (g *simTarget) listed(t testing.TB) (names []string) {
	t.Helper()
	reply := g.run(t, "db", bson.D{{Key: "listIndexes", Value: "a"}, {Key: "includeBuildUUIDs", Value: true}})
	for _, v := range must.Get(reply.Lookup("cursor", "firstBatch").Array().Values())(t) {
		spec, building := v.Document().Lookup("spec").DocumentOK()
		if !building {
			spec = v.Document()
		}
		name := spec.Lookup("name").StringValue()
		if _, err := v.Document().LookupErr("buildUUID"); err == nil {
			name += "?"
		}
		if name != "_id_" {
			names = append(names, name)
		}
	}
	return names
}

// hasIndexes checks what listed returns.
func (g *simTarget) hasIndexes(t testing.TB, want ...string) {
	t.Helper()
	if got := g.listed(t); !slices.Equal(got, want) {
		t.Errorf("indexes %v, want %v", got, want)
	}
}

// buildOp is a startIndexBuild, commitIndexBuild or abortIndexBuild of indexes of db.a, given
// as fields.
func buildOp(command string, build byte, keys ...string) bson.D {
	return buildOn("a", command, build, keys...)
}

func buildOn(coll, command string, build byte, keys ...string) bson.D {
	specs := bson.A{}
	for _, key := range keys {
		pattern := bson.D{}
		for field := range strings.SplitSeq(key, "+") {
			pattern = append(pattern, bson.E{Key: field, Value: 1})
		}
		specs = append(specs, bson.D{{Key: "v", Value: 2}, {Key: "key", Value: pattern}, {Key: "name", Value: key}})
	}
	o := bson.D{
		{Key: command, Value: coll},
		{Key: "indexBuildUUID", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), build)}},
		{Key: "indexes", Value: specs},
	}
	if command == "abortIndexBuild" {
		o = append(o, bson.E{Key: "cause", Value: bson.D{{Key: "ok", Value: false}, {Key: "code", Value: 276}, {Key: "codeName", Value: "IndexBuildAborted"}, {Key: "errmsg", Value: "no"}}})
	}
	return commandOp("db", o)
}

// awaitListed waits until the target has these indexes.
func (l *live) awaitListed(want ...string) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if got := l.r.target.listed(l.t); slices.Equal(got, want) {
			return
		} else if time.Now().After(end) {
			l.t.Fatalf("indexes %v, want %v", got, want)
		}
	}
}

// hanging is a rig whose target has a document in db.a, and lets index builds hang.
func hanging(t *testing.T) (*rig, *sourceLog) {
	t.Helper()
	r := prepared(t, 4, doc("old", 0))
	r.target.run(t, "db", bson.D{{Key: "create", Value: "b"}})
	r.target.hang(t, true)
	return r, newLog(t)
}

// inserts logs documents of both collections.
func (l *sourceLog) inserts(n int) {
	l.t.Helper()
	for i := range n {
		l.add(insertOp("db.a", doc(i, 0)))
		l.add(insertOp("db.b", doc(i, 0)))
	}
}

// built returns how many builds the target has started.
func (g *simTarget) built(t testing.TB) int {
	t.Helper()
	reply := g.run(t, "local", bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: bson.D{{Key: "o.startIndexBuild", Value: bson.D{{Key: "$exists", Value: true}}}}}})
	docs, _, err := batchOf(reply)
	must.Succeed(t, err)
	return len(docs)
}

// The target builds an index while the source builds it, and the lanes continue. The commit
// waits for it.
func TestHeadStart(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x", "y"))
	a.send(l, start)
	a.awaitListed("x?", "y?")
	l.inserts(100)
	a.send(l, optimeOf(0))
	a.reaches(l.optime())
	before := l.optime()
	l.alone(buildOp("commitIndexBuild", 1, "x", "y"))
	a.send(l, before)
	r.target.hasIndexes(t, "x?", "y?")
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "x", "y")
	if n := r.target.built(t); n != 1 {
		t.Errorf("%d builds, want 1", n)
	}
}

// An abort of the source's build ends the target's, without waiting for it, also if an earlier
// attempt has started it; and a finished index is dropped.
func TestHeadStartAborted(t *testing.T) {
	for name, c := range map[string]struct{ restart, finished bool }{
		"in progress": {}, "of an earlier attempt": {restart: true}, "finished": {finished: true}, "finished by an earlier attempt": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := hanging(t)
			a := r.live(t, nil)
			l.alone(buildOp("startIndexBuild", 1, "x", "y"))
			a.send(l, start)
			a.awaitListed("x?", "y?")
			a.reaches(l.optime())
			if c.finished {
				r.target.hang(t, false)
				a.awaitListed("x", "y")
			}
			after := l.optime()
			if c.restart {
				a.crash()
				a = r.live(t, nil)
				after = start
			}
			l.alone(buildOp("abortIndexBuild", 1, "x", "y"))
			a.send(l, after)
			a.reaches(l.optime())
			r.target.hang(t, false)
			l.inserts(10)
			a.send(l, optimeOf(1))
			a.drain()
			r.target.hasIndexes(t)
		})
	}
}

// After a restart the commit finds a build of the earlier attempt, in progress or finished,
// although it is executed for the first time, and has no head start any more.
func TestHeadStartOfEarlierAttempt(t *testing.T) {
	for _, finished := range []bool{false, true} {
		r, l := hanging(t)
		a := r.live(t, nil)
		l.alone(buildOp("startIndexBuild", 1, "x"))
		l.inserts(10)
		a.send(l, start)
		a.awaitListed("x?")
		a.reaches(l.optime())
		if finished {
			r.target.hang(t, false)
			a.awaitListed("x")
		}
		a.crash()
		after := l.optime()
		r.target.intercept(func(cmd mongo.Command) (error, bool) {
			if simcaller.Name(cmd) == "killSessions" {
				return servererr.New(servererr.CommandNotFound, "no such command: killSessions"), false
			}
			return nil, false
		})
		a = r.live(t, nil)
		l.alone(buildOp("commitIndexBuild", 1, "x"))
		a.send(l, after)
		r.target.hang(t, false)
		a.reaches(l.optime())
		a.drain()
		if got := r.target.listed(t); !slices.Equal(got, []string{"x"}) || r.target.built(t) != 1 {
			t.Errorf("finished %v: indexes %v, %d builds", finished, got, r.target.built(t))
		}
	}
}

// Only as many builds run at once as the limit allows. One that has not got its turn by its
// commit is built then.
func TestHeadStartsLimited(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	sent := r.sends()
	a := r.live(t, func(c *Config) { c.IndexBuilds = 1 })
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	a.awaitListed("x?")
	for i, key := range []string{"y", "z"} {
		after := l.optime()
		l.alone(buildOp("startIndexBuild", byte(2+i), key))
		a.send(l, after)
	}
	after := l.optime()
	l.inserts(10)
	l.alone(buildOp("abortIndexBuild", 2, "y"))
	a.send(l, after)
	a.reaches(l.optime())
	if got := r.target.listed(t); !slices.Equal(got, []string{"x?"}) || len(sent) != 1 {
		t.Errorf("indexes %v, %d commands, want one build", got, len(sent))
	}
	after = l.optime()
	r.target.hang(t, false)
	l.alone(buildOp("commitIndexBuild", 3, "z"))
	l.alone(buildOp("commitIndexBuild", 1, "x"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	got := r.target.listed(t)
	if slices.Sort(got); !slices.Equal(got, []string{"x", "z"}) {
		t.Errorf("indexes %v", got)
	}
}

// An index that can refuse a document has no head start: the source accepts such documents
// until its commit.
func TestNoHeadStart(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x+y"))
	bad := bson.D{{Key: "_id", Value: "bad"}, {Key: "x", Value: bson.A{1}}, {Key: "y", Value: bson.A{1}}}
	l.add(insertOp("db.a", bad))
	l.add(deleteOp("db.a", "bad"))
	a.send(l, start)
	a.reaches(l.optime())
	r.target.hasIndexes(t)
	after := l.optime()
	r.target.hang(t, false)
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "x+y")
}

// A copy may be newer than the log: there is no head start, and an abort leaves its indexes
// alone.
func TestNoHeadStartOnCopy(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "y", Value: 1}}}, {Key: "name", Value: "y"}}}}})
	l.alone(buildOp("startIndexBuild", 1, "x"))
	l.alone(buildOp("startIndexBuild", 2, "y"))
	l.alone(buildOp("abortIndexBuild", 2, "y"))
	l.inserts(10)
	a := r.live(t, func(c *Config) { c.CopiedUntil = l.optime() })
	a.send(l, start)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "y")
}

// A build that fails early is repeated at the commit.
func TestHeadStartFails(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	failed := make(chan struct{})
	var once sync.Once
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		var err error
		if simcaller.Name(cmd) == "createIndexes" {
			once.Do(func() {
				close(failed)
				err = servererr.New(servererr.Interrupted, "killed by an operator")
			})
		}
		return err, false
	})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	<-failed
	after := l.optime()
	l.alone(buildOp("commitIndexBuild", 1, "x"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "x")
}
