package verify

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/verify/standing"
)

// TestResume: a verification that is stopped after some ranges continues with the others. Compared
// ranges are not read again; their differences are counted.
func TestResume(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := mixed(t, 700)
	a, b, want := spoiled(t, docs)
	insertRaw(t, source, "d.c", a...)
	insertRaw(t, target, "d.c", b...)
	progress := func(resume bool) *Progress {
		return &Progress{Target: target, DB: "replicator", Link: "l", Resume: resume}
	}
	cfg := func(reads *int, stop func(n int) error) Config {
		before := func(cmd mongo.Command) error {
			if _, ok := rawbson.Lookup(cmd.Body, "find"); !ok {
				return nil
			}
			*reads++
			return stop(*reads)
		}
		return Config{
			Source: &hook{Caller: source, ns: "d.c", before: before}, Target: target,
			Cuts: &rest{source: source, target: target}, RangeBytes: 20_000, Workers: 1, Scope: everything(t),
		}
	}
	never := func(int) error { return nil }
	whole := 0
	c := cfg(&whole, never)
	check(t, c)

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	errKilled := errors.New("killed")
	first, second := 0, 0
	c = cfg(&first, func(n int) error {
		if n > whole/2 {
			cancel(errKilled)
			return errKilled
		}
		return nil
	})
	c.Progress = progress(false)
	found := map[string]bool{}
	c.Found = func(d *Difference) error { found[string(d.Kind)+" "+d.id().String()] = true; return nil }
	if _, err := must.Get(New(c))(t).Run(ctx); !errors.Is(err, errKilled) {
		t.Fatalf("error %v", err)
	}
	c = cfg(&second, never)
	c.Progress = progress(true)
	summary, again := check(t, c)
	for i := range again {
		found[string(again[i].Kind)+" "+again[i].id().String()] = true
	}
	var got []string
	for text := range found {
		got = append(got, text)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || len(again) == len(want) {
		t.Errorf("%d differences, %d of them after it was resumed, want %d\n%s", len(got), len(again), len(want), strings.Join(got, "\n"))
	}
	r := &summary.Collections[0]
	if r.SourceDocs != int64(len(a)) || r.TargetDocs != int64(len(b)) || r.Missing+r.Extra+r.Differs != int64(len(want)) {
		t.Errorf("%+v", r)
	}
	if second < whole/4 || second > whole*3/4 {
		t.Errorf("%d reads after it was resumed, %d for the whole", second, whole)
	}
	// It is complete: another one begins from the start, resumed or not.
	third := 0
	c = cfg(&third, never)
	c.Progress = progress(true)
	if check(t, c); third < whole/2 {
		t.Errorf("%d reads, want about %d", third, whole)
	}
}

// TestResumeUncut: ranges that were compared without a cut, before a verification was stopped, count as of then, and not as of when it
// was resumed.
func TestResumeUncut(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := neighbours(t, 0, 1000)
	insertRaw(t, source, "d.c", docs...)
	insertRaw(t, target, "d.c", docs...)
	errKilled := errors.New("killed")
	config := func(resume bool, most int) Config {
		reads := 0
		return Config{
			Source: &hook{Caller: source, ns: "d.c", before: func(cmd mongo.Command) error {
				if _, atCut := at(cmd); atCut {
					return servererr.New(servererr.SnapshotUnavailable, "planted")
				}
				if reads++; reads > most {
					return errKilled
				}
				return nil
			}}, Target: target, Cuts: &rest{source: source, target: target}, RangeBytes: 10_000, Workers: 1, Scope: everything(t),
			Found: func(*Difference) error { return nil }, Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: resume},
		}
	}
	if _, err := must.Get(New(config(false, 3)))(t).Run(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	stopped := must.Get(mongo.OperationTime(t.Context(), target))(t)
	summary, _ := check(t, config(true, 1000))
	if c := &summary.Collections[0]; c.EqualDocs != int64(len(docs)) || !strings.Contains(c.How, "read again") {
		t.Fatalf("%+v", c)
	}
	if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf == nil || st.AsOf.Target.After(stopped) {
		t.Errorf("verified as of %+v, %q; stopped at %v", st.AsOf, st.Why, stopped)
	}
}

// TestStoredUncut: collections that are not read at a cut, and views, are verified as of one at which their catalogs were compared.
func TestStoredUncut(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		run(t, c, "d", bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "capped"}, {Key: "pipeline", Value: bson.A{}}})
		insertRaw(t, c, "d.capped", neighbours(t, 0, 10)...)
	}
	before := must.Get(mongo.OperationTime(t.Context(), target))(t)
	check(t, Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}, Progress: &Progress{Target: target, DB: "replicator", Link: "l"}})
	after := must.Get(mongo.OperationTime(t.Context(), target))(t)
	st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
	if st.AsOf == nil || st.Verified != 2 || !st.AsOf.Target.After(before) || st.AsOf.Target.After(after) {
		t.Errorf("%+v, between %v and %v", st, before, after)
	}
}

// TestResumeAnother: the progress of an earlier collection of the same name is not used, nor is one that
// cannot be parsed, and without privileges nothing is stored.
func TestResumeAnother(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.c", neighbours(t, 0, 10)...)
	kill := errors.New("killed")
	stored := func() {
		t.Helper()
		c := Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}, Scope: everything(t)}
		c.Progress = &Progress{Target: target, DB: "replicator", Link: "l"}
		c.Found = func(*Difference) error { return nil }
		v := must.Get(New(c))(t)
		// All ranges are stored, and the end is not.
		v.cfg.Checked = func(*Collection) {}
		v.ended = func() error { return kill }
		if _, err := v.Run(t.Context()); !errors.Is(err, kill) {
			t.Fatal(err)
		}
	}
	resumed := func(what string, want int64) {
		t.Helper()
		summary, found := check(t, Config{
			Source: source, Target: target, Cuts: &rest{source: source, target: target},
			Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: true},
		})
		if len(found) > 0 || summary.Collections[0].EqualDocs != want {
			t.Errorf("%s: %+v %+v", what, found, summary.Collections)
		}
	}
	stored()
	resumed("as it was", 10)
	stored()
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "drop", Value: "c"}})
		insertRaw(t, c, "d.c", neighbours(t, 0, 3)...)
	}
	resumed("another collection", 3)
	stored()
	run(t, target, "d", bson.D{{Key: "drop", Value: "c"}})
	insertRaw(t, target, "d.c", neighbours(t, 0, 2)...)
	if _, found := check(t, Config{
		Source: source, Target: target, Cuts: &rest{source: source, target: target},
		Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: true},
	}); len(found) != 1 || found[0].Kind != Missing {
		t.Errorf("another collection of the target: %+v", found)
	}
	insertRaw(t, target, "d.c", neighbours(t, 2, 3)...)
	stored()
	run(t, target, "replicator", bson.D{{Key: "update", Value: "verified"}, {Key: "updates", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "pass.ranges", Value: "x"}}}}}},
	}}})
	resumed("damaged", 3)
	denied := &hook{Caller: target}
	p := &Progress{Target: refusing{denied}, DB: "replicator", Link: "l"}
	check(t, Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}, Progress: p})
	if !p.off {
		t.Error("progress is stored without the privilege")
	}
}

// refusing refuses updates.
type refusing struct{ mongo.Caller }

// Call implements mongo.Caller.
func (r refusing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, ok := rawbson.Lookup(cmd.Body, "update"); ok {
		return nil, servererr.New(servererr.Unauthorized, "planted")
	}
	return r.Caller.Call(ctx, cmd)
}

// TestResumeConcurrent: what a verification has compared does not count for ranges that another one
// has stored meanwhile.
func TestResumeConcurrent(t *testing.T) {
	t.Parallel()
	ctx, target := t.Context(), cluster(t)
	none := callerFunc(func(context.Context, mongo.Command) (bson.Raw, error) { return nil, errPlanted })
	p := &pair{ns: "d.c", sourceNS: "d.c", want: &listed{ns: "d.c", hasID: true}, got: &listed{ns: "d.c", hasID: true}}
	planned := func(resume bool) (*Verifier, plan) {
		v := must.Get(New(Config{
			Source: none, Target: none, Scope: everything(t), Found: func(*Difference) error { return nil }, Cuts: &rest{source: target, target: target},
			Progress: &Progress{Target: target, DB: "replicator", Link: "l", Resume: resume},
		}))(t)
		must.Succeed(t, v.begin(ctx, must.Get(v.look(ctx))(t), []settled{{pair: *p}}))
		return v, must.Get(v.plan(ctx, p, byID))(t)
	}
	first, mine := planned(false)
	_, _ = planned(false)
	must.Succeed(t, first.compared(ctx, &mine, 0, &scan{v: first, p: p}))
	second, others := planned(true)
	if len(others.done) > 0 {
		t.Errorf("compared by another verification: %+v", others.done)
	}
	must.Succeed(t, second.compared(ctx, &others, 0, &scan{v: second, p: p}))
	if _, same := planned(true); len(same.done) != 1 {
		t.Errorf("its own: %+v", same.done)
	}
}

// TestBeginTogether: a verification during whose listing another one begins, and ends, lists again and is carried out.
func TestBeginTogether(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	insertRaw(t, source, "d.c", doc(element(t, "_id", 1)))
	insertRaw(t, target, "d.c", doc(element(t, "_id", 1)))
	cfg := func(from mongo.Caller) Config {
		return Config{
			Source: from, Target: target, Scope: everything(t), Cuts: &rest{source: source, target: target},
			Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
		}
	}
	var other sync.Once
	late := cfg(callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if simcaller.Name(cmd) == "listCollections" {
			other.Do(func() { check(t, cfg(source)) }) //nolint:contextcheck // the other one is not of this call
		}
		return source.Call(ctx, cmd)
	}))
	if _, differences := check(t, late); len(differences) > 0 {
		t.Errorf("differences: %v", differences)
	}
	if n := late.Progress.round.N; n != 2 {
		t.Errorf("it was round %d, want 2", n)
	}
}
