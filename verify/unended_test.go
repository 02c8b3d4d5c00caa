package verify

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/verify/standing"
)

// TestFoundBeforeFault: a collection in which a comparison has found something new, and that cannot be compared to
// its end, is not verified any more, although an earlier comparison has found nothing.
func TestFoundBeforeFault(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := mixed(t, 300)
	insertRaw(t, source, "d.c", docs...)
	insertRaw(t, target, "d.c", docs...)
	var planted atomic.Bool
	old := func(mongo.Command) error {
		if planted.Load() {
			return servererr.New(servererr.SnapshotTooOld, "planted")
		}
		return nil
	}
	config := func() Config {
		return Config{
			Source: &hook{Caller: source, ns: "d.c", before: old}, Target: target, Cuts: &rest{source: source, target: target},
			RangeBytes: 20_000, Workers: 1, Scope: everything(t), Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
		}
	}
	is := func(what, why string, differences int64) {
		t.Helper()
		st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
		if (st.AsOf == nil) != (why != "") || !strings.Contains(st.Why, why) || st.Differences != differences {
			t.Errorf("%s: verified as of %+v, %q, %d differences", what, st.AsOf, st.Why, st.Differences)
		}
	}
	check(t, config())
	is("equal", "", 0)
	planted.Store(true)
	check(t, config())
	planted.Store(false)
	is("not compared, and nothing is found", "", 0)
	run(t, target, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: idOf(docs[len(docs)/3])}}}, {Key: "limit", Value: 1},
	}}}})
	cfg := config()
	cfg.Found = func(*Difference) error {
		planted.Store(true)
		return nil
	}
	must.Get(must.Get(New(cfg))(t).Run(t.Context()))(t)
	if !planted.Load() {
		t.Fatal("nothing was found")
	}
	is("found", "did not come to its end: a cut can be read for too short a time", 0)
	planted.Store(false)
	check(t, config())
	is("compared", "", 1)
	check(t, config())
	planted.Store(true)
	check(t, config())
	is("what is found is known", "", 1)
}

// TestFoundBeforeEnd: a difference that was reported counts, whatever ends the comparison afterwards, and in whatever way its
// documents are read again, until the collection has been compared to its end.
func TestFoundBeforeEnd(t *testing.T) {
	t.Parallel()
	errKilled := errors.New("killed")
	unavailable := servererr.New(servererr.SnapshotUnavailable, "planted") // after which it is read in another way
	for name, tt := range map[string]struct {
		ends   error // of the range whose difference was reported
		resume bool
	}{
		"killed":              {errKilled, false},
		"killed, resumed":     {errKilled, true},
		"read again":          {unavailable, false},
		"read again, resumed": {unavailable, true},
	} {
		source, target := cluster(t), cluster(t)
		docs := neighbours(t, 0, 1000)
		insertRaw(t, source, "d.c", docs...)
		insertRaw(t, target, "d.c", docs...)
		var told atomic.Bool
		before := func(mongo.Command) error {
			if told.Load() {
				return errKilled
			}
			return nil
		}
		config := func(resume bool) Config {
			return Config{
				Source: &hook{Caller: source, ns: "d.c", before: before}, Target: target, Cuts: &rest{source: source, target: target},
				RangeBytes: 20_000, Workers: 1, Scope: everything(t), Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: resume},
			}
		}
		is := func(what string, verified bool, differences bool) {
			t.Helper()
			st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
			if (st.AsOf != nil) != verified || (st.Differences > 0) != differences {
				t.Errorf("%s, %s: verified as of %+v, %q, %d differences", name, what, st.AsOf, st.Why, st.Differences)
			}
		}
		check(t, config(false))
		is("equal", true, false)
		run(t, target, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: int32(7)}}}, {Key: "limit", Value: 1},
		}}}})
		cfg := config(false)
		cfg.Found = func(*Difference) error {
			told.Store(true)
			return tt.ends
		}
		if _, err := must.Get(New(cfg))(t).Run(t.Context()); !errors.Is(err, errKilled) || !told.Load() {
			t.Fatalf("%s: %v, reported: %t", name, err, told.Load())
		}
		is("reported", true, true)
		cfg = config(tt.resume)
		cfg.Found = func(*Difference) error { return nil }
		if _, err := must.Get(New(cfg))(t).Run(t.Context()); !errors.Is(err, errKilled) {
			t.Fatalf("%s: %v", name, err)
		}
		is("begun again", tt.resume, tt.resume)
		told.Store(false)
		insertRaw(t, target, "d.c", docs[7])
		check(t, config(tt.resume))
		is("compared, and equal", true, false)
	}
}

// TestFoundInView: a difference in a view, which has no ranges, was reported, and the verification was killed. It is gone once the
// resumed one has found the view equal.
func TestFoundInView(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	view := func(c mongo.Caller, of string) {
		run(t, c, "d", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: of}, {Key: "pipeline", Value: bson.A{}}})
	}
	view(source, "a")
	view(target, "b")
	errKilled := errors.New("killed")
	check := func(resume bool, found error) standing.Standing {
		t.Helper()
		_, err := must.Get(New(Config{
			Source: source, Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return found }, Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: resume},
		}))(t).Run(t.Context())
		if !errors.Is(err, found) {
			t.Fatalf("%v, want %v", err, found)
		}
		return must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
	}
	if st := check(false, errKilled); st.Differences != 1 {
		t.Fatalf("reported: %+v", st)
	}
	run(t, target, "d", bson.D{{Key: "drop", Value: "v"}})
	view(target, "a")
	if st := check(true, nil); st.Differences != 0 || st.AsOf == nil {
		t.Errorf("resumed: %d differences, %q", st.Differences, st.Why)
	}
}

// TestFoundRenamed: a difference that was reported in a collection which has got the name of another one, that was compared before,
// counts once another round begins, also if the comparison was killed.
func TestFoundRenamed(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.b", doc(element(t, "_id", 1)))
		insertRaw(t, c, "d.x", doc(element(t, "_id", 2)))
	}
	var rename, killed atomic.Bool
	errKilled := errors.New("killed")
	config := func() Config {
		return Config{
			Source: callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
				coll, is := cmd.Body.Lookup("find").StringValueOK()
				if is && coll == "x" && rename.CompareAndSwap(true, false) {
					for _, c := range []mongo.Caller{source, target} {
						run(t, c, "admin", bson.D{{Key: "renameCollection", Value: "d.x"}, {Key: "to", Value: "d.b"}, {Key: "dropTarget", Value: true}}) //nolint:contextcheck // a command of the test
					}
				}
				if is && cmd.DB == "d" && killed.Load() {
					return nil, errKilled
				}
				return source.Call(ctx, cmd)
			}),
			Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return nil }, Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
		}
	}
	check(t, config())
	insertRaw(t, source, "d.x", doc(element(t, "_id", 3)))
	rename.Store(true)
	cfg, reported := config(), 0
	cfg.Found = func(*Difference) error {
		reported++
		return errKilled
	}
	if _, err := must.Get(New(cfg))(t).Run(t.Context()); !errors.Is(err, errKilled) || reported != 1 {
		t.Fatalf("%v, %d reported", err, reported)
	}
	killed.Store(true)
	if _, err := must.Get(New(config()))(t).Run(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf != nil {
		t.Errorf("the difference is forgotten: %+v", st)
	}
	killed.Store(false)
	check(t, config())
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf == nil || st.Differences != 1 {
		t.Errorf("compared: %+v", st)
	}
}
