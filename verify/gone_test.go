package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// TestGoneAndBack: a collection, which may be known to differ, has another name when it is to be compared, and then its name again, or
// another collection has that. The differences that its comparison finds then are not forgotten with those known before.
func TestGoneAndBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		back  string
		known bool
	}{{"d.c", true}, {"d.x", true}, {"d.c", false}, {"d.x", false}} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			t.Parallel()
			source, target := cluster(t), cluster(t)
			for _, c := range []mongo.Caller{source, target} {
				for _, name := range []oplog.Namespace{"d.b", "d.x", "d.z"} {
					insertRaw(t, c, name, doc(element(t, "_id", 1)))
				}
			}
			differ := func() { insertRaw(t, source, "d.b", doc(element(t, "_id", 2))) }
			if tt.known {
				differ()
			}
			var begun atomic.Int32
			rename := func(from, to string) {
				for _, c := range []mongo.Caller{source, target} {
					run(t, c, "admin", bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}})
				}
			}
			config := Config{
				Source: callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
					switch coll, _ := cmd.Body.Lookup("find").StringValueOK(); {
					case coll == "b" && begun.CompareAndSwap(1, 2):
						rename("d.b", "d.c")
					case coll == "x" && begun.CompareAndSwap(2, 3) && tt.back == "d.x":
						rename("d.x", "d.b")
					case coll == "z" && begun.CompareAndSwap(3, 4) && tt.back == "d.c":
						rename("d.c", "d.b")
					}
					return source.Call(ctx, cmd)
				}),
				Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
				Found: func(*Difference) error { return nil }, Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
			}
			check(t, config)
			if !tt.known {
				differ()
			}
			insertRaw(t, source, "d.x", doc(element(t, "_id", 3)))
			begun.Store(1)
			config.Progress = &Progress{Target: target, DB: "replicator", Link: "l"}
			check(t, config)
			st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
			unended := slices.ContainsFunc(st.Differing, func(d standing.Differing) bool { return d.AsOf == nil })
			if begun.Load() < 3 || st.Differences != 2 || unended {
				t.Errorf("%d renamed, %+v", begun.Load(), st)
			}
		})
	}
}

// TestFoundOfFormer: the differences of a collection are not those of the one that gets its name during the verification.
func TestFoundOfFormer(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.b", doc(element(t, "_id", 1)))
		insertRaw(t, c, "d.x", doc(element(t, "_id", 1)))
	}
	insertRaw(t, source, "d.b", doc(element(t, "_id", 2)))
	insertRaw(t, source, "d.x", doc(element(t, "_id", 3)))
	var renamed atomic.Bool
	check(t, Config{
		Source: callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
			if coll, _ := cmd.Body.Lookup("find").StringValueOK(); coll == "x" && renamed.CompareAndSwap(false, true) {
				for _, c := range []mongo.Caller{source, target} {
					run(t, c, "admin", bson.D{{Key: "renameCollection", Value: "d.x"}, {Key: "to", Value: "d.b"}, {Key: "dropTarget", Value: true}}) //nolint:contextcheck // a command of the test
				}
			}
			return source.Call(ctx, cmd)
		}),
		Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
		Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
	})
	st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
	want := []standing.Found{standing.NewFound("missing", IDText(bson.RawValue{Type: bson.TypeInt32, Value: []byte{3, 0, 0, 0}}), "", "")}
	if len(st.Differing) != 1 || !slices.Equal(st.Differing[0].Found, want) {
		t.Errorf("%+v", st.Differing)
	}
}

// TestReplacedDiffers: a difference that is known in a collection is not forgotten when another one gets its name, before it was compared
// under its other name.
func TestReplacedDiffers(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.b", doc(element(t, "_id", 1)))
	}
	insertRaw(t, source, "d.b", doc(element(t, "_id", 2)))
	var replaced, killed atomic.Bool
	errKilled := errors.New("killed")
	config := func() Config {
		return Config{
			Source: callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
				coll, _ := cmd.Body.Lookup("find").StringValueOK()
				if coll == "b" && replaced.CompareAndSwap(true, false) {
					for _, c := range []mongo.Caller{source, target} {
						run(t, c, "admin", bson.D{{Key: "renameCollection", Value: "d.b"}, {Key: "to", Value: "d.c"}}) //nolint:contextcheck // a command of the test
						run(t, c, "d", bson.D{{Key: "create", Value: "b"}})                                            //nolint:contextcheck // as above
					}
				}
				if coll == "c" && killed.Load() {
					return nil, errKilled
				}
				return source.Call(ctx, cmd)
			}),
			Target: target, Cuts: &rest{source: source, target: target}, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return nil }, Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
		}
	}
	check(t, config())
	replaced.Store(true)
	killed.Store(true)
	for _, resume := range []bool{false, true, false} {
		cfg := config()
		cfg.Progress.Resume = resume
		if _, err := must.Get(New(cfg))(t).Run(t.Context()); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf != nil {
			t.Errorf("resumed %t: %+v", resume, st)
		}
	}
	killed.Store(false)
	check(t, config())
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf == nil || st.Differences != 1 || st.Collections != 2 {
		t.Errorf("compared: %+v", st)
	}
}
