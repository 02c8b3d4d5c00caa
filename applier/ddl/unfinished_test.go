package ddl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// unfinished is a target that builds an index of db.a for a command whose client has left.
type unfinished struct {
	t      *testing.T
	target *simcaller.Caller
}

func newUnfinished(t *testing.T) *unfinished {
	t.Helper()
	return unfinishedOn(t, "5.0")
}

func unfinishedOn(t *testing.T, dialect string) *unfinished {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{
		Members: 1, Dialect: dialect, Seed: 1, TTLInterval: -1, Moods: mongosim.GentleMoods("each command is awaited"),
	})
	u := &unfinished{t: t, target: &simcaller.Caller{Set: set}}
	u.run("db", `{"insert": "a", "documents": [{"_id": 1, "x": 1, "y": 1}, {"_id": 2, "x": 2, "y": 1}]}`)
	return u
}

func (u *unfinished) run(db, cmd string) {
	u.t.Helper()
	must.Get(u.target.Call(u.t.Context(), mongo.Command{DB: db, Body: bsongen.FromJSON(u.t, cmd)}))(u.t)
}

// hang makes builds hang, or continue.
func (u *unfinished) hang(mode string) {
	u.t.Helper()
	u.run("admin", `{"configureFailPoint": "hangAfterStartingIndexBuild", "mode": "`+mode+`"}`)
}

// inProgress reports whether the target builds an index of db.a, and whether it has it.
func (u *unfinished) inProgress(index string) (building, ready bool) {
	u.t.Helper()
	has := func(specs []bson.Raw) bool {
		for _, spec := range specs {
			if spec.Lookup("name").StringValue() == index {
				return true
			}
		}
		return false
	}
	done, builds, err := catalog.IndexBuilds(u.t.Context(), u.target, "db.a")
	must.Succeed(u.t, err)
	for _, specs := range builds {
		building = building || has(specs)
	}
	return building, has(done)
}

// leave calls work, whose client leaves once the target builds the index.
func (u *unfinished) leave(index string, work func(ctx context.Context) error) {
	u.t.Helper()
	u.hang("alwaysOn")
	ctx, cancel := context.WithCancelCause(u.t.Context())
	defer cancel(nil)
	left, ended := errors.New("the process has ended"), make(chan error, 1)
	go func() { ended <- work(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for building := false; !building; building, _ = u.inProgress(index) {
		select {
		case err := <-ended:
			u.t.Fatalf("it ended before the build: %v", err)
		case <-tick.C:
		}
	}
	cancel(left)
	if err := <-ended; err == nil {
		u.t.Fatal("it did not wait for the build")
	}
	if building, _ := u.inProgress(index); !building {
		u.t.Fatal("the build has ended with its client")
	}
}

// resume calls work while the target still builds the index, and lets the build end once work
// waits for it.
func (u *unfinished) resume(work func(ctx context.Context) error) error {
	u.t.Helper()
	sent, ended := make(chan struct{}, 1), make(chan error, 1)
	u.target.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "createIndexes" {
			select {
			case sent <- struct{}{}:
			default:
			}
		}
		return nil, false
	})
	go func() { ended <- work(u.t.Context()) }()
	select {
	case err := <-ended:
		u.t.Fatalf("it did not wait for the build: %v", err)
	case <-sent:
	}
	u.hang("off")
	return <-ended
}

func (u *unfinished) config() ddl.Config {
	return ddl.Config{
		Target: u.target, Fence: open{u.target}, Catalog: must.Get(catalog.Load(u.t.Context(), u.target, nil))(u.t),
		Scope: must.Get(scope.New(scope.Config{}))(u.t), Link: "link", UniqueIndexes: ddl.Relaxed, Placed: true,
	}
}

// apply executes an operation on a copy, as another process each time.
func (u *unfinished) apply(op *oplog.Op) func(ctx context.Context) error {
	exec := must.Get(ddl.New(u.config()))(u.t)
	return func(ctx context.Context) error { return exec.Apply(ctx, op, ddl.Copied) }
}

// TestCopyAwaitsBuild: an attempt of a copy that finds an index which the target still builds
// for an earlier attempt waits for it, and learns that a document makes the build fail.
func TestCopyAwaitsBuild(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doc    string
		failed bool
	}{
		"built":  {`{"_id": 3, "x": 1, "y": [1]}`, false},
		"failed": {`{"_id": 3, "x": [1], "y": [1]}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnfinished(t)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1, "y": 1}, "name": "xy"}`)
			u.leave("xy", u.apply(op))
			u.run("db", `{"insert": "a", "documents": [`+c.doc+`]}`)
			err := u.resume(u.apply(op))
			refused, is := errors.AsType[*ddl.IndexError](err)
			if is != c.failed || is && refused.Index != "xy" || !is && err != nil {
				t.Errorf("%v", err)
			}
			if building, ready := u.inProgress("xy"); building || ready == c.failed {
				t.Errorf("building %v, ready %v", building, ready)
			}
		})
	}
}

// TestConversionAwaitsBuild: a conversion that finds a unique index which the target still builds
// for an interrupted one waits for it, and learns that documents violate it.
func TestConversionAwaitsBuild(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doc      string
		violated bool
	}{
		"built":    {`{"_id": 3, "x": 3}`, false},
		"violated": {`{"_id": 3, "x": 2}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUnfinished(t)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "unique": true}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			convert := func(ctx context.Context) error {
				c, err := ddl.NewConverter(ctx, u.target, open{u.target}, "replicator", "link")
				if err != nil {
					return err
				}
				return c.Convert(ctx, nil)
			}
			u.leave("x", convert)
			u.run("db", `{"insert": "a", "documents": [`+c.doc+`]}`)
			err := u.resume(convert)
			refused, is := errors.AsType[ddl.RefusedErrors](err)
			if is != c.violated || is && refused[0].Index != "x" || !is && err != nil {
				t.Errorf("%v", err)
			}
			if building, ready := u.inProgress("x"); building || !ready {
				t.Errorf("building %v, ready %v", building, ready)
			}
		})
	}
}

// TestExpireAwaitsBuild: an index that the target still builds is made to expire its documents once it is built.
func TestExpireAwaitsBuild(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "6.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": 3600}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			u.run("db", `{"dropIndexes": "a", "index": "x"}`)
			u.leave("x", func(ctx context.Context) error {
				_, err := u.target.Call(ctx, mongo.Command{DB: "db", Body: bsongen.FromJSON(t, `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x"}]}`)})
				return err
			})
			must.Succeed(t, u.resume(func(ctx context.Context) error { return c.Expire(ctx, nil, nil) }))
			for _, spec := range must.Get(catalog.Indexes(t.Context(), u.target, "db.a"))(t) {
				if after, _ := spec.Lookup("expireAfterSeconds").AsInt64OK(); spec.Lookup("name").StringValue() == "x" && after != 3600 {
					t.Errorf("%s", spec)
				}
			}
		})
	}
}

// TestExpireNever: an index whose expireAfterSeconds is not a number expires nothing at a source up to 4.4, and nothing on the
// target after a cutover.
func TestExpireNever(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "6.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": {"$numberDouble": "NaN"}}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Convert(t.Context(), nil))
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			_, ready := u.inProgress("x")
			for _, spec := range must.Get(catalog.Indexes(t.Context(), u.target, "db.a"))(t) {
				if _, err := spec.LookupErr("expireAfterSeconds"); err == nil || !ready {
					t.Errorf("the index is there: %t, %s", ready, spec)
				}
			}
		})
	}
}

// TestExpireHeld: an index that is held expires its documents again, also one that an earlier version holds, by the largest age.
func TestExpireHeld(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"1600000000", "2147483647"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, "7.0")
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": 3600}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			u.run("db", `{"collMod": "a", "index": {"name": "x", "expireAfterSeconds": `+held+`}}`)
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			for _, spec := range must.Get(catalog.Indexes(t.Context(), u.target, "db.a"))(t) {
				if age, ok := spec.Lookup("expireAfterSeconds").AsInt64OK(); ok && age != 3600 {
					t.Errorf("documents expire after %d s", age)
				}
			}
		})
	}
}

// TestExpireCapped: an index of a capped collection, which expires nothing at a source before 7.1, stays as it is, and that is said.
func TestExpireCapped(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "6.0", "7.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			u.run("db", `{"drop": "a"}`)
			u.run("db", `{"create": "a", "capped": true, "size": 4096}`)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": 3600}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Convert(t.Context(), nil))
			var said string
			must.Succeed(t, c.Expire(t.Context(), nil, func(is ddl.Converted) { said = is.What }))
			if age, there := u.age(); !there || age >= 0 || !strings.Contains(said, "does not expire its documents") {
				t.Errorf("the index is there: %t; documents expire after %d s; said: %s", there, age, said)
			}
		})
	}
}

// TestExpireRefused: an index that the target does not make expire its documents, as one on two fields that only very old
// servers accept, is there all the same afterwards, and that is said.
func TestExpireRefused(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "7.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 1, "key": {"x": 1, "y": 1}, "name": "x", "expireAfterSeconds": 3600}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			var said string
			must.Succeed(t, c.Expire(t.Context(), nil, func(is ddl.Converted) { said = is.What }))
			if _, ready := u.inProgress("x"); !ready || !strings.Contains(said, "does not expire its documents") {
				t.Errorf("the index is there: %t; said: %s", ready, said)
			}
		})
	}
}

// TestExpireFar: an index whose age the target refuses, as it is more than the time since 1970, is built without one. A lesser age would
// expire documents with early dates that the source keeps.
func TestExpireFar(t *testing.T) {
	t.Parallel()
	const none = int64(-1)
	for name, tt := range map[string]struct {
		dialect, age string
		want         int64
	}{
		"4.4": {"4.4", "2147483647", none}, "5.0": {"5.0", "2147483647", none}, "6.0": {"6.0", "2147483647", none},
		"7.0":          {"7.0", "2147483647", 2_147_483_647},
		"5.0 infinite": {"5.0", `{"$numberDouble": "Infinity"}`, none}, "7.0 infinite": {"7.0", `{"$numberDouble": "Infinity"}`, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, tt.dialect)
			op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": `+tt.age+`}`)
			must.Succeed(t, u.apply(op)(t.Context()))
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			if got, there := u.age(); got != tt.want || !there {
				t.Errorf("the index is there: %t; documents expire after %d s, want %d", there, got, tt.want)
			}
		})
	}
}

// age returns the expireAfterSeconds of the index x of db.a, -1 for none, and whether the index is there.
func (u *unfinished) age() (age int64, there bool) {
	u.t.Helper()
	for _, spec := range must.Get(catalog.Indexes(u.t.Context(), u.target, "db.a"))(u.t) {
		if spec.Lookup("name").StringValue() != "x" {
			continue
		}
		if n, ok := spec.Lookup("expireAfterSeconds").AsInt64OK(); ok {
			return n, true
		}
		return -1, true
	}
	return -1, false
}

// TestRevertEndsBuild: what takes a conversion back ends the build of a unique index that it
// finds, and does not wait for it.
func TestRevertEndsBuild(t *testing.T) {
	t.Parallel()
	u := newUnfinished(t)
	op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "unique": true}`)
	must.Succeed(t, u.apply(op)(t.Context()))
	converter := func(ctx context.Context) *ddl.Converter {
		return must.Get(ddl.NewConverter(ctx, u.target, open{u.target}, "replicator", "link"))(t)
	}
	convert, revert := converter(t.Context()), converter(t.Context())
	u.leave("x", func(ctx context.Context) error { return convert.Convert(ctx, nil) })
	must.Succeed(t, u.resume(func(ctx context.Context) error { return revert.Revert(ctx, nil) }))
	if building, ready := u.inProgress("x"); building || !ready {
		t.Errorf("building %v, ready %v", building, ready)
	}
	for _, spec := range must.Get(catalog.Indexes(t.Context(), u.target, "db.a"))(t) {
		if unique, _ := spec.Lookup("unique").BooleanOK(); unique {
			t.Errorf("unique: %s", spec)
		}
	}
}

// TestRevertAwaitsBuild: what takes a conversion back waits for the build of the index as it was before, which an
// interrupted one has begun.
func TestRevertAwaitsBuild(t *testing.T) {
	t.Parallel()
	u := newUnfinished(t)
	op := (&bench{}).operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x", "unique": true}`)
	must.Succeed(t, u.apply(op)(t.Context()))
	revert := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
	u.run("db", `{"dropIndexes": "a", "index": "x"}`)
	u.leave("x", func(ctx context.Context) error {
		_, err := u.target.Call(ctx, mongo.Command{DB: "db", Body: bsongen.FromJSON(t, `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x"}]}`)})
		return err
	})
	must.Succeed(t, u.resume(func(ctx context.Context) error { return revert.Revert(ctx, nil) }))
	if building, ready := u.inProgress("x"); building || !ready {
		t.Errorf("building %v, ready %v", building, ready)
	}
}
