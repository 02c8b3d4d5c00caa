package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestOrderOfEarlierRelease: a request of an earlier release, which has no number, comes after those that
// were asked before it, and before those that were asked after it.
func TestOrderOfEarlierRelease(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	var docs []bson.Raw
	add := func(id string, asked, seq int64) {
		d := bson.D{
			{Key: "_id", Value: "a/" + id},
			{Key: "kind", Value: "pause"},
			{Key: "args", Value: "{}"},
			{Key: "state", Value: Asked},
			{Key: "at", Value: time.UnixMilli(asked)},
			{Key: "changedAt", Value: time.UnixMilli(asked)},
		}
		if seq > 0 {
			d = append(d, bson.E{Key: "seq", Value: seq})
		}
		docs = append(docs, must.Get(bson.Marshal(d))(t))
	}
	add("0-first", 1000, 0)
	add("3-numbered", 2000, 7)
	add("2-equal", 2000, 0)
	add("1-between", 3000, 0)
	add("5-next", 4000, 8)
	add("6-clock-back", 3500, 9)
	add("4-last", 5000, 0)
	must.Get(g.Call(t.Context(), metadata.Write("replicator", "insert", metadata.Control, "documents", docs...)))(t)
	is := func(want ...string) {
		t.Helper()
		var got []string
		for _, r := range must.Get(s.List(t.Context()))(t) {
			got = append(got, r.ID)
		}
		slices.Reverse(got)
		if !slices.Equal(got, want) {
			t.Errorf("the oldest first: %s, want %s", got, want)
		}
	}
	all := []string{"0-first", "2-equal", "3-numbered", "1-between", "5-next", "6-clock-back", "4-last"} // 6 was asked after 5
	is(all...)
	r := must.Get(s.Ask(t.Context(), Ask{Kind: Resume}))(t)
	is(append(all, r.ID)...)
}

// meanwhile is a target that loses its primary as it is to store the first request: something else happens
// in between.
type meanwhile struct {
	mongo.Caller
	do func()
	// stores means that the request is stored.
	stores bool
}

// Call implements mongo.Caller.
func (m *meanwhile) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if name, _ := cmd.Body.Lookup("update").StringValueOK(); name == metadata.Control && m.do != nil {
		do := m.do
		m.do = nil
		if m.stores {
			if reply, err := m.Caller.Call(ctx, cmd); err != nil {
				return reply, err
			}
		}
		do()
		return nil, servererr.New(servererr.NotWritablePrimary, "not primary")
	}
	return m.Caller.Call(ctx, cmd)
}

// TestAskNumbered: a request that is not stored by the first try is later than those that are stored before
// the second one; one that is stored by it is not refused because there are many by then.
func TestAskNumbered(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	var other Record
	lost := &meanwhile{Caller: g, do: func() { other = must.Get(s.Ask(ctx, Ask{Kind: Resume}))(t) }}
	if r := must.Get(New(links(t, lost, "a")).Ask(ctx, Ask{Kind: Pause}))(t); r.Seq <= other.Seq {
		t.Errorf("asked for %+v, then for %+v", other, r)
	}
	lost.stores, lost.do = true, func() {
		var docs []bson.Raw
		for i := range mostOpen {
			docs = append(docs, must.Get(bson.Marshal(bson.D{{Key: "_id", Value: fmt.Sprintf("a/%03d", i)}, {Key: "state", Value: Asked}}))(t))
		}
		must.Get(g.Call(ctx, metadata.Write("replicator", "insert", metadata.Control, "documents", docs...)))(t)
	}
	r := must.Get(New(links(t, lost, "a")).Ask(ctx, Ask{Kind: Throttle, Args: json.RawMessage(`{"applyOpsPerSecond": 5}`)}))(t)
	if r.Seq != other.Seq+2 {
		t.Errorf("%+v", r)
	}
}

// TestReadFailover: the requests can be read while the target has a failover; without an end of that the
// reader hears of it.
func TestReadFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, Moods: mongosim.NoMoods("each failover is one of the test")})
	g := client.Open(t, driver.Config{URI: sim.URI()})
	r := must.Get(New(links(t, mongo.Caller(g), "a")).Ask(ctx, Ask{Kind: Pause}))(t)
	without := &away{Caller: g}
	s := New(links(t, mongo.Caller(without), "a"))
	read := func() {
		t.Helper()
		if list := must.Get(s.List(ctx))(t); len(list) != 1 || list[0].ID != r.ID {
			t.Errorf("%+v", list)
		}
		if got := must.Get(s.Get(ctx, r.ID))(t); got.ID != r.ID {
			t.Errorf("%+v", got)
		}
	}
	for range 2 {
		without.left.Store(4)
		must.Get(s.List(ctx))(t)
		without.left.Store(4)
		must.Get(s.Get(ctx, r.ID))(t)
	}
	stepped := make(chan error, 1)
	go func() { stepped <- sim.StepDown(ctx) }()
	for over := false; !over; {
		select {
		case err := <-stepped:
			must.Succeed(t, err)
			over = true
		default:
		}
		read()
	}
	without.left.Store(1 << 40)
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := s.List(limited)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not primary") {
		t.Error(err)
	}
}
