package applier

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// strictBuckets is a target that refuses buckets with "several types" in them, as servers since
// 6.0.13 and 7.0.6 do with those whose minimum and maximum have different types, until collMod
// allows them.
type strictBuckets struct {
	to      *simTarget
	mu      sync.Mutex
	allowed bool
	mods    int
	refused int
}

func (s *strictBuckets) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if simcaller.Name(cmd) == "collMod" {
		s.mods++
		s.allowed = cmd.Body.Lookup("timeseriesBucketsMayHaveMixedSchemaData").Boolean() && cmd.Body.Lookup("collMod").StringValue() == "m"
		return must.Marshal(fatal{}, bson.D{{Key: "ok", Value: 1.0}}), nil
	}
	at := slices.IndexFunc(cmd.Docs, func(doc bson.Raw) bool { return bytes.Contains(doc, []byte("several types")) })
	if at < 0 || s.allowed {
		return s.to.send(ctx, cmd)
	}
	s.refused++
	// Nothing after the refused statement is executed: the command is ordered.
	if at > 0 {
		cmd.Docs = cmd.Docs[:at]
		if _, err := s.to.send(ctx, cmd); err != nil {
			return nil, err
		}
	}
	return must.Marshal(fatal{}, bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: at}, {Key: "writeErrors", Value: bson.A{bson.D{
		{Key: "index", Value: at},
		{Key: "code", Value: int32(servererr.MixedSchemaBuckets)},
		{Key: "errmsg", Value: "Cannot write time-series bucket containing mixed schema data"},
	}}}}), nil
}

// fatal is for values that can be encoded.
type fatal struct{}

func (fatal) Helper() {}

func (fatal) Fatalf(format string, _ ...any) { panic(format) }

// TestMixedBuckets: buckets of a source before 5.2 may have values of several types in a field. A
// newer target refuses them until it is told so: in the steady state and while the log meets a
// copy, for inserts, updates and whole documents.
func TestMixedBuckets(t *testing.T) {
	t.Parallel()
	const ns = "db.system.buckets.m"
	several := bson.D{{Key: "_id", Value: 2}, {Key: "v", Value: "several types"}}
	for name, ops := range map[string][]bson.D{
		"insert":  {insertOp(ns, doc(1, 0)), insertOp(ns, several), insertOp(ns, doc(3, 0))},
		"update":  {insertOp(ns, doc(1, 0)), insertOp(ns, doc(2, 0)), setOp(ns, 2, "several types"), insertOp(ns, doc(3, 0))},
		"replace": {insertOp(ns, doc(1, 0)), insertOp(ns, doc(2, 0)), replaceOp(ns, several), insertOp(ns, doc(3, 0))},
	} {
		for _, copied := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " copied"}[copied], func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "m"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
				strict := &strictBuckets{to: r.target}
				r.target.instead = strict
				l := newLog(t)
				for _, op := range ops {
					l.add(op)
				}
				a := r.apply(t, l.batches(), func(c *Config) {
					if copied {
						c.CopiedUntil = l.optime()
					}
				})
				r.target.instead = nil
				docs := r.target.documents(t, ns)
				slices.SortFunc(docs, func(a, b bson.Raw) int { return bytes.Compare(a.Lookup("_id").Value, b.Lookup("_id").Value) })
				if len(docs) != 3 || docs[1].Lookup("v").StringValue() != "several types" {
					t.Errorf("documents: %s", docs)
				}
				if strict.mods != 1 || strict.refused != 1 || a.Stats().Divergences != 0 {
					t.Errorf("%d collMod, %d refused, %d divergences", strict.mods, strict.refused, a.Stats().Divergences)
				}
			})
		}
	}
}
