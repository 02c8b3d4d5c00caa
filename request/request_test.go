package request

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// TestRequests: the process that runs the link reads the requests of operators, and they
// read its answers.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, link := create(t, g)
	runner, operator, other := New(links(t, g, "a")), New(links(t, g, "a")), New(links(t, g, "a.b"))
	limits := func(bytes, ops int64) {
		t.Helper()
		w := must.Get(runner.Read(ctx))(t)
		if w.BytesPerSecond != bytes || w.OpsPerSecond != ops {
			t.Errorf("limits %d and %d, want %d and %d", w.BytesPerSecond, w.OpsPerSecond, bytes, ops)
		}
	}
	limits(-1, -1)
	must.Succeed(t, operator.Limit(ctx, 1<<40, 0))
	must.Succeed(t, other.Limit(ctx, 1, 1))
	must.Succeed(t, other.Resync(ctx, "d.c"))
	limits(1<<40, 0)
	must.Succeed(t, operator.Limit(ctx, -1, 7))
	limits(-1, 7)
	must.Succeed(t, operator.Limit(ctx, -1, -1))
	limits(-1, -1)

	now := time.Now()
	request := func(want ...Resync) {
		t.Helper()
		w := must.Get(runner.Read(ctx))(t)
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
	must.Succeed(t, operator.Resync(ctx, "d.c/é.$x"))
	request(Resync{NS: "d.c/é.$x", State: Asked})
	must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", Copying, ""))
	must.Succeed(t, operator.Resync(ctx, "d.c/é.$x"))
	request(Resync{NS: "d.c/é.$x", State: Copying})
	for _, state := range []string{Failed, Done} {
		must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", state, "it was so"))
		request(Resync{NS: "d.c/é.$x", State: state, Why: "it was so"})
		must.Succeed(t, operator.Resync(ctx, "d.c/é.$x"))
		request(Resync{NS: "d.c/é.$x", State: Asked})
	}
	// A collection that is damaged while it is copied is copied once more, whether that
	// copy succeeds or fails.
	for _, state := range []string{Failed, Done} {
		must.Succeed(t, operator.ResyncAgain(ctx, "d.c/é.$x"))
		request(Resync{NS: "d.c/é.$x", State: Asked})
		must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", Joining, ""))
		must.Succeed(t, operator.ResyncAgain(ctx, "d.c/é.$x"))
		request(Resync{NS: "d.c/é.$x", State: Joining})
		must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", Copying, "half"))
		request(Resync{NS: "d.c/é.$x", State: Copying, Why: "half"})
		must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", state, ""))
		request(Resync{NS: "d.c/é.$x", State: Asked})
		must.Succeed(t, runner.Answer(ctx, link, "d.c/é.$x", state, ""))
		request(Resync{NS: "d.c/é.$x", State: state})
	}
	must.Succeed(t, operator.ResyncAgain(ctx, "d.c/é.$x"))
	// An answer does not create a request that was removed.
	must.Succeed(t, runner.Answer(ctx, link, "d.gone", Done, ""))
	request(Resync{NS: "d.c/é.$x", State: Asked})

	for what, err := range map[string]error{
		"not a state":     runner.Answer(ctx, link, "d.c", "well", ""),
		"not of the form": operator.Resync(ctx, "d"),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want %q", err, what)
		}
	}
}

// TestRequestsOrder: the oldest request comes first.
func TestRequestsOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	var wg sync.WaitGroup
	for _, ns := range []string{"d.a", "d.b", "d.c", "d.a", "d.b", "d.a"} { // some concurrently
		wg.Go(func() {
			if _, err := s.Read(ctx); err != nil {
				t.Error(err)
			}
			if err := s.Resync(ctx, oplog.Namespace(ns)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	set(ctx, t, g, "a/d.c", func(dst []byte) []byte { return bsoncore.AppendDateTimeElement(dst, "asked", 5) })
	w := must.Get(s.Read(ctx))(t)
	if len(w.Resync) != 3 || w.Resync[0].NS != "d.c" || w.Resync[1].Asked.After(w.Resync[2].Asked) {
		t.Errorf("%+v", w.Resync)
	}
}

// TestDamagedRequests: the error for an invalid request says where and what the fault is.
func TestDamagedRequests(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
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
		must.Succeed(t, s.Limit(ctx, 1, 1))
		must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Requests, metadata.ByID("a/d.c"))))(t)
		must.Succeed(t, s.Resync(ctx, "d.c"))
		must.Get(s.Read(ctx))(t)
		set(ctx, t, g, tt.id, func(dst []byte) []byte { return tt.value(dst, tt.field) })
		all, err := s.Read(ctx)
		if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, tt.want) || !strings.Contains(err.Error(), "remove that document") || !Damaged(err) {
			t.Errorf("%s: %v", tt.field, err)
		}
		// The other one is read.
		if limits := tt.id == "a"; len(all.Resync) != 1 && limits || all.BytesPerSecond != 1 && !limits || limits && all.BytesPerSecond != -1 {
			t.Errorf("%s: %+v", tt.field, all)
		}
	}
}

// TestAnswerFenced: only the process that has the lease answers a request.
func TestAnswerFenced(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, h := create(t, g)
	s := New(links(t, g, "a"))
	must.Succeed(t, s.Resync(ctx, "d.c"))
	is := func(state, why string) {
		t.Helper()
		w := must.Get(s.Read(ctx))(t)
		if len(w.Resync) != 1 || w.Resync[0].State != state || w.Resync[0].Why != why {
			t.Errorf("%+v, want %s, %q", w.Resync, state, why)
		}
	}
	must.Succeed(t, s.Answer(ctx, h, "d.c", Copying, "half"))
	is(Copying, "half")
	must.Succeed(t, s.Answer(ctx, h, "d.gone", Done, ""))
	is(Copying, "half")
	if err := s.Answer(ctx, h, "d.c", "well", ""); err == nil {
		t.Error("any word is a state")
	}
	next := must.Get(links(t, g, "a").Acquire(ctx, 0))(t)
	must.Fail(t, s.Answer(ctx, h, "d.c", Done, ""), lease.ErrFenced)
	is(Copying, "half")
	must.Succeed(t, s.Answer(ctx, next, "d.c", Done, ""))
	is(Done, "")
}

// refusing returns a transient error for the first command of a name.
type refusing struct {
	mongo.Caller
	name string
	done bool
}

func (r *refusing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr(r.name); err == nil && !r.done {
		r.done = true
		return nil, &servererr.Error{Code: servererr.LockTimeout, Message: "busy"}
	}
	return r.Caller.Call(ctx, cmd)
}

// TestRefusedOnce: requests are written and read despite transient errors.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	target := newTarget(t)
	for _, name := range []string{"update", "find"} {
		to := &refusing{Caller: target, name: name}
		s := New(links(t, to, "a"))
		must.Succeed(t, s.Resync(t.Context(), "d.c"))
		if all := must.Get(s.Read(t.Context()))(t); len(all.Resync) != 1 || !to.done {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// FuzzParse: no document makes the reader of requests panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendInt64Element(metadata.ByID("a")(dst), bytesField, 5)
	})))
	f.Add([]byte(metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(metadata.ByID("a/d.c")(dst), "ns", "d.c")
		return bsoncore.AppendStringElement(bsoncore.AppendDateTimeElement(dst, "asked", 1), "state", Asked)
	})))
	s := &Store{link: "a"}
	f.Fuzz(func(_ *testing.T, data []byte) { _ = s.parse(data, &Requests{}) })
}
