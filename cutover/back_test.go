package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// sides are both sides of link dr, which was cut over; the old one has a TTL index.
type sides struct {
	t          *testing.T
	last, next mongo.Caller
}

func newSides(t *testing.T) *sides {
	t.Helper()
	return sidesOn(t, "7.0")
}

func sidesOn(t *testing.T, version string) *sides {
	t.Helper()
	return sidesOf(t, open(t, version), open(t, version))
}

func sidesOf(t *testing.T, last, next mongo.Caller) *sides {
	t.Helper()
	ctx := t.Context()
	s := &sides{t, last, next}
	insert(t, s.last, "shop", "c", 1)
	s.run(`{"createIndexes": "c", "indexes": [{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 3600}]}`)
	frozen, armed := must.Get(replset.NewestEntry(ctx, s.last, replset.Majority))(t), must.Get(replset.NewestEntry(ctx, s.next, replset.Majority))(t)
	store := must.Get(checkpoint.New(checkpoint.Config{Target: s.next, Link: "dr"}))(t)
	must.Succeed(t, store.Create(ctx, checkpoint.State{
		Writers: 1, Applied: frozen.OpTime, AppliedWall: 1, FetchFrom: frozen.OpTime, Filters: &checkpoint.Filters{},
		Source: checkpoint.Source(must.Get(replset.Identify(ctx, s.last))(t)),
	}))
	must.Succeed(t, must.Get(store.Acquire(ctx, 0))(t).End(ctx, checkpoint.Over{At: time.Now().UTC(), By: "me", Source: frozen.OpTime, Reverse: &checkpoint.Reverse{
		Start: armed.OpTime, Wall: 1, Filters: checkpoint.Filters{Reversed: true},
		Target: checkpoint.Source(must.Get(replset.Identify(ctx, s.next))(t)),
	}}))
	return s
}

// run runs a command on the old side.
func (s *sides) run(cmd string) {
	s.t.Helper()
	must.Get(s.last.Call(s.t.Context(), mongo.Command{DB: "shop", Body: bsongen.FromJSON(s.t, cmd)}))(s.t)
}

// begin begins the link back, by a process that reaches the old side as given.
func (s *sides) begin(last mongo.Caller) error {
	s.t.Helper()
	back := must.Get(cutover.FindBack(s.t.Context(), &cutover.BackConfig{Source: s.next, Target: last, MetaDB: "replicator"}))(s.t)
	f := back.Filters()
	names := must.Get(scope.New(cutover.ScopeOf(&f, "replicator")))(s.t)
	return back.Begin(s.t.Context(), "back", checkpoint.State{Writers: 1}, names)
}

// is checks the age of the TTL index of the old side, -1 for no index, and the ages deferred there for the link.
func (s *sides) is(what string, age int64, deferred ...int64) {
	s.t.Helper()
	got := int64(-1)
	for _, spec := range must.Get(catalog.Indexes(s.t.Context(), s.last, "shop.c"))(s.t) {
		if n, ok := spec.Lookup("expireAfterSeconds").AsInt64OK(); ok {
			got = n
		}
	}
	if got != age {
		s.t.Errorf("%s: documents expire after %d s, want %d", what, got, age)
	}
	specs := must.Get(ddl.ReadDeferred(s.t.Context(), s.last, "replicator", "back"))(s.t)
	if len(specs) != len(deferred) {
		s.t.Fatalf("%s: deferred: %v, want ages %d", what, specs, deferred)
	}
	for i := range specs {
		if n, _ := specs[i].Spec.Lookup("expireAfterSeconds").AsInt64OK(); n != deferred[i] {
			s.t.Errorf("%s: deferred: after %d s, want %d", what, n, deferred[i])
		}
	}
}

const expiresNever = 1<<31 - 1

// meanwhile is a set to which something happens before a process sends a command that is recognised.
type meanwhile struct {
	mongo.Caller
	before func(cmd mongo.Command) bool
	do     func()
	once   sync.Once
}

// Call implements mongo.Caller.
func (m *meanwhile) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if m.before(cmd) {
		m.once.Do(m.do)
	}
	return m.Caller.Call(ctx, cmd)
}

// ofC recognises a collMod of the collection c.
func ofC(cmd mongo.Command) bool {
	first := cmd.Body.Index(0)
	text, _ := first.Value().StringValueOK()
	return first.Key() == "collMod" && text == "c"
}

// ended ends the link back, as its own cutover does.
func (s *sides) ended() {
	s.t.Helper()
	ctx := s.t.Context()
	store := must.Get(checkpoint.New(checkpoint.Config{Target: s.last, Link: "back"}))(s.t)
	link := must.Get(store.Acquire(ctx, 0))(s.t)
	must.Succeed(s.t, link.End(ctx, checkpoint.Over{At: time.Now().UTC(), By: "me", Source: link.State().Applied}))
	must.Get(cutover.Expire(ctx, &cutover.ConvertConfig{Target: s.last, MetaDB: "replicator", Link: "back"}))(s.t)
}

// TestBackBeganBefore: a process that is started as at the first time, after the link back has itself
// ended, changes nothing: applications use that side.
func TestBackBeganBefore(t *testing.T) {
	t.Parallel()
	for version, held := range map[string]int64{"4.4": expiresNever, "5.0": 1_600_000_000, "7.0": expiresNever} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := sidesOn(t, version)
			must.Succeed(t, s.begin(s.last))
			s.is("begun", held, 3600)
			must.Succeed(t, s.begin(s.last))
			s.is("begun twice", held, 3600)
			s.ended()
			s.is("ended", 3600)
			never := &meanwhile{Caller: s.last, before: ofC, do: func() { t.Error("the TTL index is changed") }}
			if err := s.begin(never); !errors.As(err, new(*checkpoint.OverError)) {
				t.Errorf("begun again: %v", err)
			}
			s.is("begun again", 3600)
		})
	}
}

// TestBackTouched: where the old side was written to, before or while what expires documents is held, that is as it
// was once the start is refused.
func TestBackTouched(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	// An earlier link of that name has left an index deferred, which is not of this start.
	spec := must.Get(bson.Marshal(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u_1"}, {Key: "unique", Value: true}}))(t)
	must.Get(s.last.Call(t.Context(), mongo.Command{DB: "replicator", Body: must.Get(bson.Marshal(bson.D{{Key: "insert", Value: "deferred"}, {Key: "documents", Value: bson.A{bson.D{
		{Key: "_id", Value: bson.D{{Key: "link", Value: "back"}, {Key: "ns", Value: "shop.c"}, {Key: "index", Value: "u_1"}}},
		{Key: "uuid", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("an earlier index")}},
		{Key: "deferred", Value: bson.A{"unique"}},
		{Key: "absent", Value: true},
		{Key: "spec", Value: bson.Binary{Data: spec}},
	}}}}))(t)}))(t)
	late := &meanwhile{Caller: s.last, before: ofC, do: func() { insert(t, s.last, "shop", "c", 2) }}
	if err := s.begin(late); !errors.Is(err, cutover.ErrTouched) {
		t.Errorf("written to meanwhile: %v", err)
	}
	s.is("written to meanwhile", 3600, 0)
	changes := &meanwhile{Caller: s.last, before: ofC, do: func() { t.Error("the TTL index is changed") }}
	if err := s.begin(changes); !errors.Is(err, cutover.ErrTouched) || strings.Contains(err.Error(), "held") {
		t.Errorf("written to before: %v", err)
	}
	s.is("written to before", 3600, 0)
}

// cutOff is a set of which a process is cut off once it has sent a collMod.
type cutOff struct {
	mongo.Caller
	sent bool
}

// Call implements mongo.Caller.
func (c *cutOff) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if c.sent {
		return nil, gone
	}
	c.sent = ofC(cmd)
	return c.Caller.Call(ctx, cmd)
}

// TestBackHeldBefore: what a start has held that was interrupted is let go by the next one, if that is refused; what an
// operator has changed since stays.
func TestBackHeldBefore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then func(*sides)
		age  int64
	}{
		"written to": {func(s *sides) { insert(t, s.last, "shop", "c", 2) }, 3600},
		"changed": {func(s *sides) {
			s.run(`{"collMod": "c", "index": {"name": "at_1", "expireAfterSeconds": 7200}}`)
			insert(t, s.last, "shop", "c", 2)
		}, 7200},
		"dropped": {func(s *sides) { s.run(`{"dropIndexes": "c", "index": "at_1"}`) }, -1},
		"another one": {func(s *sides) {
			s.run(`{"drop": "c"}`)
			s.run(`{"createIndexes": "c", "indexes": [{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 2147483647}]}`)
		}, expiresNever},
	} {
		s := newSides(t)
		if err := s.begin(&cutOff{Caller: s.last}); err == nil {
			t.Fatalf("%s: the first start was not interrupted", name)
		}
		s.is(name+": held", expiresNever, 3600)
		tt.then(s)
		if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) {
			t.Errorf("%s: started again: %v", name, err)
		}
		s.is(name, tt.age)
	}
}

// TestBackHeldByEarlierRelease: what an earlier release has held is not known to be of a start, so it stays, and a start that is
// refused names it.
func TestBackHeldByEarlierRelease(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	if err := s.begin(&cutOff{Caller: s.last}); err == nil {
		t.Fatal("the first start was not interrupted")
	}
	s.tell(bson.D{{Key: "update", Value: "deferred"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$unset", Value: bson.D{{Key: "held", Value: ""}}}}},
	}}}})
	insert(t, s.last, "shop", "c", 2)
	if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) || !strings.Contains(err.Error(), "index at_1 of shop.c") {
		t.Errorf("started again: %v", err)
	}
	s.is("started again", expiresNever, 3600)
}

// written gives the documents of the link back the format of another release.
func (s *sides) written(version int64) {
	s.t.Helper()
	must.Get(s.last.Call(s.t.Context(), mongo.Command{DB: "replicator", Body: must.Get(bson.Marshal(bson.D{
		{Key: "update", Value: "links"},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "back"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: version}}}}},
		}}},
	}))(s.t)}))(s.t)
}

// TestResumeGoneBack: the remaining steps of a cutover are not taken once its way back was cut over, and wait while it
// is being cut over, or a later release may have done that; if applications use the target, a block that was set since stays.
func TestResumeGoneBack(t *testing.T) {
	t.Parallel()
	records := func(c mongo.Caller) *record.Store { return &record.Store{Target: c, DB: "replicator"} }
	for name, tt := range map[string]struct {
		before                  func(s *sides)
		begun, blocked, refused bool // expire was begun; the target is blocked afterwards
	}{
		"ended":             {before: (*sides).ended, begun: true, blocked: true},
		"ended, not opened": {before: (*sides).ended, blocked: true},
		"under way": {before: func(s *sides) {
			must.Succeed(t, records(s.last).Put(t.Context(), nil, &record.Record{Link: "back", ID: "2", State: record.Running, Steps: []record.Taken{}}))
		}, begun: true, blocked: true, refused: true},
		"of a later release":    {before: func(s *sides) { s.written(checkpoint.Version + 1) }, blocked: true, refused: true},
		"of a release long ago": {before: func(s *sides) { s.written(0) }},
		"goes on":               {before: func(*sides) {}, begun: true, blocked: true},
		"goes on, not opened":   {before: func(*sides) {}},
	} {
		s := newSides(t)
		must.Succeed(t, s.begin(s.last))
		tt.before(s)
		r := &record.Record{Link: "dr", ID: "1", State: record.Running, Options: record.Options{Freeze: record.Stopped}, Steps: []record.Taken{}}
		r.Begin(record.Commit, "me", time.Now())
		if tt.begun {
			r.Begin(record.Expire, "me", time.Now())
		}
		must.Succeed(t, records(s.next).Put(t.Context(), nil, r))
		next := &blockable{Caller: s.next, block: old{blocked: true}}
		r, err := cutover.Resume(t.Context(), &cutover.Config{
			Drain:  cutover.DrainConfig{Source: s.last, Link: "dr", By: "me", Within: time.Minute, OnWait: func(string) {}},
			Target: next, MetaDB: "replicator", Process: "the operator's",
		})
		if (err != nil) != tt.refused || (r.State == record.Done) == tt.refused || next.block.isBlocked() != tt.blocked {
			t.Errorf("%s: %v, state %s, the target blocked: %v", name, err, r.State, next.block.isBlocked())
		}
		if (r.GoneBack == "back") != strings.HasPrefix(name, "ended") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestBackTogether: of two processes that start a way back together, the slower one finds what the link of the faster
// one has written, and stands by.
func TestBackTogether(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	late := &meanwhile{Caller: s.last, before: ofC, do: func() {
		must.Succeed(t, s.begin(s.last))
		insert(t, s.last, "shop", "c", 2)
	}}
	if err := s.begin(late); err != nil {
		t.Errorf("the slower one: %v", err)
	}
	s.is("begun twice", expiresNever, 3600)
}

// TestBackRefusedTogether: of two processes that start a way back together, one is refused, and lets go what both hold;
// the collMod of the other comes after that, and does not leave the collection without its TTL, also if its reply is lost.
func TestBackRefusedTogether(t *testing.T) {
	t.Parallel()
	for name, reach := range map[string]func(mongo.Caller) mongo.Caller{
		"answered": func(c mongo.Caller) mongo.Caller { return c },
		"lost":     func(c mongo.Caller) mongo.Caller { return &resent{Caller: c} },
	} {
		s := newSides(t)
		late := &meanwhile{Caller: reach(s.last), before: ofC, do: func() {
			first := &meanwhile{Caller: s.last, before: ofC, do: func() { insert(t, s.last, "shop", "c", 2) }}
			if err := s.begin(first); !errors.Is(err, cutover.ErrTouched) {
				t.Errorf("%s: the first one: %v", name, err)
			}
			s.is(name+": the first one was refused", 3600)
		}}
		if err := s.begin(late); !errors.Is(err, ddl.ErrExpiryRestored) {
			t.Errorf("%s: the slower one: %v", name, err)
		}
		s.is(name+": the slower one was refused", 3600)
		if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) {
			t.Errorf("%s: started again: %v", name, err)
		}
	}
}

// onDeferred recognises a command on the collection of deferred options.
func onDeferred(name string) func(mongo.Command) bool {
	return func(cmd mongo.Command) bool {
		first := cmd.Body.Index(0)
		text, _ := first.Value().StringValueOK()
		return first.Key() == name && text == "deferred"
	}
}

// tell runs a command on the metadata of the old side.
func (s *sides) tell(cmd bson.D) {
	s.t.Helper()
	must.Get(s.last.Call(s.t.Context(), mongo.Command{DB: "replicator", Body: reply(cmd)}))(s.t)
}

// changed changes a deferred option, as the link does if its source changes the index.
func (s *sides) changed() {
	s.t.Helper()
	spec := bsongen.FromJSON(s.t, `{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 7200}`)
	s.tell(bson.D{{Key: "update", Value: "deferred"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "spec", Value: bson.Binary{Data: spec}}}}}},
	}}}})
}

// dropped drops the index, as the link does.
func (s *sides) dropped() {
	s.t.Helper()
	s.run(`{"dropIndexes": "c", "index": "at_1"}`)
	s.tell(bson.D{{Key: "delete", Value: "deferred"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
}

// madeAgain makes the index again without an age, as the link does.
func (s *sides) madeAgain() {
	s.t.Helper()
	s.dropped()
	s.run(`{"createIndexes": "c", "indexes": [{"v": 2, "key": {"at": 1}, "name": "at_1"}]}`)
}

// TestBackHeldLate: a process that is suspended while it holds what expires documents records nothing over what the
// link has changed that another one has begun meanwhile; and if that link has ended since, documents expire.
func TestBackHeldLate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before   func(mongo.Command) bool
		then     func(*sides)
		age      int64
		deferred []int64
		over     bool
	}{
		"changed, before it reads":       {onDeferred("find"), (*sides).changed, expiresNever, []int64{7200}, false},
		"changed":                        {onDeferred("insert"), (*sides).changed, expiresNever, []int64{7200}, false},
		"changed, recorded":              {ofC, (*sides).changed, expiresNever, []int64{7200}, false},
		"begun, before it records":       {onDeferred("insert"), func(*sides) {}, expiresNever, []int64{3600}, false},
		"begun, before the collMod":      {ofC, func(*sides) {}, expiresNever, []int64{3600}, false},
		"dropped, before it reads":       {onDeferred("find"), (*sides).dropped, -1, nil, false},
		"dropped":                        {onDeferred("insert"), (*sides).dropped, -1, nil, false},
		"dropped, before the collMod":    {ofC, (*sides).dropped, -1, nil, false},
		"made again, before the collMod": {ofC, (*sides).madeAgain, expiresNever, nil, false},
		"and ended":                      {ofC, func(s *sides) { s.madeAgain(); s.ended() }, expiresNever, nil, true},
		"ended, before it reads":         {onDeferred("find"), (*sides).ended, 3600, nil, true},
		"ended, before it records":       {onDeferred("insert"), (*sides).ended, 3600, nil, true},
		"ended, before the collMod":      {ofC, (*sides).ended, 3600, nil, true},
	} {
		s := newSides(t)
		late := &meanwhile{Caller: s.last, before: tt.before, do: func() {
			must.Succeed(t, s.begin(s.last))
			tt.then(s)
		}}
		if err := s.begin(late); errors.As(err, new(*checkpoint.OverError)) != tt.over || err != nil && !tt.over {
			t.Errorf("%s: %v", name, err)
		}
		s.is(name, tt.age, tt.deferred...)
	}
}

// TestBackLongAge: an index that a server has held with its own age, as it accepts no longer one, gets the age that the link has
// recorded for it since.
func TestBackLongAge(t *testing.T) {
	t.Parallel()
	for _, age := range []int64{1_700_000_000, math.MaxInt32} {
		s := newSides(t)
		must.Succeed(t, s.begin(s.last))
		s.run(fmt.Sprintf(`{"collMod": "c", "index": {"name": "at_1", "expireAfterSeconds": %d}}`, age))
		s.is("held", age, 3600)
		s.ended()
		s.is(fmt.Sprint("ended, of ", age), 3600)
	}
}

// resent is a set whose reply to the first collMod of c is lost, so that it is sent again.
type resent struct {
	mongo.Caller
	once sync.Once
}

// Call implements mongo.Caller.
func (r *resent) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := r.Caller.Call(ctx, cmd)
	if err == nil && ofC(cmd) {
		r.once.Do(func() { err = servererr.New(servererr.InterruptedDueToReplStateChange, "planted") })
	}
	return reply, err
}

// TestBackHeldTwice: a process whose collMod comes after the link of another one has made the index again without an age, and is
// sent twice, does not give it one: the link runs.
func TestBackHeldTwice(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	late := &meanwhile{Caller: &resent{Caller: s.last}, before: ofC, do: func() {
		must.Succeed(t, s.begin(s.last))
		s.madeAgain()
	}}
	must.Succeed(t, s.begin(late))
	s.is("made again", expiresNever)
}
