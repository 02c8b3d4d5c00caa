package feedback

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func command(t testing.TB, db string, doc bson.D) mongo.Command {
	t.Helper()
	return mongo.Command{DB: db, Body: must.Get(bson.Marshal(doc))(t)}
}

// upstream is a member of a set, as known from its replies.
type upstream struct{ m *mongosim.Member }

func (u upstream) Upstream() (Source, bool) {
	v, ok := u.m.Status()
	return Source{
		Host: u.m.Host(), Caller: member0(u),
		Committed: v.CommitPoint, CommittedWall: time.Now().UnixMilli(), ConfigVersion: v.ConfigVersion,
	}, ok
}

// mirrored inserts with the write concern of the mirror.
func mirrored(ctx context.Context, t testing.TB, p *primary, id int, wait time.Duration) error {
	t.Helper()
	reply, err := p.Call(ctx, command(t, "db", bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: wait.Milliseconds()}}},
	}))
	if err != nil {
		return err
	}
	if e := mongo.ConcernError(reply); e != nil {
		return e
	}
	_, err = mongo.Written(reply)
	return err
}

// addMirror adds a member without a process, and returns its _id.
func addMirror(ctx context.Context, t testing.TB, p *primary) int {
	t.Helper()
	config := must.Get(ReadConfig(ctx, p))(t)
	next, id, err := AddMember(config, NewMember{ID: -1, Host: "127.0.0.1:1"})
	must.Succeed(t, err)
	must.Succeed(t, Reconfigure(ctx, p, next))
	return id
}

// TestWaitsForTheMirror: writes with w: "mirror" are acknowledged when the mirror
// has applied them, and not before, whichever member receives the reports.
func TestWaitsForTheMirror(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	// There is no election but one that the reports cause.
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: time.Hour})
	p := &primary{Set: set}
	id := addMirror(ctx, t, p)
	if id != 3 {
		t.Errorf("the new member has _id %d", id)
	}
	if err := mirrored(ctx, t, p, 0, 100*time.Millisecond); !errors.Is(err, &servererr.Error{Code: servererr.WriteConcernTimeout}) {
		t.Fatalf("acknowledged without a report: %v", err)
	}
	first := must.Get(set.AwaitPrimary(ctx))(t)
	for i, m := range set.Members() {
		events := make(chan event.Event, 100)
		f := must.Get(New(Config{
			Mode: Member, MemberID: id, Upstream: upstream{m}, KeepAlive: 50 * time.Millisecond,
			Observer: func(e event.Event) {
				select {
				case events <- e:
				default:
				}
			},
		}))(t)
		in := make(chan checkpoint.Progress)
		mirror, stop := context.WithCancelCause(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			mirrorLoop(mirror, m, in)
		}()
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx, in) }()
		for n := range 10 {
			if err := mirrored(ctx, t, p, 100*(i+1)+n, time.Minute); err != nil {
				t.Fatalf("write %d, reported to member %d: %v", n, m.ID(), err)
			}
		}
		stop(errors.New("enough"))
		<-done
		close(in)
		must.Succeed(t, <-ended)
		if e, ok := (<-events).(Reporting); !ok || e.Host != m.Host() {
			t.Errorf("first event of member %d: %v", m.ID(), e)
		}
		if err := mirrored(ctx, t, p, 100*(i+1)+50, 100*time.Millisecond); err == nil {
			t.Error("acknowledged without a report")
		}
	}
	if now := set.Primary(); now != first {
		t.Error("reporting changed the primary")
	}
}

// mirrorLoop simulates a mirror that has applied everything that a member has
// committed.
func mirrorLoop(ctx context.Context, m *mongosim.Member, in chan<- checkpoint.Progress) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ops := int64(0); ; ops++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		v, _ := m.Status()
		wall := time.Now().UnixMilli()
		p := checkpoint.Progress{Applied: v.CommitPoint, AppliedWall: wall, Durable: v.CommitPoint, DurableWall: wall, Ops: ops}
		select {
		case in <- p:
		case <-ctx.Done():
			return
		}
	}
}

// TestRemovedMember: a member that is no longer in the configuration causes an
// event, and removing it restores the previous configuration.
func TestRemovedMember(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})
	p := &primary{Set: set}
	before := must.Get(ReadConfig(ctx, p))(t)
	id := addMirror(ctx, t, p)
	m := set.Member(0)
	var events []event.Event
	f := must.Get(New(Config{
		Mode: Member, MemberID: id, Upstream: upstream{m},
		Observer: func(e event.Event) { events = append(events, e) },
	}))(t)
	report := func() {
		v, _ := m.Status()
		in := make(chan checkpoint.Progress, 1)
		in <- checkpoint.Progress{Applied: v.CommitPoint, AppliedWall: time.Now().UnixMilli()}
		close(in)
		must.Succeed(t, f.Run(ctx, in))
	}
	report()
	config := must.Get(ReadConfig(ctx, p))(t)
	if _, err := RemoveMember(config, 0); !errors.Is(err, ErrNotOurs) {
		t.Errorf("removing a member with data: %v", err)
	}
	next := must.Get(RemoveMember(config, id))(t)
	must.Succeed(t, Reconfigure(ctx, p, next))
	must.Get(p.Call(ctx, command(t, "db", bson.D{{Key: "create", Value: "c"}})))(t)
	must.Succeed(t, set.AwaitSynced(ctx))
	report()
	if len(events) != 2 {
		t.Fatalf("events: %v", events)
	}
	failed, ok := events[1].(Failed)
	if !ok || !errors.Is(failed.Err, &servererr.Error{Code: servererr.NodeNotFound}) || !strings.Contains(failed.Hint(), "add the member") {
		t.Errorf("event: %v", events[1].LogValue())
	}
	after := must.Get(ReadConfig(ctx, p))(t)
	for _, config := range []*bson.Raw{&before, &after} {
		var doc bson.D
		must.Succeed(t, bson.Unmarshal(*config, &doc))
		doc[1].Value = 0 // the version
		*config = must.Get(bson.Marshal(doc))(t)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

// TestDocumentOnTheSource: the document is written to the source's primary, also
// after a step-down.
func TestDocumentOnTheSource(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1})
	p := &primary{Set: set}
	f := must.Get(New(Config{Mode: Document, Link: "a", Primary: p}))(t)
	for n := uint32(1); n <= 2; n++ {
		in := make(chan checkpoint.Progress, 1)
		in <- progress(10*n, 10*n-1, int64(n))
		close(in)
		must.Succeed(t, f.Run(ctx, in))
		reply := must.Get(p.Call(ctx, command(t, "replicator", bson.D{{Key: "find", Value: "positions"}})))(t)
		doc := reply.Lookup("cursor", "firstBatch", "0").Document()
		at := doc.Lookup("at").Time()
		if since := time.Since(at); since < -time.Second || since > time.Minute {
			t.Errorf("at %v", at)
		}
		var got bson.M
		must.Succeed(t, bson.Unmarshal(doc, &got))
		delete(got, "at")
		opTime := func(seconds uint32) bson.D {
			return bson.D{{Key: "ts", Value: bson.Timestamp{T: seconds}}, {Key: "t", Value: int64(1)}}
		}
		want := bson.M{
			"_id": "a", "applied": opTime(10 * n), "appliedWall": bson.DateTime(10_000 * n),
			"durable": opTime(10*n - 1), "durableWall": bson.DateTime(10_000*n - 1000),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		must.Succeed(t, set.AwaitSynced(ctx))
		must.Succeed(t, set.StepDown(ctx))
	}
}

func TestAddMember(t *testing.T) {
	t.Parallel()
	config := func(change func(bson.D) bson.D) bson.Raw {
		doc := bson.D{
			{Key: "_id", Value: "rs0"},
			{Key: "version", Value: int64(4)},
			{Key: "term", Value: int64(2)},
			{Key: "members", Value: bson.A{
				bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: "a:1"}, {Key: "tags", Value: bson.D{{Key: "dc", Value: "x"}}}},
				bson.D{{Key: "_id", Value: 90}, {Key: "host", Value: "b:1"}, {Key: "unknown", Value: true}},
			}},
			{Key: "settings", Value: bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "dc", Value: bson.D{{Key: "dc", Value: 1}}}}}, {Key: "x", Value: 1}}},
		}
		if change != nil {
			doc = change(doc)
		}
		return must.Get(bson.Marshal(doc))(t)
	}
	text := func(raw bson.Raw) string { return string(must.Get(bson.MarshalExtJSON(raw, false, false))(t)) }
	added, id, err := AddMember(config(nil), NewMember{ID: -1, Host: "m:1"})
	must.Succeed(t, err)
	want := `{"_id":"rs0","version":5,"term":2,"members":[` +
		`{"_id":0,"host":"a:1","tags":{"dc":"x"}},{"_id":90,"host":"b:1","unknown":true},` +
		`{"_id":91,"host":"m:1","buildIndexes":false,"hidden":true,"priority":0,"votes":0,"tags":{"mirror":"m:1"}}],` +
		`"settings":{"getLastErrorModes":{"dc":{"dc":1},"mirror":{"mirror":1}},"x":1}}`
	if diff := cmp.Diff(want, text(added)); diff != "" || id != 91 {
		t.Errorf("id %d: %s", id, diff)
	}
	twice, id, err := AddMember(added, NewMember{ID: 7, Host: "n:1"})
	must.Succeed(t, err)
	if id != 7 || strings.Count(text(twice), `"mirror":{"mirror":1}`) != 1 {
		t.Errorf("a second one, id %d: %s", id, text(twice))
	}
	once := must.Get(RemoveMember(twice, 91))(t)
	if !strings.Contains(text(once), `"mirror":{"mirror":1}`) {
		t.Errorf("the mode is gone with the first of two: %s", text(once))
	}
	none := must.Get(RemoveMember(once, 7))(t)
	if got := text(none); got != strings.Replace(text(config(nil)), `"version":4`, `"version":8`, 1) {
		t.Errorf("after removing both: %s", got)
	}

	modes := func(d bson.D) bson.D {
		d[4].Value = bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "mirror", Value: bson.D{{Key: "dc", Value: 1}}}}}}
		return d
	}
	for what, try := range map[string]func() error{
		"no host":               func() error { _, _, err := AddMember(config(nil), NewMember{}); return err },
		"has a member b:1":      func() error { _, _, err := AddMember(config(nil), NewMember{Host: "b:1", ID: -1}); return err },
		"_id 90 is in use":      func() error { _, _, err := AddMember(config(nil), NewMember{Host: "m:1", ID: 90}); return err },
		"another write concern": func() error { _, _, err := AddMember(config(modes), NewMember{Host: "m:1", ID: -1}); return err },
		"no such member":        func() error { _, err := RemoveMember(config(nil), 5); return err },
		"without vote":          func() error { _, err := RemoveMember(config(nil), 90); return err },
		"has no members":        func() error { _, err := RemoveMember(noFields, 90); return err },
		"has no version": func() error {
			_, _, err := AddMember(config(func(d bson.D) bson.D { return append(d[:1], d[3:]...) }), NewMember{Host: "m:1", ID: -1})
			return err
		},
		"not a number": func() error {
			_, _, err := AddMember(config(func(d bson.D) bson.D { d[1].Value = "x"; return d }), NewMember{Host: "m:1", ID: -1})
			return err
		},
		"too few bytes": func() error { _, err := RemoveMember(bson.Raw{1, 2, 3}, 90); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want %q", err, what)
		}
	}
	bare, _, err := AddMember(config(func(d bson.D) bson.D { return d[:4] }), NewMember{Host: "m:1", ID: -1})
	must.Succeed(t, err)
	if !strings.HasSuffix(text(bare), `"settings":{"getLastErrorModes":{"mirror":{"mirror":1}}}}`) {
		t.Errorf("without settings: %s", text(bare))
	}
}

// FuzzConfig: invalid configurations are refused, and changed ones are valid BSON.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(noFields))
	f.Add([]byte(metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "version", 1)
		i, dst := bsoncore.AppendArrayElementStart(dst, "members")
		dst = metadata.AppendDoc(dst, "0", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "_id", 1) })
		return metadata.CloseDoc(dst, i)
	})))
	f.Fuzz(func(t *testing.T, data []byte) {
		next, id, err := AddMember(data, NewMember{ID: -1, Host: "m:1"})
		if err != nil {
			return
		}
		must.Succeed(t, next.Validate())
		back, err := RemoveMember(next, id)
		must.Succeed(t, err)
		must.Succeed(t, back.Validate())
	})
}
