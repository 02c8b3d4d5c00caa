package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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
)

// TestRecords: a record has the user, time, reason and outcome of a request; a closed one stays as
// it is. Those of another link are not listed.
func TestRecords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, h := create(t, g)
	s, other := New(links(t, g, "a")), New(links(t, g, "a.b"))
	must.Get(other.Ask(ctx, Ask{Kind: Pause}))(t)
	// Texts that a pipeline would take for expressions are stored as they are.
	r := must.Get(s.Ask(ctx, Ask{Kind: Throttle, By: "$$ROOT", Why: "$why", Args: json.RawMessage(`{"applyOpsPerSecond": 5}`)}))(t)
	if age := time.Since(r.At); r.State != Asked || r.By != "$$ROOT" || r.Why != "$why" || !r.Open() || age < -time.Minute || age > time.Minute {
		t.Errorf("%+v", r)
	}
	before := must.Get(s.Settings(ctx))(t)
	must.Get(s.Ask(ctx, Ask{Kind: Pause}))(t)
	if now := must.Get(s.Settings(ctx))(t); now.Count() == before.Count() {
		t.Error("a request is not counted: a leader would not notice it")
	}
	list := must.Get(s.List(ctx))(t)
	if len(list) != 2 || list[0].Kind != Pause || list[1].ID != r.ID {
		t.Fatalf("%+v", list)
	}
	must.Succeed(t, s.Answered(ctx, h, r.ID, Working, "on it"))
	must.Succeed(t, s.Answered(ctx, h, r.ID, Done, "$outcome"))
	must.Succeed(t, s.Answered(ctx, h, r.ID, Failed, "too late"))
	if got := must.Get(s.Get(ctx, r.ID))(t); got.State != Done || got.Outcome != "$outcome" || got.Open() || got.ChangedAt.Before(got.At) {
		t.Errorf("%+v", got)
	}
	// A write whose reply was lost is sent again.
	must.Succeed(t, s.insert(ctx, &Record{ID: r.ID, Kind: Throttle, Args: r.Args}))
	if got := must.Get(s.Get(ctx, r.ID))(t); got.State != Done {
		t.Errorf("asked again by a repeated write: %+v", got)
	}
	must.Fail(t, second(s.Get(ctx, "gone")), ErrGone)
	text := string(must.Get(json.Marshal(list[1]))(t))
	for _, want := range []string{`"args":{"applyOpsPerSecond": 5}`, `"state":"asked"`, `"kind":"throttle"`, `"changedAt":"`} {
		if !strings.Contains(strings.ReplaceAll(text, `":5`, `": 5`), want) {
			t.Errorf("%s: want %s", text, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestAskInvalid: what cannot be acted on is refused before it is stored.
func TestAskInvalid(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	for _, tt := range []struct {
		kind Kind
		args string
		want string
	}{
		{"stop", ``, `knows no kind "stop", only pause, resume, throttle`},
		{Pause, `{"for": 5}`, "unknown field"},
		{Pause, `{} {}`, "more than one"},
		{Pause, `[`, "args"},
		{Throttle, `{}`, "changes nothing"},
		{Throttle, `{"applyOpsPerSecond": -1}`, "want a number from 1"},
		{Throttle, `{"applyOpsPerSecond": "5"}`, "args"},
		{Throttle, `{"default": true, "copyOpsPerSecond": 5}`, "cannot be set as well"},
		{Again, `{}`, "want 1 to 100 collections"},
		{Again, `{"namespace": "admin.x"}`, "belongs to the server"},
		{Again, `{"namespaces": ["x"]}`, "DB.COLLECTION"},
		{LogLevel, `{"level": "loud"}`, `"loud" is none of debug, info`},
		{Cut, `{"at": 5}`, "unknown field"},
		{Verify, `{"namespaces": ["shop"]}`, "DB.COLLECTION"},
		{Verify, `{"all": true}`, "unknown field"},
		{Cut, `{"withinSeconds": -1}`, "want 1 to 86400, it is -1"},
	} {
		_, err := s.Ask(t.Context(), Ask{Kind: tt.kind, Args: json.RawMessage(tt.args)})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.kind, tt.args, err, tt.want)
		}
	}
	if list := must.Get(s.List(t.Context()))(t); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestChangeOfLimits: null removes a limit, an absent one stays.
func TestChangeOfLimits(t *testing.T) {
	t.Parallel()
	r := Record{Kind: Throttle, Args: json.RawMessage(`{"applyOpsPerSecond": null, "copyBytesPerSecond": 7, "adaptive": false}`)}
	c := must.Get(r.Change())(t)
	off := false
	want := Change{ApplyOpsPerSecond: Limit{Given: true}, CopyBytesPerSecond: Limit{Given: true, PerSecond: 7}, Adaptive: &off}
	if diff := gocmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	text := string(must.Get(json.Marshal(c))(t))
	if text != `{"copyBytesPerSecond":7,"applyOpsPerSecond":null,"adaptive":false}` {
		t.Error(text)
	}
}

// TestSettings: settings are stored under a lease, and no change is lost between two processes.
func TestSettings(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, h := create(t, g)
	s := New(links(t, g, "a"))
	none := must.Get(s.Settings(ctx))(t)
	next := Settings{
		Paused:   &Paused{Request: "x", Since: time.UnixMilli(1e12).UTC(), By: "me", Why: "$why"},
		Throttle: Limits{BytesPerSecond: 1 << 40, OpsPerSecond: 3, Adaptive: true, Request: "y", At: time.UnixMilli(2e12).UTC(), By: "you", Why: "so"},
		Level:    "debug",
	}
	first := must.Get(s.Set(ctx, h, none, next))(t)
	got := must.Get(s.Settings(ctx))(t)
	if diff := gocmp.Diff(next, got, gocmp.FilterPath(func(p gocmp.Path) bool {
		return slices.Contains([]string{".asked", ".rev", ".term", ".found"}, p.Last().String())
	}, gocmp.Ignore())); diff != "" {
		t.Error(diff)
	}
	second := must.Get(s.Set(ctx, h, got, Settings{Level: "default"}))(t)
	if _, err := s.Set(ctx, h, first, next); !errors.Is(err, ErrChanged) {
		t.Errorf("what another process has changed is overwritten: %v", err)
	}
	if got = must.Get(s.Settings(ctx))(t); got.Paused != nil || got.Level != "default" || got.rev != second.rev || got.term != h.Term() {
		t.Errorf("%+v", got)
	}
}

// TestFormerLeader: a process that has lost the lease changes nothing, although the one that has
// it has not changed anything yet, and whatever the former one has read.
func TestFormerLeader(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, former := create(t, g)
	s := New(links(t, g, "a"))
	r := must.Get(s.Ask(ctx, Ask{Kind: Pause}))(t)
	was := must.Get(s.Settings(ctx))(t)
	h := must.Get(links(t, g, "a").Acquire(ctx, 0))(t)
	must.Fail(t, second(s.Set(ctx, former, was, Settings{Level: "debug"})), lease.ErrFenced)
	must.Fail(t, s.Answered(ctx, former, r.ID, Done, "paused"), lease.ErrFenced)
	must.Fail(t, s.LimitUnder(ctx, former, 5, 5), lease.ErrFenced)
	must.Fail(t, s.ResyncUnder(ctx, former, "d.c"), lease.ErrFenced)
	got, all := must.Get(s.Settings(ctx))(t), must.Get(s.Read(ctx))(t)
	if got.Level != "" || got.rev != was.rev || must.Get(s.Get(ctx, r.ID))(t).State != Asked || all.OpsPerSecond != -1 || len(all.Resync) != 0 {
		t.Errorf("%+v, %+v", got, all)
	}
	// The leader does all of that, also twice.
	must.Get(s.Set(ctx, h, was, Settings{Level: "debug"}))(t)
	for range 2 {
		must.Succeed(t, s.LimitUnder(ctx, h, 5, -1))
		must.Succeed(t, s.ResyncUnder(ctx, h, "d.c"))
		must.Succeed(t, s.Answered(ctx, h, r.ID, Done, "paused"))
	}
	got, all = must.Get(s.Settings(ctx))(t), must.Get(s.Read(ctx))(t)
	if got.Level != "debug" || must.Get(s.Get(ctx, r.ID))(t).State != Done || all.BytesPerSecond != 5 || len(all.Resync) != 1 || all.Resync[0].State != Asked {
		t.Errorf("%+v, %+v", got, all)
	}
}

// TestSettingsUnknown: what a newer release has stored, or somebody damaged, is an error: it
// must not count as nothing.
func TestSettingsUnknown(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	for field, doc := range map[string]func(dst []byte) []byte{
		"format 2":                func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, formatField, 2) },
		"field paused":            func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, pausedField, false) },
		"field logLevel":          func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, levelField, "loud") },
		"field throttle.adaptive": func(dst []byte) []byte { return metadata.AppendDoc(dst, limitsField, metadata.ByID("a")) },
	} {
		must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Control, metadata.ByID("a"))))(t)
		must.Succeed(t, s.bump(ctx))
		must.Get(s.Settings(ctx))(t)
		must.Succeed(t, s.control(ctx, 1, metadata.Statement{
			Filter: metadata.ByID("a"),
			Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", doc) },
		}))
		if _, err := s.Settings(ctx); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestUnknownRecord: a record of a newer release, or a damaged one, can be read and answered.
func TestUnknownRecord(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	_, h := create(t, g)
	s := New(links(t, g, "a"))
	must.Get(g.Call(ctx, metadata.Write("replicator", "insert", metadata.Control, "documents",
		must.Get(bson.Marshal(bson.D{{Key: "_id", Value: "a/x"}, {Key: "kind", Value: "teleport"}, {Key: "args", Value: 5}, {Key: "state", Value: Asked}}))(t))))(t)
	list := must.Get(s.List(ctx))(t)
	if len(list) != 1 || list[0].Kind != "teleport" || !errors.Is(list[0].Check(), ErrInvalid) {
		t.Fatalf("%+v", list)
	}
	must.Succeed(t, s.Answered(ctx, h, "x", Refused, "unknown"))
	if list = must.Get(s.List(ctx))(t); list[0].State != Refused {
		t.Errorf("%+v", list)
	}
}

// TestPrune: the history is limited by the times when requests were closed; open ones stay, and requests
// with the time of a wrong clock displace no others.
func TestPrune(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	now := time.Now().UTC()
	var docs []bson.Raw
	add := func(id, state string, asked, changed time.Duration) {
		docs = append(docs, must.Get(bson.Marshal(bson.D{
			{Key: "_id", Value: "a/" + id},
			{Key: "kind", Value: "pause"},
			{Key: "args", Value: "{}"},
			{Key: "state", Value: state},
			{Key: "at", Value: now.Add(asked)},
			{Key: "changedAt", Value: now.Add(changed)},
		}))(t))
	}
	prune := func() (ids []string) {
		must.Get(g.Call(ctx, metadata.Write("replicator", "insert", metadata.Control, "documents", docs...)))(t)
		docs = nil
		must.Succeed(t, s.Prune(ctx, must.Get(s.List(ctx))(t)))
		for _, r := range must.Get(s.List(ctx))(t) {
			ids = append(ids, r.ID)
		}
		return ids
	}
	add("jumped", Done, 75*365*24*time.Hour, -time.Second)
	add("just", Done, -400*24*time.Hour, 0) // asked long ago, closed last
	add("open", Asked, -2*time.Hour, -2*time.Hour)
	if ids := prune(); !slices.Equal(ids, []string{"jumped", "open", "just"}) {
		t.Error(ids)
	}
	add("first", Done, time.Hour, -time.Hour)
	for i := range keepRecords - 2 {
		add(fmt.Sprintf("new%03d", i), Refused, -time.Minute, -time.Minute)
	}
	ids := prune()
	if len(ids) != keepRecords+1 || slices.Contains(ids, "first") || !slices.Contains(ids, "just") || !slices.Contains(ids, "open") {
		t.Errorf("%d records: %s", len(ids), ids)
	}
}

// TestClockBack: after a failover of the target to a member whose clock is behind, a new request is
// later than the earlier ones, and a closed one is not removed.
func TestClockBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	future := time.Now().Add(time.Hour).UTC()
	docs := []bson.Raw{must.Get(bson.Marshal(bson.D{
		{Key: "_id", Value: "a/pause"},
		{Key: "kind", Value: "pause"},
		{Key: "args", Value: "{}"},
		{Key: "state", Value: Asked},
		{Key: "seq", Value: int64(7)},
		{Key: "at", Value: future},
		{Key: "changedAt", Value: future},
	}))(t)}
	for i := range keepRecords {
		docs = append(docs, must.Get(bson.Marshal(bson.D{
			{Key: "_id", Value: fmt.Sprintf("a/old%03d", i)},
			{Key: "kind", Value: "resume"},
			{Key: "args", Value: "{}"},
			{Key: "state", Value: Done},
			{Key: "at", Value: future.Add(-2 * time.Hour)},
			{Key: "changedAt", Value: future},
		}))(t))
	}
	must.Get(g.Call(ctx, metadata.Write("replicator", "insert", metadata.Control, "documents", docs...)))(t)
	r := must.Get(s.Ask(ctx, Ask{Kind: Resume}))(t)
	list := must.Get(s.List(ctx))(t)
	if len(list) != keepRecords+2 || list[0].ID != r.ID || list[1].ID != "pause" || !r.At.Before(future) {
		t.Errorf("%d records, the newest %+v", len(list), list[:2])
	}
	list[0].State = Done
	list[0].ChangedAt = r.At
	must.Succeed(t, s.Prune(ctx, list))
	must.Get(s.Get(ctx, r.ID))(t)
}

// TestAskTooMany: requests that nobody acts on do not pile up without end.
func TestAskTooMany(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	g := newTarget(t)
	s := New(links(t, g, "a"))
	var docs []bson.Raw
	for i := range mostOpen {
		docs = append(docs, must.Get(bson.Marshal(bson.D{{Key: "_id", Value: "a/" + newID(time.Unix(int64(i), 0))}, {Key: "state", Value: Asked}}))(t))
	}
	must.Get(g.Call(ctx, metadata.Write("replicator", "insert", metadata.Control, "documents", docs...)))(t)
	must.Fail(t, second(s.Ask(ctx, Ask{Kind: Resume})), ErrTooMany)
}

// TestRepeatedAsk: a request reaches the target despite a lost reply, once.
func TestRepeatedAsk(t *testing.T) {
	t.Parallel()
	to := &refusing{Caller: newTarget(t), name: "update"}
	s := New(links(t, mongo.Caller(to), "a"))
	must.Get(s.Ask(t.Context(), Ask{Kind: Resume}))(t)
	if list := must.Get(s.List(t.Context()))(t); len(list) != 1 || !to.done {
		t.Errorf("%+v", list)
	}
}

// denying is a target whose user may not write.
type denying struct{ mongo.Caller }

// Call implements mongo.Caller.
func (d denying) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("update"); err == nil {
		return nil, servererr.New(servererr.Unauthorized, "planted")
	}
	return d.Caller.Call(ctx, cmd)
}

// TestDeniedCut: the refusal of a cut names the link once, also where it is met until the time is over.
func TestDeniedCut(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	_, err := New(links(t, mongo.Caller(denying{g}), "a")).NextCut(t.Context(), "me", "a test", time.Minute, nil)
	if err == nil || errors.Is(err, ErrNoCut) || strings.Count(err.Error(), "link \"a\"") != 1 || !strings.HasSuffix(err.Error(), "planted (Unauthorized, code 13)") {
		t.Error(err)
	}
	without := &away{Caller: g}
	without.left.Store(math.MaxInt64)
	_, err = New(links(t, without, "a")).NextCut(t.Context(), "me", "a test", time.Second, nil)
	if !errors.Is(err, ErrNoCut) || strings.LastIndex(err.Error(), "request: link") != 0 || !strings.Contains(err.Error(), "not primary") {
		t.Error(err)
	}
}

// TestDeniedAsk: a request that the user may not make is not said to be stored, perhaps.
func TestDeniedAsk(t *testing.T) {
	t.Parallel()
	s := New(links(t, mongo.Caller(denying{newTarget(t)}), "a"))
	_, err := s.Ask(t.Context(), Ask{Kind: Resume})
	if !servererr.IsDenied(err) || strings.Contains(err.Error(), "stored") {
		t.Errorf("%v", err)
	}
}
