package checkpoint

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestRequests: what operators ask for is read by who runs the link, and what
// becomes of it by them.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	runner, operator := link(t, g), link(t, g)
	other := must[*Store](t)(New(Config{Target: g, Link: "a.b"}))
	limits := func(bytes, ops int64) {
		t.Helper()
		w := must[Requests](t)(runner.ReadRequests(ctx))
		if w.BytesPerSecond != bytes || w.OpsPerSecond != ops {
			t.Errorf("limits %d and %d, want %d and %d", w.BytesPerSecond, w.OpsPerSecond, bytes, ops)
		}
	}
	limits(-1, -1)
	succeed(t, operator.RequestLimits(ctx, 1<<40, 0))
	succeed(t, other.RequestLimits(ctx, 1, 1))
	succeed(t, other.RequestResync(ctx, "d.c"))
	limits(1<<40, 0)
	succeed(t, operator.RequestLimits(ctx, -1, 7))
	limits(-1, 7)
	succeed(t, operator.RequestLimits(ctx, -1, -1))
	limits(-1, -1)

	now := time.Now()
	request := func(want ...ResyncRequest) {
		t.Helper()
		w := must[Requests](t)(runner.ReadRequests(ctx))
		for i := range w.Resync {
			if age := now.Sub(w.Resync[i].Asked); age < -time.Minute || age > time.Minute {
				t.Errorf("asked %v ago", age)
			}
			w.Resync[i].Asked = time.Time{}
		}
		if diff := gocmp.Diff(want, w.Resync); diff != "" {
			t.Error(diff)
		}
	}
	request()
	succeed(t, operator.RequestResync(ctx, "d.c/é.$x"))
	request(ResyncRequest{NS: "d.c/é.$x", State: ResyncAsked})
	succeed(t, runner.TellResync(ctx, "d.c/é.$x", ResyncCopying, ""))
	succeed(t, operator.RequestResync(ctx, "d.c/é.$x"))
	request(ResyncRequest{NS: "d.c/é.$x", State: ResyncCopying})
	for _, state := range []string{ResyncFailed, ResyncDone} {
		succeed(t, runner.TellResync(ctx, "d.c/é.$x", state, "it was so"))
		request(ResyncRequest{NS: "d.c/é.$x", State: state, Why: "it was so"})
		succeed(t, operator.RequestResync(ctx, "d.c/é.$x"))
		request(ResyncRequest{NS: "d.c/é.$x", State: ResyncAsked})
	}
	// What is hit while it is copied is copied once more: whatever becomes of that copy.
	for _, state := range []string{ResyncFailed, ResyncDone} {
		succeed(t, operator.RequestResyncAgain(ctx, "d.c/é.$x"))
		request(ResyncRequest{NS: "d.c/é.$x", State: ResyncAsked})
		succeed(t, runner.TellResync(ctx, "d.c/é.$x", ResyncJoining, ""))
		succeed(t, operator.RequestResyncAgain(ctx, "d.c/é.$x"))
		request(ResyncRequest{NS: "d.c/é.$x", State: ResyncJoining})
		succeed(t, runner.TellResync(ctx, "d.c/é.$x", ResyncCopying, "half"))
		request(ResyncRequest{NS: "d.c/é.$x", State: ResyncCopying, Why: "half"})
		succeed(t, runner.TellResync(ctx, "d.c/é.$x", state, ""))
		request(ResyncRequest{NS: "d.c/é.$x", State: ResyncAsked})
		succeed(t, runner.TellResync(ctx, "d.c/é.$x", state, ""))
		request(ResyncRequest{NS: "d.c/é.$x", State: state})
	}
	succeed(t, operator.RequestResyncAgain(ctx, "d.c/é.$x"))
	// Of one that somebody removed nothing is made again.
	succeed(t, runner.TellResync(ctx, "d.gone", ResyncDone, ""))
	request(ResyncRequest{NS: "d.c/é.$x", State: ResyncAsked})

	for what, err := range map[string]error{
		"no state":       runner.TellResync(ctx, "d.c", "well", ""),
		"not a database": operator.RequestResync(ctx, "d"),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want %q", err, what)
		}
	}
}

// TestRequestsOrder: the oldest request comes first.
func TestRequestsOrder(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	s := link(t, g)
	var wg sync.WaitGroup
	for _, ns := range []string{"d.a", "d.b", "d.c", "d.a", "d.b", "d.a"} { // some at once
		wg.Go(func() {
			if _, err := s.ReadRequests(ctx); err != nil {
				t.Error(err)
			}
			if err := s.RequestResync(ctx, oplog.Namespace(ns)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must[bson.Raw](t)(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Requests, metadata.Statement{
		Filter: metadata.ByID("a/d.c"), Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendDateTimeElement(dst, "asked", 5) })
		},
	}))))
	w := must[Requests](t)(s.ReadRequests(ctx))
	if len(w.Resync) != 3 || w.Resync[0].NS != "d.c" || w.Resync[1].Asked.After(w.Resync[2].Asked) {
		t.Errorf("%+v", w.Resync)
	}
}

// TestDamagedRequests: what nobody can have requested is said, and where it is.
func TestDamagedRequests(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	s := link(t, g)
	for _, tt := range []struct {
		id, field string
		value     func(dst []byte, name string) []byte
		want      string
	}{
		{"a", bytesField, func(dst []byte, n string) []byte { return bsoncore.AppendInt64Element(dst, n, -3) }, `request "a": field bytesPerSecond`},
		{"a", opsField, func(dst []byte, n string) []byte { return bsoncore.AppendStringElement(dst, n, "5") }, `field opsPerSecond`},
		{"a/d.c", "state", func(dst []byte, n string) []byte { return bsoncore.AppendStringElement(dst, n, "x") }, `request "a/d.c": field state`},
		{"a/d.c", "ns", func(dst []byte, n string) []byte { return bsoncore.AppendStringElement(dst, n, "d.d") }, `field _id`},
	} {
		succeed(t, s.RequestLimits(ctx, 1, 1))
		must[bson.Raw](t)(g.Call(ctx, metadata.Delete("replicator", metadata.Requests, metadata.ByID("a/d.c"))))
		succeed(t, s.RequestResync(ctx, "d.c"))
		must[Requests](t)(s.ReadRequests(ctx))
		must[bson.Raw](t)(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Requests, metadata.Statement{
			Filter: metadata.ByID(tt.id), Change: func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return tt.value(dst, tt.field) })
			},
		}))))
		_, err := s.ReadRequests(ctx)
		if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, tt.want) {
			t.Errorf("%s: %v", tt.field, err)
		}
	}
}

// TestTellFenced: the process that has the lease says what became of a request, and who held it
// before does not any more.
func TestTellFenced(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	succeed(t, s.RequestResync(ctx, "d.c"))
	is := func(state, why string) {
		t.Helper()
		w := must[Requests](t)(s.ReadRequests(ctx))
		if len(w.Resync) != 1 || w.Resync[0].State != state || w.Resync[0].Why != why {
			t.Errorf("%+v, want %s, %q", w.Resync, state, why)
		}
	}
	succeed(t, h.TellResync(ctx, "d.c", ResyncCopying, "half"))
	is(ResyncCopying, "half")
	succeed(t, h.TellResync(ctx, "d.gone", ResyncDone, ""))
	is(ResyncCopying, "half")
	if err := h.TellResync(ctx, "d.c", "well", ""); err == nil {
		t.Error("any word is a state")
	}
	next := must[*Link](t)(link(t, g).Acquire(ctx, 0))
	wantError(t, h.TellResync(ctx, "d.c", ResyncDone, ""), lease.ErrFenced)
	is(ResyncCopying, "half")
	succeed(t, next.TellResync(ctx, "d.c", ResyncDone, ""))
	is(ResyncDone, "")
}
