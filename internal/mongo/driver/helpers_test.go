package driver_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t testing.TB, c driver.Config) *driver.Options {
	t.Helper()
	o, err := driver.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func open(t testing.TB, c driver.Config) *driver.Set {
	t.Helper()
	s, err := driver.Open(t.Context(), parse(t, c))
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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func command(t testing.TB, pairs ...any) mongo.Command {
	t.Helper()
	doc := make(bson.D, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		doc = append(doc, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return mongo.Command{DB: "app", Body: drivertest.Doc(t, doc)}
}

func try(t testing.TB, c mongo.Caller, pairs ...any) (bson.Raw, error) {
	t.Helper()
	return c.Call(within(t), command(t, pairs...))
}

func must(t testing.TB, c mongo.Caller, pairs ...any) bson.Raw {
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
