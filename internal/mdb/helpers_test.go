package mdb_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/mdb/mdbtest"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t testing.TB, c mdb.Config) *mdb.Options {
	t.Helper()
	o, err := mdb.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func open(t testing.TB, c mdb.Config) *mdb.Set {
	t.Helper()
	s, err := mdb.Open(t.Context(), parse(t, c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// start starts a set whose elections are quick.
func start(t testing.TB, o mongosim.Options) *mongosim.Set {
	t.Helper()
	o.Seed, o.Moods = 1, mongosim.NoMoods("what a connection does about each answer is tested one by one, by fail points")
	if o.ElectionTimeout == 0 {
		o.HeartbeatInterval, o.ElectionTimeout = 50*time.Millisecond, 500*time.Millisecond
	}
	return mongosim.StartTest(t, o)
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func command(t testing.TB, pairs ...any) call.Command {
	t.Helper()
	doc := make(bson.D, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		doc = append(doc, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return call.Command{DB: "app", Body: mdbtest.Doc(t, doc)}
}

func try(t testing.TB, c call.Caller, pairs ...any) (bson.Raw, error) {
	t.Helper()
	return c.Call(within(t), command(t, pairs...))
}

func must(t testing.TB, c call.Caller, pairs ...any) bson.Raw {
	t.Helper()
	reply, err := try(t, c, pairs...)
	if err != nil {
		t.Fatalf("%v: %v", pairs[0], err)
	}
	return reply
}

// other returns a member that is not primary.
func other(t testing.TB, set *mongosim.Set) *mongosim.Member {
	t.Helper()
	p, err := set.AwaitPrimary(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range set.Members() {
		if m.ID() != p.ID() {
			return m
		}
	}
	t.Fatal("the set has no other member")
	return nil
}
