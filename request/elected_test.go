package request

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// leading is a link with a lease, in a target that may be one with a primary that was just elected.
func leading(t *testing.T) (*client.Elected, *checkpoint.Link) {
	t.Helper()
	g := newTarget(t)
	_, h := create(t, g)
	return &client.Elected{Caller: g}, h
}

// TestSettingsElected: a link that was paused is not found as it was before that, by a process that has read its settings or by another one, as long as
// the target's primary does not know that a majority has the pause; and nothing that a failover may roll back is found.
func TestSettingsElected(t *testing.T) {
	t.Parallel()
	target, h := leading(t)
	confirmed := New(links(t, target.Caller, "a"))
	was := must.Get(confirmed.Set(t.Context(), h, Settings{}, Settings{Level: "debug"}))(t)
	reader := New(links(t, target, "a"))
	for name, s := range map[string]*Store{"read before": reader, "another process": New(links(t, target, "a"))} {
		must.Get(reader.Settings(t.Context()))(t)
		target.Elect(t)
		next := was
		next.Paused = &Paused{Request: name, By: "me"}
		was = must.Get(confirmed.Set(t.Context(), h, was, next))(t)
		short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if got, err := s.Settings(short); err == nil {
			t.Errorf("%s: found before it is known that a majority has the pause: %+v", name, got)
		}
		stop()
		learnt := time.AfterFunc(100*time.Millisecond, target.Learn)
		if got := must.Get(s.Settings(t.Context()))(t); got.Paused == nil || got.Paused.Request != name {
			t.Errorf("%s: the pause is not found: %+v", name, got)
		}
		learnt.Stop()
		next.Paused = nil
		was = must.Get(confirmed.Set(t.Context(), h, was, next))(t)
	}
}

// TestSettingsRemoved: settings are as before the first change once somebody has removed their document.
func TestSettingsRemoved(t *testing.T) {
	t.Parallel()
	target, h := leading(t)
	s := New(links(t, target, "a"))
	must.Get(s.Set(t.Context(), h, Settings{}, Settings{Paused: &Paused{By: "me"}}))(t)
	if got := must.Get(s.Settings(t.Context()))(t); got.Paused == nil {
		t.Errorf("%+v", got)
	}
	must.Get(target.Call(t.Context(), metadata.Majority(metadata.Delete("replicator", metadata.Control, metadata.ByID("a")))))(t)
	if got := must.Get(s.Settings(t.Context()))(t); got.Paused != nil || got.found {
		t.Errorf("%+v", got)
	}
}

// TestReadElected: a collection that is to be copied once more is not found as it was before that.
func TestReadElected(t *testing.T) {
	t.Parallel()
	target, h := leading(t)
	confirmed, s := New(links(t, target.Caller, "a")), New(links(t, target, "a"))
	must.Succeed(t, confirmed.Resync(t.Context(), "d.c"))
	must.Succeed(t, confirmed.Answer(t.Context(), h, "d.c", Done, ""))
	must.Get(s.Read(t.Context()))(t)
	target.Elect(t)
	must.Succeed(t, confirmed.ResyncUnder(t.Context(), h, "d.c"))
	defer time.AfterFunc(100*time.Millisecond, target.Learn).Stop()
	if all := must.Get(s.Read(t.Context()))(t); all.Resync[0].State != Asked {
		t.Errorf("%+v", all)
	}
}

// withoutMajority is a target that has no reads with read concern majority.
type withoutMajority struct{ mongo.Caller }

// Call implements mongo.Caller.
func (w withoutMajority) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" {
		return nil, servererr.New(servererr.ReadConcernMajorityNotEnabled, "Majority read concern requested, but it is not supported by the storage engine.")
	}
	return w.Caller.Call(ctx, cmd)
}

// TestReadWithoutMajority: requests and settings are found in a target that has no such reads.
func TestReadWithoutMajority(t *testing.T) {
	t.Parallel()
	target, h := leading(t)
	s := New(links(t, withoutMajority{target.Caller}, "a"))
	must.Succeed(t, s.Resync(t.Context(), "d.c"))
	must.Get(s.Set(t.Context(), h, Settings{}, Settings{Level: "debug"}))(t)
	if all := must.Get(s.Read(t.Context()))(t); len(all.Resync) != 1 {
		t.Errorf("%+v", all)
	}
	if got := must.Get(s.Settings(t.Context()))(t); got.Level != "debug" {
		t.Errorf("%+v", got)
	}
}
