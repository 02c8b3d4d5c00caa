package history_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// lagging is a history whose lag was so at noon.
func lagging(seconds float64) *history.History {
	h := history.New()
	v := history.Unknown()
	v[history.LagSeconds] = seconds
	h.Add(noon, v)
	return h
}

// lag is that at noon, NaN if it is not known.
func lag(t *testing.T, s *history.Stored) float64 {
	t.Helper()
	h := history.New()
	if s != nil {
		h.Fill(s)
	}
	view := must.Get(h.View(time.Hour, noon))(t)
	return float64(view.Series[history.LagSeconds][719])
}

func write(t *testing.T, s *history.Store, h *history.History, term int64) error {
	t.Helper()
	stored := h.Stored()
	stored.Term, stored.At = term, noon
	return s.Write(t.Context(), stored)
}

// TestStore: a stored history is read back, by another process too, and only a leader of
// the same or a later term replaces it.
func TestStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := mongo.Caller(client.Open(t, driver.Config{URI: sim.URI()}))
	store := &history.Store{Target: target, DB: "replicator", Link: "dr"}
	other := &history.Store{Target: target, DB: "replicator", Link: "dr2"}
	if s, err := store.Read(ctx); s != nil || err != nil {
		t.Errorf("nothing is stored: %v %v", s, err)
	}
	must.Succeed(t, write(t, store, lagging(1), 5))
	must.Succeed(t, write(t, other, lagging(99), 1))
	must.Succeed(t, write(t, store, lagging(2), 5))
	is := func(when string, want float64) {
		t.Helper()
		s, err := store.Read(ctx)
		if got := lag(t, s); err != nil || got != want {
			t.Errorf("%s: %v, want %v: %v", when, got, want, err)
		}
	}
	is("written twice", 2)
	if err := write(t, store, lagging(3), 4); !errors.Is(err, history.ErrSuperseded) {
		t.Errorf("an earlier leader: %v", err)
	}
	is("an earlier leader wrote late", 2)
	must.Succeed(t, write(t, store, lagging(4), 6))
	is("the next leader", 4)

	// Damage does not last.
	change := func(fields func(dst []byte) []byte) {
		t.Helper()
		must.Succeed(t, metadata.Run(ctx, target, metadata.Majority(metadata.Update("replicator", metadata.History, metadata.Statement{
			Filter: metadata.ByID("dr"),
			Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", fields) },
		})), 1))
	}
	change(func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "term", "none") })
	s, err := store.Read(ctx)
	if damaged, ok := errors.AsType[*history.DamagedError](err); !ok || damaged.Link != "dr" || s != nil {
		t.Errorf("damaged: %v %v", s, err)
	}
	must.Succeed(t, write(t, store, lagging(5), 1))
	is("written again", 5)
	change(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "version", 9) })
	if _, err := store.Read(ctx); err == nil {
		t.Error("another format was read")
	}

	// A link that is removed leaves none.
	must.Succeed(t, must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "dr"}))(t).Remove(ctx))
	if s, err := store.Read(ctx); s != nil || err != nil || !math.IsNaN(lag(t, s)) {
		t.Errorf("removed: %v %v", s, err)
	}
	docs := must.Get(metadata.FindOne(ctx, target, "replicator", metadata.History, metadata.ByID("dr2")))(t)
	if id, ok := docs.Lookup("_id").StringValueOK(); !ok || id != "dr2" {
		t.Errorf("that of another link: %v", docs)
	}
}
