package pace

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
)

// TestWire asks servers over the network: one that shows pressure of several kinds, and
// one that does not let this user ask.
func TestWire(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 21, Users: []mongosim.User{
		{Name: "mirror", Password: "secret", Roles: []mongosim.Role{{Name: "clusterMonitor", DB: "admin"}}},
		{Name: "nobody", Password: "secret"},
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	connect := func(user string) *driver.Set {
		return client.Open(t, driver.Config{URI: set.URIFor(user), AppName: mongosim.Stage})
	}
	events := make(chan event.Event, 1000)
	p := newPacer(t, Config{Source: connect("nobody"), Target: connect("mirror"), Every: 50 * time.Millisecond, Observer: func(e event.Event) { events <- e }})
	run, end := context.WithCancelCause(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(run) }()
	next := func() event.Event {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-ctx.Done():
			t.Fatal("nothing happens")
			return nil
		}
	}
	text := func(e event.Event, key string) string { return event.Attr(e, key).String() }
	if e := next(); !strings.HasPrefix(e.Message(), "no privilege for serverStatus") || text(e, keySide) != string(clone.Source) {
		t.Errorf("the source's refusal is %+v", e)
	}
	for want, pressure := range map[string]mongosim.Pressure{
		"flow control holds its writes back, as its secondaries lag": {Lagged: true},
		"31 % of its cache is dirty":                                 {CacheDirty: 0.31},
		"it has no tickets left to write":                            {WriteTickets: 128},
	} {
		set.Member(0).SetPressure(pressure)
		for p.Status().Factor > leastFactor {
			if e := next(); e.Message() != "copy is slowed down" || text(e, keySide) != string(clone.Target) || text(e, keyWhy) != want {
				t.Fatalf("%s: %+v", want, e)
			}
		}
		set.Member(0).SetPressure(mongosim.Pressure{})
		for {
			e := next()
			if e.Message() == "copy is at full speed again" {
				break
			}
			if e.Message() != "copy is slowed down" || text(e, keyWhy) != want {
				t.Fatalf("%s: %+v", want, e)
			}
		}
	}
	ended := errors.New("ended")
	end(ended)
	if err := <-done; !errors.Is(err, ended) {
		t.Errorf("%v", err)
	}
}
