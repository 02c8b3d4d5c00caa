package ddl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/scope"
)

// startBuild is a startIndexBuild of indexes of db.a with these definitions; names are added.
func (b *bench) startBuild(t testing.TB, specs ...string) *ddl.HeadStart {
	t.Helper()
	for i, spec := range specs {
		specs[i] = fmt.Sprintf(`{"v": 2, "name": "%d", %s`, i, spec[1:])
	}
	op := b.operation(t, `c db.$cmd {"startIndexBuild": "a", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000001"}, "indexes": [`+
		strings.Join(specs, ", ")+`]}`)
	return must.Get(b.exec.HeadStart(t.Context(), op))(t)
}

// Only indexes that accept every document, and that equal no other one, exist early.
func TestStartsEarly(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	if h := b.startBuild(t, `{"key": {"a": 1}}`); h != nil {
		t.Error("a build of no collection")
	}
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	b.restart(t)
	h := b.startBuild(t,
		`{"key": {"a": 1}}`, `{"key": {"b.c": -1}, "sparse": true}`, `{"key": {"c": 1}, "partialFilterExpression": {"c": 1}}`,
		`{"key": {"d": 1}, "hidden": true}`, `{"key": {"e": 1}, "expireAfterSeconds": 5}`,
		`{"key": {"a": 1, "b": 1}}`, `{"key": {"f": "hashed"}}`, `{"key": {"_fts": "text", "_ftsx": 1}}`, `{"key": {"g": "2dsphere"}}`,
		`{"key": {"h": "2d"}}`, `{"key": {"$**": 1}}`, `{"key": {"i.0": 1}}`, `{"key": {"j": 1}, "unique": true}`,
		`{"key": {"k": 1}, "prepareUnique": true}`)
	if got := fmt.Sprint(h.Indexes); got != "[0 1 2 3 4]" || h.NS != "db.a" {
		t.Errorf("%s of %s", got, h.NS)
	}
	if h := b.startBuild(t, `{"key": {"a": 1, "b": 1}}`); h != nil {
		t.Errorf("a head start of %v", h.Indexes)
	}
}

// Expiry is not part of an index that is built early, either.
func TestHeadStartDefers(t *testing.T) {
	t.Parallel()
	b := newBench(t, "5.0", ddl.Relaxed, scope.Config{})
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	b.restart(t)
	must.Succeed(t, b.startBuild(t, `{"key": {"e": 1}, "expireAfterSeconds": 5}`).Run(t.Context(), t.Context()))
	specs := must.Get(catalog.Indexes(t.Context(), b.server, "db.a"))(t)
	if text := fmt.Sprint(specs); !strings.Contains(text, `{"e":`) || strings.Contains(text, "expireAfterSeconds") {
		t.Error(text)
	}
}

// A target before 5.0 stores no names that begin with a dollar, as a partial index has them.
func TestHeadStartPartial(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0"} {
		b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
		b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
		b.restart(t)
		must.Succeed(t, b.startBuild(t, `{"key": {"a": 1}, "partialFilterExpression": {"a": {"$gt": 5}}}`).Run(t.Context(), t.Context()))
		open := must.Get(b.exec.OpenBuilds(t.Context()))(t)
		if specs := fmt.Sprint(must.Get(catalog.Indexes(t.Context(), b.server, "db.a"))(t)); len(open) != 1 || !strings.Contains(specs, "$gt") {
			t.Errorf("%s: %d open builds, indexes %s", dialect, len(open), specs)
		}
	}
}

// TestHeadStartRecord: the record of an open build has a definition as builds of the program before read it, as far as a target before 5.0
// stores that. Both forms are read.
func TestHeadStartRecord(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]bson.Type{
		`{"key": {"a": 1}}`: bson.TypeEmbeddedDocument,
		`{"key": {"a": 1}, "partialFilterExpression": {"a": {"$gt": 5}}}`: bson.TypeBinary,
	} {
		b := newBench(t, "4.4", ddl.Relaxed, scope.Config{})
		b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
		b.restart(t)
		must.Succeed(t, b.startBuild(t, spec).Run(t.Context(), t.Context()))
		reply := must.Get(b.Call(t.Context(), mongo.Command{DB: "replicator", Body: must.Marshal(t, bson.D{{Key: "find", Value: "builds"}})}))(t)
		if got := reply.Lookup("cursor", "firstBatch", "0", "indexes", "0").Type; got != want {
			t.Errorf("%s is recorded as %s, want %s", spec, got, want)
		}
		if open := must.Get(b.exec.OpenBuilds(t.Context()))(t); len(open) != 1 {
			t.Errorf("%s: %d open builds", spec, len(open))
		}
	}
}

// watched records the commands to the target.
type watched struct {
	*server
	names    []string
	commands []mongo.Command
}

func (w *watched) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	w.names, w.commands = append(w.names, simcaller.Name(cmd)), append(w.commands, cmd)
	return w.server.Call(ctx, cmd)
}

// A build that ends under another lease is not late, and without the lease none is sent.
func TestHeadStartTakenOver(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "7.0"} {
		b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
		b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
		target := &watched{server: b.server}
		checks := 0
		b.cfg.Target, b.cfg.Late = target, func(_ context.Context, e *ddl.LateError) { t.Errorf("%s: %v", dialect, e) }
		leased := b.cfg.Fence
		b.cfg.Fence = guard{check: func() error {
			if checks++; checks > 2 {
				return errLost
			}
			return nil
		}, within: func(work func(mongo.Caller) error) error { return leased.Within(t.Context(), work) }}
		b.restart(t)
		must.Succeed(t, b.startBuild(t, `{"key": {"a": 1}}`).Run(t.Context(), t.Context()))
		target.names = nil
		err := b.startBuild(t, `{"key": {"a": 1}}`, `{"key": {"b": 1}}`).Run(t.Context(), t.Context())
		if !errors.Is(err, errLost) || strings.Contains(fmt.Sprint(target.names), "createIndexes") {
			t.Errorf("%s: %v, sent %v", dialect, err, target.names)
		}
	}
}

// refusing refuses the first commands that build indexes, each with one of the errors.
type refusing struct {
	*server
	errs   []error
	builds int
}

func (r *refusing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if simcaller.Name(cmd) == "createIndexes" {
		if r.builds++; r.builds <= len(r.errs) {
			return nil, r.errs[r.builds-1]
		}
	}
	return r.server.Call(ctx, cmd)
}

// A head start is sent again to the next primary, but not after something has ended the build.
func TestHeadStartContinues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		errs []error
		want bool
	}{
		{[]error{servererr.New(servererr.ShutdownInProgress, ""), servererr.New(servererr.NotWritablePrimary, ""), &mongo.LostError{Err: errLost}, servererr.New(servererr.LockTimeout, "")}, true},
		{[]error{servererr.New(servererr.IndexBuildAborted, "")}, false},
		{[]error{servererr.New(servererr.Interrupted, "")}, false},
	} {
		b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
		b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
		target := &refusing{server: b.server, errs: c.errs}
		b.cfg.Target = target
		b.restart(t)
		err := b.startBuild(t, `{"key": {"a": 1}}`).Run(t.Context(), t.Context())
		built := strings.Contains(fmt.Sprint(must.Get(catalog.Indexes(t.Context(), b.server, "db.a"))(t)), `{"a":`)
		if (err == nil) != c.want || built != c.want || !c.want && target.builds != 1 {
			t.Errorf("after %v: %v, built: %t, sent %d times", c.errs, err, built, target.builds)
		}
	}
}

// A process that aborts a build of which it has no head start ends the command of an earlier
// one, which the target may be making wait: it interrupts the session that that one has sent it
// in, before it looks for indexes to drop.
func TestAbortOfEarlierProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	target := &watched{server: b.server}
	b.cfg.Target = target
	b.restart(t)
	must.Succeed(t, b.startBuild(t, `{"key": {"a": 1}}`).Run(t.Context(), t.Context()))
	session := ""
	for _, cmd := range target.commands {
		if simcaller.Name(cmd) == "createIndexes" {
			session = cmd.Body.Lookup("lsid").String()
		}
	}
	target.names, target.commands = nil, nil
	b.restart(t)
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"abortIndexBuild": "a", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000001"}, `+
		`"indexes": [{"v": 2, "name": "0", "key": {"a": 1}}], "cause": {"ok": false, "code": 276, "codeName": "x", "errmsg": "x"}}`), ddl.Maybe))
	kills, drops := slices.Index(target.names, "killSessions"), slices.Index(target.names, "dropIndexes")
	if kills < 0 || drops < kills || session == "" || target.commands[kills].Body.Lookup("killSessions", "0").String() != session {
		t.Errorf("session %s: %v", session, target.commands)
	}
}
