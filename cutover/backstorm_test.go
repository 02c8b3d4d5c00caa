package cutover_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/scope"
)

// start begins the link back by a process that reaches both sides as given.
func (s *sides) start(next, last mongo.Caller) error {
	ctx := s.t.Context()
	back, err := cutover.FindBack(ctx, &cutover.BackConfig{Source: next, Target: last, MetaDB: "replicator"})
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	f := back.Filters()
	names := must.Get(scope.New(cutover.ScopeOf(&f, "replicator")))(s.t)
	return back.Begin(ctx, "back", checkpoint.State{Writers: 1}, names)
}

// isWatched checks that the guard of the link begins no later than where the old side was examined last.
func (s *sides) isWatched(what string) {
	s.t.Helper()
	st := must.Get((&guard.Store{Target: s.last, DB: "replicator", Link: "back"}).Read(s.t.Context()))(s.t)
	if st == nil || st.At.IsNull() {
		s.t.Errorf("%s: the guard does not know from where on the target is to be examined", what)
	}
}

// TestBackStorm: an error that passes, of any command of either side, does not end the start of a way back.
func TestBackStorm(t *testing.T) {
	t.Parallel()
	whole := newSides(t)
	count := [2]*storm{{Caller: whole.next, at: never}, {Caller: whole.last, at: never}}
	must.Succeed(t, whole.start(count[0], count[1]))
	for side, c := range count {
		for n := 1; n <= c.n; n++ {
			for i, code := range stormCodes {
				if (n+i)%8 != 0 || !race.One(n) {
					continue
				}
				what := fmt.Sprintf("side %d, command %d, %s, executed %t", side, n, code, n%2 == 0)
				s := newSides(t)
				sets := [2]*storm{{Caller: s.next, at: never}, {Caller: s.last, at: never}}
				sets[side].at, sets[side].code, sets[side].executed = n, code, n%2 == 0
				if err := s.start(sets[0], sets[1]); err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				if !s.exists() {
					t.Errorf("%s: there is no link", what)
				}
				s.is(what, expiresNever, 3600)
				s.isWatched(what)
			}
		}
	}
}

// TestResumeGoneBackStorm: while errors pass of any command to the old source, a cutover whose way back was cut over is not taken
// for one that goes on: applications would write to a side that nothing mirrors any more.
func TestResumeGoneBackStorm(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		s := newSides(t)
		must.Succeed(t, s.begin(s.last))
		s.ended()
		r := &record.Record{Link: "dr", ID: "1", State: record.Running, Options: record.Options{Freeze: record.Stopped}, Steps: []record.Taken{}}
		r.Begin(record.Commit, "me", time.Now())
		must.Succeed(t, (&record.Store{Target: s.next, DB: "replicator"}).Put(t.Context(), nil, r))
		next, last := &blockable{Caller: s.next, block: old{blocked: true}}, &storm{Caller: s.last, at: at, code: servererr.LockTimeout}
		r, err := cutover.Resume(t.Context(), &cutover.Config{
			Drain:  cutover.DrainConfig{Source: last, Link: "dr", By: "me", Within: time.Minute, OnWait: func(string) {}},
			Target: next, MetaDB: "replicator", Process: "the operator's",
		})
		if err != nil || r.GoneBack != "back" || !next.block.isBlocked() {
			t.Errorf("command %d: %v, %+v, the target blocked: %t", at, err, r, next.block.isBlocked())
		}
		if last.n < at {
			break
		}
	}
}
