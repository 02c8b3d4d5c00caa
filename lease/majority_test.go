package lease

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestDefaultReadConcern: a lease is acquired where reads are of what a majority has by default: it is there only some
// time after the primary has written it.
func TestDefaultReadConcern(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{
		Members: 1, Seed: 1, DefaultReadConcern: "majority", JournalDelay: 100 * time.Millisecond, Moods: mongosim.NoMoods("one call acquires it"),
	})
	s := &store{t: t, Caller: client.Open(t, driver.Config{URI: sim.URI()})}
	s.write("insert", "documents", metadata.Document(func(dst []byte) []byte {
		r := Record{Instance: "1"}
		return r.Append(metadata.ByID("a")(dst))
	}))
	cfg := s.config("me")
	cfg.TTL = time.Minute
	cfg.Keeper = NewKeeper(KeeperConfig{Target: s, DB: cfg.DB, Collection: cfg.Collection, ID: cfg.ID, Holder: cfg.Holder, TTL: cfg.TTL})
	ctx, end := cfg.Keeper.Lead(t.Context())
	defer end()
	if l, _, err := Acquire(ctx, cfg, Record{Instance: "1"}, 0); err != nil || l.Term() != 1 {
		t.Errorf("got %v", err)
	}
	must.Succeed(t, cfg.Keeper.Release(t.Context()))
}
