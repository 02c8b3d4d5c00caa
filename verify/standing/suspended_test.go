package standing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// held is a target to which a suspended process sends its nth write only after something else has happened.
type held struct {
	mongo.Caller
	n      int
	before func()
}

// Call implements mongo.Caller.
func (h *held) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	_, update := cmd.Body.LookupErr("update")
	_, remove := cmd.Body.LookupErr("delete")
	if update == nil || remove == nil {
		if h.n--; h.n == 0 {
			h.before()
		}
	}
	return h.Caller.Call(ctx, cmd)
}

// suspended returns a Store whose process is suspended before its nth write, and resumes after what happens before.
func (b *book) suspended(n int, before func()) *Store {
	return &Store{DB: b.DB, Link: b.Link, Target: &held{b.Target, n, before}}
}

// told is what a verification knows that has reported all that is stored.
func (b *book) told(ns oplog.Namespace) *Told {
	b.t.Helper()
	p := must.Get(b.Pass(b.t.Context(), ns))(b.t)
	if p == nil {
		return &Told{}
	}
	return &Told{Found: p.Told, More: p.ToldMore}
}

// forget forgets a collection, also one that differs.
func forget(t *testing.T, s *Store, ns oplog.Namespace, source oplog.UUID, round int64) {
	t.Helper()
	if gone := must.Get(s.Forget(t.Context(), ns, source, round))(t); gone != nil {
		must.Succeed(t, s.ForgetGone(t.Context(), gone))
	}
}

// differs stores the result of a comparison that has found a difference.
func (b *book) differs(r *Round, l Listed, source uint32) {
	b.t.Helper()
	is := result(r.N, cutAt(source, b.future+source))
	is.Tally.Missing, is.Found = 1, []Found{NewFound("missing", "1", "", "")}
	must.Succeed(b.t, b.SaveResult(b.t.Context(), l, is, b.told(l.SourceNS)))
}

// again begins another round, not one that goes on.
func (b *book) again(by *Store, source uint32, all []Listed) Round {
	b.t.Helper()
	round, _, err := beginAs(b.t.Context(), by, all, false, cutAt(source, b.future+source), time.Unix(5000, 0))
	must.Succeed(b.t, err)
	return round
}

// beginAs begins a round as a process does whose list is not older than what it reads.
func beginAs(ctx context.Context, s *Store, all []Listed, resume bool, cut Cut, now time.Time) (Round, map[oplog.Namespace]Head, error) {
	seen, err := s.Look(ctx)
	if err != nil {
		return Round{}, nil, err
	}
	return s.Begin(ctx, seen, all, resume, cut, now)
}

// begun is a book with a complete round of d.a and d.b.
func begun(t *testing.T) (*book, Round) {
	t.Helper()
	s := newBook(t)
	round, _ := s.begin(90, list("d.a", "d.b"))
	for _, ns := range []oplog.Namespace{"d.a", "d.b"} {
		s.save(&round, ns, 100)
	}
	s.end(&round)
	return s, round
}

// TestSuspendedForget: a process that was suspended before it has forgotten a collection does not forget what a later
// comparison has found in one that was made again.
func TestSuspendedForget(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(s *book, round *Round, by func(int) *Store){
		"as both sides have lost it": func(s *book, round *Round, by func(int) *Store) {
			forget(s.t, by(1), "d.b", id("d.b", 1), round.N)
		},
		"as a round begins": func(s *book, _ *Round, by func(int) *Store) {
			if _, _, err := beginAs(s.t.Context(), by(1), list("d.a"), false, cutAt(110, s.future+110), time.Unix(5000, 0)); !errors.Is(err, ErrOvertaken) {
				s.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, round := begun(t)
			late(s, &round, func(n int) *Store {
				return s.suspended(n, func() {
					all := list("d.a", "d.b")
					all[1].Source = id("d.b", 2)
					next := s.again(s.Store, 120, all)
					s.save(&next, "d.a", 120)
					s.differs(&next, all[1], 120)
					s.end(&next)
				})
			})
			if st := read(t, s.Store); st.Differences != 1 {
				t.Errorf("the difference is forgotten: %+v", st)
			}
		})
	}
}

// TestBeginLate: a process that begins with a list older than what others have stored forgets nothing of that, and has to
// list again.
func TestBeginLate(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		resume bool
		others func(s *book)
		want   int64
	}{
		"a collection was compared": {others: func(s *book) {
			next := s.again(s.Store, 120, list("d.a", "d.b"))
			s.save(&next, "d.a", 120)
			s.differs(&next, list("d.b")[0], 120)
		}, want: 1},
		"a comparison has begun": {others: func(s *book) {
			next := s.again(s.Store, 120, list("d.a", "d.b"))
			found := []Found{NewFound("missing", "1", "", "")}
			must.Succeed(s.t, s.SavePass(s.t.Context(), "d.b", &Pass{Round: next.N, Made: bson.NewObjectID(), Found: found}))
		}, want: 1},
		"the round went on": {resume: true, others: func(s *book) {
			_, _, err := beginAs(s.t.Context(), s.Store, list("d.a", "d.b", "d.c"), true, cutAt(120, s.future+120), time.Unix(5000, 0))
			must.Succeed(s.t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a")
			if tt.resume {
				all = list("d.a", "d.b")
				s.again(s.Store, 105, all)
			}
			seen := must.Get(s.Look(t.Context()))(t)
			tt.others(s)
			if _, _, err := s.Begin(t.Context(), seen, all, tt.resume, cutAt(130, s.future+130), time.Unix(6000, 0)); !errors.Is(err, ErrOvertaken) {
				t.Errorf("it began: %v", err)
			}
			if st := read(t, s.Store); st.Differences != tt.want {
				t.Errorf("%d differences, want %d", st.Differences, tt.want)
			}
		})
	}
}

// TestSuspendedBegin: a process that was suspended as it began a round does not take back that others have begun and
// completed rounds since, nor what they have found.
func TestSuspendedBegin(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		nth    int
		resume bool
		late   []Listed
	}{
		"after it has listed them":         {late: list("d.a", "d.b")},
		"made again after it has listed":   {late: list("d.a", "d.b", "d.x")},
		"before it stores its number":      {nth: 1, late: list("d.a", "d.b")},
		"as it goes on":                    {nth: 1, resume: true, late: list("d.a", "d.b")},
		"before it adds a collection":      {nth: 1, late: list("d.a", "d.b", "d.c")},
		"before it adds one as it goes on": {nth: 1, resume: true, late: list("d.a", "d.b", "d.c")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			if tt.resume {
				s.again(s.Store, 105, list("d.a", "d.b"))
			}
			all := list("d.a", "d.b", "d.c")
			before := func() {
				for n := range uint32(2) {
					next := s.again(s.Store, 120+n, all)
					s.save(&next, "d.a", 120+n)
					s.save(&next, "d.b", 120+n)
					s.differs(&next, all[2], 120+n)
					s.end(&next)
				}
				s.is("the others", 121, 3, 3, 0)
			}
			seen, err := s.Look(t.Context())
			must.Succeed(t, err)
			by := s.suspended(tt.nth, before)
			if tt.nth == 0 {
				before()
			}
			if _, _, err := by.Begin(t.Context(), seen, tt.late, tt.resume, cutAt(110, s.future+110), time.Unix(5000, 0)); !errors.Is(err, ErrOvertaken) {
				t.Error(err)
			}
			round, heads, err := beginAs(t.Context(), by, all, tt.resume, cutAt(130, s.future+130), time.Unix(5000, 0))
			must.Succeed(t, err)
			now, _, err := s.load(t.Context())
			must.Succeed(t, err)
			if now.Complete != seen.round.Complete+2+(seen.round.N-seen.round.Complete) || round.N != now.Complete+1 || now.N != round.N {
				t.Errorf("round %+v begins, stored are %+v, before %+v", round, now, seen.round)
			}
			if st := read(t, s.Store); st.Differences != 1 || st.Collections != 3 || heads["d.c"].Result == nil {
				t.Errorf("the difference is forgotten: %+v, %+v", st, heads)
			}
		})
	}
}

// TestSuspendedReplace: a process that was suspended before it has stored that a collection was made again does not
// take back what the process that went on with the round has found in it.
func TestSuspendedReplace(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]int{"the same one": 2, "one that was made again": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			round := s.again(s.Store, 110, list("d.a", "d.b"))
			second := list("d.b")[0]
			second.Source, second.At = id("d.b", 2), cutAt(0, s.future+115).Target
			late := s.suspended(1, func() {
				all := list("d.a", "d.b")
				all[1].Source, all[1].At = id("d.b", life), cutAt(0, s.future+118).Target
				resumed, _ := s.begin(120, all)
				s.save(&resumed, "d.a", 120)
				s.differs(&resumed, all[1], 120)
				s.end(&resumed)
			})
			must.Get(late.Replace(t.Context(), second, round.N))(t)
			if st := read(t, s.Store); st.Differences != 1 {
				t.Errorf("the difference is forgotten: %+v", st)
			}
		})
	}
}

// TestSuspendedReplaceOfFormer: what another process finds in the former collection of a name, after a process has read that nothing was
// found in it and before that has stored that the name has another one, stays known.
func TestSuspendedReplaceOfFormer(t *testing.T) {
	t.Parallel()
	found := []Found{NewFound("missing", "1", "", "")}
	for name, find := range map[string]func(s *book, round *Round, l Listed) error{
		"reported": func(s *book, round *Round, _ Listed) error {
			return s.SaveTold(s.t.Context(), "d.b", id("d.b", 1), round.N, found, 0)
		},
		"reported, not listed": func(s *book, round *Round, _ Listed) error {
			return s.SaveTold(s.t.Context(), "d.b", id("d.b", 1), round.N, nil, 1)
		},
		"in a range": func(s *book, round *Round, _ Listed) error {
			return s.SavePass(s.t.Context(), "d.b", &Pass{Made: bson.NewObjectID(), Round: round.N, Source: uuid(id("d.b", 1)), Done: map[string]Range{}, Found: found})
		},
		"compared": func(s *book, round *Round, l Listed) error {
			s.differs(round, l, 112)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a", "d.b")
			round := s.again(s.Store, 110, all)
			second := all[1]
			second.Source, second.At = id("d.b", 2), cutAt(0, s.future+115).Target
			former := must.Get(s.suspended(1, func() { must.Succeed(t, find(s, &round, all[1])) }).Replace(t.Context(), second, round.N))(t)
			if former == nil {
				t.Fatal("the difference is forgotten")
			}
			if st := read(t, s.Store); former.Source != id("d.b", 1) || !slices.ContainsFunc(st.Unverified, func(u Collection) bool { return strings.HasPrefix(string(u.SourceNS), "/gone/") }) {
				t.Errorf("%v, %+v", former.Source, st)
			}
		})
	}
}

// TestSuspendedFault: a process that was suspended before it has stored that it could not compare a collection does not
// say so of one that was compared since.
func TestSuspendedFault(t *testing.T) {
	t.Parallel()
	s, _ := begun(t)
	all := list("d.a", "d.b")
	round := s.again(s.Store, 110, all)
	fault := &Fault{Why: "planted", Round: round.N}
	must.Succeed(t, s.suspended(1, func() {
		next := s.again(s.Store, 120, all)
		s.save(&next, "d.a", 120)
		s.save(&next, "d.b", 120)
		s.end(&next)
	}).SaveFault(t.Context(), "d.b", fault, &Told{}))
	if st := s.is("compared since", 120, 2, 2, 0); len(st.Unchecked) != 0 {
		t.Errorf("%+v", st.Unchecked)
	}
}

// TestSuspendedRange: a process that was suspended before it has stored what it has compared does not replace what the process
// that went on with the collection has found later.
func TestSuspendedRange(t *testing.T) {
	t.Parallel()
	s, _ := begun(t)
	round := s.again(s.Store, 110, list("d.a", "d.b"))
	ctx, made := t.Context(), bson.NewObjectID()
	must.Succeed(t, s.SavePass(ctx, "d.b", &Pass{Made: made, Round: round.N, Source: uuid(id("d.b", 1)), Done: map[string]Range{}, Found: []Found{}}))
	early, late := cutAt(110, s.future+110), cutAt(120, s.future+120)
	found := []Found{NewFound("missing", "1", "", "")}
	by := s.suspended(1, func() {
		p := must.Get(s.Pass(ctx, "d.b"))(t)
		if is := must.Get(s.TakePass(ctx, "d.b", p))(t); !is {
			t.Error("the pass is not taken")
		}
		must.Succeed(t, s.SaveRange(ctx, "d.b", p.Made, 0, &Range{Tally: Tally{Missing: 1}, First: &late, Last: &late}, found, 0))
	})
	must.Succeed(t, by.SaveRange(ctx, "d.b", made, 0, &Range{First: &early, Last: &early}, []Found{}, 0))
	p := must.Get(s.Pass(ctx, "d.b"))(t)
	if is := p.Done["0"]; is.Tally.Missing != 1 || len(p.Found) != 1 {
		t.Errorf("%+v, found %+v", is, p.Found)
	}
	if is := must.Get(s.TakePass(ctx, "d.b", &Pass{Made: made}))(t); is {
		t.Error("a pass is taken that another one has taken")
	}
}

// TestReplacedAfterLaterRound: what a round finds in a collection that was made again stays known when another one begins, also if a
// later round had compared it, or recorded yet another collection of the name, before that.
func TestReplacedAfterLaterRound(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]int{"compared": 1, "made again before": 2, "not compared to the end": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			round := s.again(s.Store, 110, list("d.a", "d.b"))
			all := list("d.a", "d.b")
			all[1].Source, all[1].At = id("d.b", max(1, life)), cutAt(0, s.future+120).Target
			later := s.again(s.Store, 120, all)
			s.save(&later, "d.a", 120)
			if life == 0 {
				must.Succeed(t, s.SaveTold(t.Context(), "d.b", id("d.b", 1), later.N, []Found{NewFound("missing", "2", "", "")}, 0))
			} else {
				must.Succeed(t, s.SaveResult(t.Context(), all[1], result(later.N, cutAt(121, s.future+121)), s.told("d.b")))
				s.end(&later)
			}

			all[1].Source, all[1].At = id("d.b", 3), cutAt(0, s.future+130).Target
			must.Get(s.Replace(t.Context(), all[1], round.N))(t)
			s.differs(&round, all[1], 131)
			s.again(s.Store, 140, all)
			if st := read(t, s.Store); st.Differences != 1 {
				t.Errorf("the difference is forgotten: %+v", st)
			}
		})
	}
}
