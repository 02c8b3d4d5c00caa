package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// failing is an empty target of which each command takes some time, and fails, as long as there are
// failures.
type failing struct {
	failures []time.Duration
	err      error // of each failure
	tried    int
}

// Call implements mongo.Caller.
func (f *failing) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	f.tried++
	if len(f.failures) > 0 {
		timer := time.NewTimer(f.failures[0])
		defer timer.Stop()
		f.failures = f.failures[1:]
		select {
		case <-timer.C:
			return nil, f.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return reply(bson.D{
		{Key: "ok", Value: 1},
		{Key: "n", Value: 1},
		{Key: "databases", Value: bson.A{}},
		{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.y"}, {Key: "firstBatch", Value: bson.A{}}}},
	}), nil
}

// Check implements ddl.Fence.
func (f *failing) Check(context.Context) error { return nil }

// Within implements ddl.Fence.
func (f *failing) Within(_ context.Context, work func(txn mongo.Caller) error) error { return work(f) }

// TestConvertTriesAgain: a failover of the target that interrupts the build of an index, however long
// it has taken, does not end a conversion. Without any progress it ends after a minute.
func TestConvertTriesAgain(t *testing.T) {
	t.Parallel()
	always := make([]time.Duration, 1000)
	for i := range always {
		always[i] = 5 * time.Second
	}
	interrupted := servererr.New(servererr.InterruptedDueToReplStateChange, "operation was interrupted")
	slow := make([]time.Duration, 1000)
	for i := range slow {
		slow[i] = 90 * time.Second // serverSelectionTimeoutMS of the connection string
	}
	for name, c := range map[string]struct {
		failures []time.Duration
		err      error
		ends     bool
	}{
		"after hours":             {[]time.Duration{3 * time.Hour, time.Second, 2 * time.Hour, time.Second}, interrupted, false},
		"lost, after hours":       {[]time.Duration{3 * time.Hour, time.Second}, &mongo.LostError{Host: "a:1", Err: io.EOF}, false},
		"for a minute":            {always, interrupted, true},
		"without a server to ask": {slow, &mongo.LostError{Err: errors.New("no primary")}, true},
		"refused for long":        {slow, &mongo.StuckError{Tried: 90 * time.Second, Tries: 90, Err: interrupted}, true},
		"a read without a reply":  {slow, &mongo.SilentError{After: 90 * time.Second, Read: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				target := &failing{failures: c.failures, err: c.err}
				began := time.Now()
				_, err := cutover.Convert(t.Context(), &cutover.ConvertConfig{Target: target, Fence: target, MetaDB: "replicator", Link: "mirror"})
				if took := time.Since(began); (err != nil) != c.ends || c.ends && took > 3*time.Minute {
					t.Errorf("after %s and %d commands: %v", took, target.tried, err)
				}
			})
		})
	}
}

// slowly is a target with deferred unique indexes x0, x1, … on db.c. It fails over 20 s after each that has become
// unique.
type slowly struct {
	failing
	unique   []bool
	collMods int
}

// Call implements mongo.Caller.
func (s *slowly) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	cursor := func(docs bson.A) (bson.Raw, error) {
		return reply(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.y"}, {Key: "firstBatch", Value: docs}}}}), nil
	}
	uuid := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	index := func(i int, unique bool) bson.D {
		name := fmt.Sprintf("x%d", i)
		spec := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}
		if unique {
			spec = append(spec, bson.E{Key: "unique", Value: true})
		}
		return spec
	}
	var docs bson.A
	switch name := simcaller.Name(cmd); {
	case name == "hello":
		return reply(bson.D{{Key: "ok", Value: 1}, {Key: "maxWireVersion", Value: 21}}), nil
	case name == "listCollections" && cmd.DB == "db":
		return cursor(bson.A{bson.D{{Key: "name", Value: "c"}, {Key: "type", Value: "collection"}, {Key: "options", Value: bson.D{}}, {Key: "info", Value: bson.D{{Key: "uuid", Value: uuid}}}}})
	case name == "listIndexes":
		for i, is := range s.unique {
			docs = append(docs, index(i, is))
		}
		return cursor(docs)
	case name == "find" && cmd.Body.Lookup("find").StringValue() == metadata.Deferred:
		for i := range s.unique {
			docs = append(docs, bson.D{
				{Key: "_id", Value: bson.D{{Key: "link", Value: "mirror"}, {Key: "ns", Value: "db.c"}, {Key: "index", Value: fmt.Sprintf("x%d", i)}}},
				{Key: "uuid", Value: uuid},
				{Key: "deferred", Value: bson.A{"unique"}},
				{Key: "spec", Value: bson.Binary{Data: reply(index(i, true))}},
			})
		}
		return cursor(docs)
	case name == "collMod":
		if s.collMods++; s.collMods%3 == 0 {
			s.failures = []time.Duration{20 * time.Second}
		} else if _, err := cmd.Body.LookupErr("index", "unique"); err == nil {
			var i int
			if _, err := fmt.Sscanf(cmd.Body.Lookup("index", "name").StringValue(), "x%d", &i); err != nil {
				return nil, err
			}
			s.unique[i] = true
		}
	}
	return s.failing.Call(ctx, cmd)
}

// TestConvertCountsChanges: a conversion goes on for as long as each try changes something, however soon after that the
// target fails over.
func TestConvertCountsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const indexes = 6
		target := &slowly{unique: make([]bool, indexes)}
		target.err = servererr.New(servererr.InterruptedDueToReplStateChange, "operation was interrupted")
		began := time.Now()
		n, err := cutover.Convert(t.Context(), &cutover.ConvertConfig{Target: target, Fence: &failing{}, MetaDB: "replicator", Link: "mirror"})
		if took := time.Since(began); err != nil || n != indexes || took < 80*time.Second {
			t.Errorf("%d changes after %s: %v", n, took, err)
		}
	})
}
