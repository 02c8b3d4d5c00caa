package verify

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// learning returns a side whose primary learns what a majority has while a read waits for that, once it was elected.
func learning(e *client.Elected) mongo.Caller {
	return callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if _, _, waits := cmd.Body.Lookup("readConcern", "afterClusterTime").TimestampOK(); waits {
			time.AfterFunc(20*time.Millisecond, e.Learn)
		}
		return e.Call(ctx, cmd)
	})
}

// justElected returns a side whose primary was just elected.
func justElected(t *testing.T, c mongo.Caller) mongo.Caller {
	t.Helper()
	e := &client.Elected{Caller: c}
	e.Elect(t)
	return learning(e)
}

// refuseCuts refuses reads as of a time.
func refuseCuts(cmd mongo.Command) error {
	if _, ok := at(cmd); ok {
		return servererr.New(servererr.SnapshotUnavailable, "planted")
	}
	return nil
}

// TestElected: a primary that was just elected, and does not know yet that a majority has the last writes, makes nothing differ that is
// the same, and nothing the same that differs, where documents cannot be read as of a time.
func TestElected(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"source", "target"} {
		for _, differs := range []bool{false, true} {
			source, target := cluster(t), cluster(t)
			for _, c := range []mongo.Caller{source, target} {
				insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
			}
			cfg := Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}}
			if side == "source" {
				cfg.Source = justElected(t, source)
			} else {
				cfg.Target = justElected(t, target)
			}
			cfg.Target = &hook{Caller: cfg.Target, ns: "d.c", before: refuseCuts}
			want := 0
			if differs {
				want = 2
				insertRaw(t, cfg.Source, "d.c", neighbours(t, 10, 12)...)
				if side == "target" {
					run(t, target, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{
						bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 1}},
					}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
					want = 3
				}
			} else {
				insertRaw(t, source, "d.c", neighbours(t, 10, 12)...)
				insertRaw(t, target, "d.c", neighbours(t, 10, 12)...)
			}
			summary, found := check(t, cfg)
			if len(found) != want || summary.Unchecked() > 0 {
				t.Errorf("elected at the %s: %d differences, want %d: %+v %+v", side, len(found), want, found, summary.Collections)
			}
		}
	}
}

// TestElectedMeanwhile: nor does a primary that is elected once the documents were read, before those that differ are read again.
func TestElectedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"source", "target"} {
		source, target := cluster(t), cluster(t)
		for _, c := range []mongo.Caller{source, target} {
			insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
		}
		e := &client.Elected{Caller: target}
		if side == "source" {
			e.Caller = source
		}
		elected := false
		elect := func(mongo.Command) error {
			if elected {
				return nil
			}
			elected = true
			e.Elect(t)
			if side == "target" {
				insertRaw(t, target, "d.c", neighbours(t, 10, 11)...)
				return nil
			}
			run(t, source, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{
				bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 10}}}, {Key: "limit", Value: 1}},
			}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			return nil
		}
		written := sync.OnceFunc(func() { insertRaw(t, source, "d.c", neighbours(t, 10, 11)...) })
		write := func(cmd mongo.Command) error {
			if _, ok := at(cmd); !ok {
				written() // since the last cut: the link is behind
			}
			return refuseCuts(cmd)
		}
		cfg := Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}}
		if side == "source" {
			cfg.Source = &hook{Caller: learning(e), ns: "d.c", after: elect}
		} else {
			cfg.Target = &hook{Caller: learning(e), ns: "d.c", after: elect}
		}
		cfg.Source = &hook{Caller: cfg.Source, ns: "d.c", before: write}
		cfg.Target = &hook{Caller: cfg.Target, ns: "d.c", before: refuseCuts}
		summary, found := check(t, cfg)
		if len(found) > 0 || summary.Unchecked() > 0 || !elected {
			t.Errorf("elected at the %s: %+v %+v", side, found, summary.Collections)
		}
	}
}

// TestConfirmToggled: a document that the source changes to and fro is the same each time that the source is read, whatever the target has in
// between. It does not differ if the target has the same at another time, however many others do.
func TestConfirmToggled(t *testing.T) {
	t.Parallel()
	for _, others := range []int{1, 90, 2 * confirmDocs} {
		source, target := cluster(t), cluster(t)
		docs := make([][]bson.Raw, 2)
		for i, c := range []mongo.Caller{source, target} {
			run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
			for n := range others {
				docs[i] = append(docs[i], doc(element(t, "_id", int32(n)), element(t, "n", int32(i))))
			}
			docs[i] = append(docs[i], doc(element(t, "_id", int32(others)), element(t, "on", i == 0)))
			insertRaw(t, c, "d.c", docs[i]...)
		}
		read := 0
		toggle := func(cmd mongo.Command) error {
			in, ok := cmd.Body.Lookup("filter", "_id", "$in").ArrayOK()
			if !ok {
				return nil
			}
			ids := must.Get(in.Values())(t)
			if last, ok := ids[len(ids)-1].AsInt64OK(); !ok || last != int64(others) {
				return nil // it is not read again
			}
			read++
			run(t, target, "d", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
				bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: others}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "on", Value: read == confirmTimes}}}}}},
			}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			return nil
		}
		summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: toggle}, Cuts: &rest{source: source, target: target}})
		toggled := slices.ContainsFunc(found, func(d Difference) bool { return string(d.ID) == number(others) })
		if len(found) != others || toggled || summary.Unchecked() > 0 {
			t.Errorf("%d others: %d differences, %+v", others, len(found), summary.Collections)
		}
	}
}

// TestConfirmThenMoving: a document that differed while the source did not change it differs, though the source changes it each time that it is read
// after that, and so do the others.
func TestConfirmThenMoving(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for i, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		insertRaw(t, c, "d.c", doc(element(t, "_id", int32(1)), element(t, "n", int32(i))), doc(element(t, "_id", int32(2)), element(t, "n", int32(i))))
	}
	read := 0
	change := func(cmd mongo.Command) error {
		if cmd.Body.Lookup("filter", "_id", "$in").IsZero() {
			return nil // it is not read again
		}
		if read++; read > 2 { // before and after the target's
			run(t, source, "d", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
				bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(read)}}}}}},
			}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
		}
		return nil
	}
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: change}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) != 2 || summary.Unchecked() > 0 || read < 4 {
		t.Errorf("%+v %+v, after %d reads", found, summary.Collections, read)
	}
}
