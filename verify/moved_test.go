package verify

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestRenamed: a collection that gets another name while it is compared, one that was not listed,
// is compared under that.
func TestRenamed(t *testing.T) {
	t.Parallel()
	for _, atCuts := range []bool{false, true} {
		source, target := cluster(t), cluster(t)
		insertRaw(t, source, "d.a", neighbours(t, 0, 10)...)
		insertRaw(t, target, "d.a", neighbours(t, 0, 9)...)
		var once sync.Once
		rename := func(mongo.Command) error {
			once.Do(func() {
				for _, c := range []mongo.Caller{source, target} {
					run(t, c, "admin", bson.D{{Key: "renameCollection", Value: "d.a"}, {Key: "to", Value: "d.b"}})
				}
			})
			return nil
		}
		var cuts Cuts
		if atCuts {
			cuts = &rest{source: source, target: target}
		}
		summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.a", before: rename}, Cuts: cuts})
		if len(found) != 1 || found[0].Kind != Missing || found[0].NS != "d.b" {
			t.Errorf("at cuts %t: %+v", atCuts, found)
		}
		if len(summary.Collections) != 1 || summary.Collections[0].EqualDocs != 9 || summary.Unchecked() > 0 {
			t.Errorf("at cuts %t: %+v", atCuts, summary.Collections)
		}
	}
}

// of70 returns a set whose reads look up names in the catalog of their time.
func of70(t *testing.T) mongo.Caller {
	set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1, Dialect: "7.0"})
	return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
}

// TestRenamedBack: a collection that had another name as of a cut, and has its own again, is not compared as an empty one.
func TestRenamedBack(t *testing.T) {
	t.Parallel()
	source, target := of70(t), of70(t)
	insertRaw(t, source, "d.a", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.a", neighbours(t, 0, 9)...)
	rename := func(from, to string) {
		for _, c := range []mongo.Caller{source, target} {
			run(t, c, "admin", bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}})
		}
	}
	cuts := &away{rest: rest{source: source, target: target}, rename: rename}
	summary, found := check(t, Config{Source: source, Target: target, Cuts: cuts})
	if len(found) != 1 || found[0].Kind != Missing || summary.Collections[0].EqualDocs != 9 || summary.Unchecked() > 0 {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// away are cuts of which at the first one d.a has another name.
type away struct {
	rest
	rename func(from, to string)
}

// Next implements Cuts.
func (a *away) Next(ctx context.Context) (Cut, error) {
	if a.made > 0 {
		return a.rest.Next(ctx)
	}
	a.rename("d.a", "d.away")
	cut, err := a.rest.Next(ctx)
	a.rename("d.away", "d.a")
	return cut, err
}

// TestReplacedAtTarget: a collection that the target has had under another name as of the newest cut, as one that was copied again, is
// read at a later one, although the source has written nothing since.
func TestReplacedAtTarget(t *testing.T) {
	t.Parallel()
	source, target := of70(t), of70(t)
	insertRaw(t, source, "d.a", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.copy", neighbours(t, 0, 9)...)
	cuts := &still{rest: rest{source: source, target: target}, first: func() {
		run(t, target, "admin", bson.D{{Key: "renameCollection", Value: "d.copy"}, {Key: "to", Value: "d.a"}})
	}}
	summary, found := check(t, Config{Source: source, Target: target, Cuts: cuts})
	if len(found) != 1 || found[0].Kind != Missing || len(summary.Collections) != 1 || summary.Collections[0].EqualDocs != 9 || summary.Unchecked() > 0 {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// still are cuts of a source that writes nothing. The first one is followed by something else.
type still struct {
	rest
	first func()
}

// Next implements Cuts.
func (s *still) Next(ctx context.Context) (Cut, error) {
	isFirst := s.made == 0
	s.made++
	at, err := mongo.OperationTime(ctx, s.source)
	if err != nil {
		return Cut{}, err
	}
	cut, err := (&rest{source: s.target, target: s.target}).Next(ctx)
	cut.Source = at
	if isFirst {
		s.first()
	}
	return cut, err
}

// TestStoppedWaiting: a verification that is stopped while a collection waits for its turn does not
// end as one that has compared it.
func TestStoppedWaiting(t *testing.T) {
	t.Parallel()
	none := callerFunc(func(context.Context, mongo.Command) (bson.Raw, error) { return nil, errPlanted })
	v := must.Get(New(Config{Source: none, Target: none, Scope: everything(t), Found: func(*Difference) error { return nil }, Workers: 1}))(t)
	if !v.ranges.TryAcquire(1) {
		t.Fatal("no range can be read")
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errPlanted)
	p := &pair{ns: "d.c", sourceNS: "d.c", want: &listed{ns: "d.c", hasID: true}, got: &listed{ns: "d.c", hasID: true}}
	if err := v.read(ctx, p, &Collection{}, byID, false); !errors.Is(err, errPlanted) {
		t.Errorf("got %v", err)
	}
}

type callerFunc func(context.Context, mongo.Command) (bson.Raw, error)

// Call implements mongo.Caller.
func (f callerFunc) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return f(ctx, cmd)
}

// TestNoSample: a collection of which the server takes no sample is compared as a whole.
func TestNoSample(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.c", neighbours(t, 0, 9)...)
	large := must.Marshal(t, bson.D{{Key: "ok", Value: 1}, {Key: "count", Value: 2 * leastSampled}, {Key: "size", Value: 100 * leastSampled}})
	unsampled := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		it := rawbson.NewIter(cmd.Body)
		it.Next()
		switch {
		case it.Is("collStats"):
			return large, nil
		case it.Is("aggregate"):
			return nil, servererr.New(28799, "$sample stage could not find a non-duplicate document after 100 while using a random cursor")
		}
		return source.Call(ctx, cmd)
	})
	summary, found := check(t, Config{Source: unsampled, Target: target, Sample: 0.01})
	if len(found) != 1 || found[0].Kind != Missing || summary.Collections[0].EqualDocs != 9 || summary.Collections[0].How != string(byID) {
		t.Errorf("%+v, %+v", found, summary.Collections)
	}
}

// TestRestartsAlone: a collection that is dropped and made again while it is compared begins again, and
// no other one does.
func TestRestartsAlone(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		for _, ns := range []oplog.Namespace{"d.a", "d.b", "d.c"} {
			insertRaw(t, c, ns, neighbours(t, 0, 10)...)
		}
	}
	var once sync.Once
	again := func(mongo.Command) error {
		once.Do(func() {
			for _, c := range []mongo.Caller{source, target} {
				run(t, c, "d", bson.D{{Key: "drop", Value: "b"}})
				insertRaw(t, c, "d.b", neighbours(t, 0, 5)...)
			}
		})
		return nil
	}
	reads := map[string]*atomic.Int64{"a": {}, "b": {}, "c": {}}
	counted := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if it := rawbson.NewIter(cmd.Body); it.Next() && it.Is("find") {
			name, _ := it.Text()
			if n := reads[name]; n != nil {
				n.Add(1)
			}
		}
		return source.Call(ctx, cmd)
	})
	summary, found := check(t, Config{
		Source: counted, Target: &hook{Caller: target, ns: "d.b", before: again}, Cuts: &rest{source: source, target: target},
		Scope: must.Get(scope.New(scope.Config{Include: []string{"d"}}))(t),
	})
	if len(found) > 0 || len(summary.Collections) != 3 || summary.Unchecked() > 0 {
		t.Fatalf("%+v, %+v", found, summary.Collections)
	}
	for i, want := range []Collection{{NS: "d.a", Tally: Tally{EqualDocs: 10}}, {NS: "d.b", Tally: Tally{EqualDocs: 5}, Restarts: 1}, {NS: "d.c", Tally: Tally{EqualDocs: 10}}} {
		c, name := summary.Collections[i], want.NS.Collection()
		if c.NS != want.NS || c.EqualDocs != want.EqualDocs || c.Restarts < want.Restarts || want.Restarts == 0 && (c.Restarts > 0 || reads[name].Load() != 1) {
			t.Errorf("%+v, read %d times", c, reads[name].Load())
		}
	}
}
