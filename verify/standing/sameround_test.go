package standing

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// missing are differences: documents that are missing, by _id.
func missing(ids ...string) (list []Found) {
	for _, id := range ids {
		list = append(list, NewFound("missing", id, "", ""))
	}
	return list
}

// pass returns a pass of d.b.
func pass(r *Round, told ...Found) *Pass {
	return &Pass{Made: bson.NewObjectID(), Round: r.N, Source: uuid(id("d.b", 1)), Done: map[string]Range{}, Found: []Found{}, Told: told}
}

// TestSuspendedPass: a process that was suspended before it has stored the ranges of a collection does not take back what the process
// that went on with the round has reported in it.
func TestSuspendedPass(t *testing.T) {
	t.Parallel()
	s, _ := begun(t)
	all := list("d.a", "d.b")
	round := s.again(s.Store, 110, all)
	by := s.suspended(1, func() {
		must.Succeed(t, s.SavePass(t.Context(), "d.b", pass(&round)))
		must.Succeed(t, s.SaveTold(t.Context(), "d.b", id("d.b", 1), round.N, missing("1"), 0))
	})
	late := pass(&round, missing("2")...)
	must.Succeed(t, by.SavePass(t.Context(), "d.b", late))
	if st := read(t, s.Store); st.Differences != 2 {
		t.Errorf("%d differences, want 2", st.Differences)
	}
	if p := must.Get(s.Pass(t.Context(), "d.b"))(t); p.Made != late.Made || len(p.Told) != 2 {
		t.Errorf("%+v", p)
	}
	s.again(s.Store, 120, all) // which another verification of the round did not resume
	if st := s.is("they are forgotten", 0, 2, 1, 0); len(st.Unverified) != 1 || st.Unverified[0].NS != "td.b" {
		t.Errorf("%+v", st)
	}
}

// TestSuspendedResult: a process that was suspended before it has stored a result does not take back what the process that went on
// with the collection, from the same ranges, has found later: a difference, or that it cannot be compared.
func TestSuspendedResult(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		other                  func(s *book, l Listed, r *Round)
		differences, unchecked int
	}{
		"a difference": {func(s *book, l Listed, r *Round) {
			is := result(r.N, cutAt(110, s.future+110))
			is.Last = cutAt(120, s.future+120)
			is.Tally.Missing, is.Found = 1, missing("1")
			must.Succeed(s.t, s.SaveResult(s.t.Context(), l, is, &Told{}))
		}, 1, 0},
		"a fault": {func(s *book, l Listed, r *Round) {
			must.Succeed(s.t, s.SaveFault(s.t.Context(), l.SourceNS, &Fault{Why: "planted", Round: r.N, At: time.Unix(120, 0)}, &Told{}))
		}, 0, 1},
		"a fault of the next round": {func(s *book, l Listed, _ *Round) {
			next := s.again(s.Store, 120, list("d.a", "d.b"))
			must.Succeed(s.t, s.SaveFault(s.t.Context(), l.SourceNS, &Fault{Why: "planted", Round: next.N}, &Told{}))
		}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a", "d.b")
			round := s.again(s.Store, 110, all)
			must.Succeed(t, s.SaveFault(t.Context(), "d.b", &Fault{Why: "before", Round: round.N, At: time.Unix(100, 0)}, &Told{}))
			by := s.suspended(1, func() { tt.other(s, all[1], &round) })
			must.Succeed(t, by.SaveResult(t.Context(), all[1], result(round.N, cutAt(110, s.future+110)), &Told{}))
			if st := read(t, s.Store); int(st.Differences) != tt.differences || len(st.Unchecked) != tt.unchecked {
				t.Errorf("%d differences, unchecked: %+v", st.Differences, st.Unchecked)
			}
		})
	}
}

// TestLateFault: a process that was suspended before it has stored that it could not compare a collection does not say so of one that
// the process which went on with the round has compared since.
func TestLateFault(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]bool{"before": false, "as it is stored": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a", "d.b")
			round := s.again(s.Store, 110, all)
			compare := func() {
				is := result(round.N, cutAt(110, s.future+110))
				is.At = time.Unix(120, 0)
				must.Succeed(t, s.SaveResult(t.Context(), all[1], is, &Told{}))
			}
			by := s.Store
			if suspended {
				by = s.suspended(1, compare)
			} else {
				compare()
			}
			must.Succeed(t, by.SaveFault(t.Context(), "d.b", &Fault{Why: "planted", Round: round.N, At: time.Unix(119, 0)}, &Told{}))
			if st := read(t, s.Store); len(st.Unchecked) != 0 {
				t.Errorf("%+v", st.Unchecked)
			}
		})
	}
}

// TestLateResult: a process that was suspended before it has stored its comparison of a collection does not take back that the process
// which went on with the round could not compare it later.
func TestLateResult(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]time.Duration{"later": time.Second, "earlier": -time.Second} {
		s, _ := begun(t)
		all := list("d.a", "d.b")
		round := s.again(s.Store, 110, all)
		is := result(round.N, cutAt(110, s.future+110))
		is.At = time.Unix(120, 0)
		must.Succeed(t, s.SaveFault(t.Context(), "d.b", &Fault{Why: "planted", Round: round.N, At: is.At.Add(later)}, &Told{}))
		must.Succeed(t, s.SaveResult(t.Context(), all[1], is, &Told{}))
		if st := read(t, s.Store); (len(st.Unchecked) > 0) != (later > 0) {
			t.Errorf("%s: %+v", name, st.Unchecked)
		}
	}
}

// TestEndKeepsTold: the end of a comparison does not take back what another one of the same round has reported meanwhile, which it
// does not know.
func TestEndKeepsTold(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *book, by *Store, l Listed, r *Round, known *Told){
		"a result": func(s *book, by *Store, l Listed, r *Round, known *Told) {
			must.Succeed(s.t, by.SaveResult(s.t.Context(), l, result(r.N, cutAt(111, s.future+111)), known))
		},
		"a fault": func(s *book, by *Store, l Listed, r *Round, known *Told) {
			must.Succeed(s.t, by.SaveFault(s.t.Context(), l.SourceNS, &Fault{Why: "planted", Round: r.N}, known))
		},
	} {
		for when, suspended := range map[string]bool{"before": false, "as it ends": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				s, _ := begun(t)
				all := list("d.a", "d.b")
				round := s.again(s.Store, 110, all)
				must.Succeed(t, s.SavePass(t.Context(), "d.b", pass(&round, missing("mine")...)))
				other := func() { must.Succeed(t, s.SaveTold(t.Context(), "d.b", id("d.b", 1), round.N, missing("other"), 0)) }
				by := s.Store
				if suspended {
					by = s.suspended(1, other)
				} else {
					other()
				}
				known := &Told{Found: missing("mine")}
				end(s, by, all[1], &round, known)
				if p := must.Get(s.Pass(t.Context(), "d.b"))(t); p == nil || len(p.Told) != 2 {
					t.Errorf("the difference is forgotten: %+v", p)
				}
				known.Found = missing("mine", "other")
				end(s, s.Store, all[1], &round, known)
				if p := must.Get(s.Pass(t.Context(), "d.b"))(t); p != nil {
					t.Errorf("a pass has remained: %+v", p)
				}
			})
		}
	}
}

// TestDifferedNew: a collection that no round has listed yet counts, if a comparison has found a difference in it that no other one has
// looked for since. Under another name it is the same collection.
func TestDifferedNew(t *testing.T) {
	t.Parallel()
	second := Listed{NS: "td.c", SourceNS: "d.c", Source: id("d.c", 1)}
	for name, begin := range map[string]func(s *book, r *Round) Listed{
		"another round begins": func(*book, *Round) Listed { return second },
		"it is renamed": func(*book, *Round) Listed {
			return Listed{NS: "td.d", SourceNS: "d.d", Source: second.Source}
		},
		"it is renamed during the round": func(s *book, r *Round) Listed {
			l := Listed{NS: "td.d", SourceNS: "d.d", Source: second.Source, At: cutAt(0, s.future+116).Target}
			must.Get(s.Replace(s.t.Context(), l, r.N))(s.t)
			forget(s.t, s.Store, "d.c", second.Source, r.N)
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			round := s.again(s.Store, 110, list("d.a", "d.b"))
			l := second
			l.At = cutAt(0, s.future+111).Target
			must.Get(s.Replace(t.Context(), l, round.N))(t)
			must.Succeed(t, s.SaveTold(t.Context(), "d.c", id("d.c", 1), round.N, missing("1"), 0))
			if st := s.is("reported", 100, 2, 2, 1); st.Differences != 1 {
				t.Errorf("%+v", st)
			}
			s.end(&round)
			l = begin(s, &round)
			s.again(s.Store, 120, append(list("d.a", "d.b"), l))
			counts := func(what string) {
				t.Helper()
				if st := read(t, s.Store); st.AsOf != nil || len(st.Unverified) != 1 || st.Unverified[0].SourceNS != l.SourceNS {
					t.Errorf("%s: %+v", what, st)
				}
			}
			counts("begun")
			must.Succeed(t, s.BeforeClear(t.Context(), &guard.State{Touched: []guard.Touched{{Source: l.SourceNS, Until: cutAt(0, s.future+120).Target}}}))
			counts("marked for another reason")
			next := Round{N: round.N + 1}
			must.Succeed(t, s.SaveResult(t.Context(), l, result(next.N, cutAt(121, s.future+121)), &Told{}))
			if st := read(t, s.Store); st.AsOf == nil || st.Differences != 0 {
				t.Errorf("compared, and equal: %+v", st)
			}
		})
	}
}

// TestMadeAgainAfterMark: a collection that is made again does not count before a round has listed it because the one before was marked.
func TestMadeAgainAfterMark(t *testing.T) {
	t.Parallel()
	s, _ := begun(t)
	all := list("d.a", "d.b")
	round := s.again(s.Store, 110, all)
	must.Succeed(t, s.SaveTold(t.Context(), "d.b", id("d.b", 1), round.N, missing("1"), 0))
	s.again(s.Store, 120, all)
	s.is("it differs", 0, 2, 1, 0)
	all[1].Source, all[1].At = id("d.b", 2), cutAt(0, s.future+125).Target
	s.again(s.Store, 130, all)
	s.is("made again", 100, 1, 1, 1)
}

// TestForgetDiffers: a collection that is known to differ is forgotten only if it has no other name.
func TestForgetDiffers(t *testing.T) {
	t.Parallel()
	s, _ := begun(t)
	all := list("d.a", "d.b")
	round := s.again(s.Store, 110, all)
	s.differs(&round, all[1], 111)
	for _, tt := range []struct {
		ns              oplog.Namespace
		differs, forgot bool
	}{{"d.b", false, false}, {"d.a", false, true}, {"d.b", true, true}, {"d.b", false, true}} {
		gone := must.Get(s.Forget(t.Context(), tt.ns, id(tt.ns, 1), round.N))(t)
		if forgot := gone == nil || tt.differs; forgot != tt.forgot {
			t.Errorf("%+v: forgotten: %t", tt, forgot)
		}
		if gone != nil && tt.differs {
			must.Succeed(t, s.ForgetGone(t.Context(), gone))
		}
	}
	if st := read(t, s.Store); st.Collections != 0 {
		t.Errorf("%+v", st)
	}
}

// TestRenamedTwice: a collection is marked that differed under another name, also if it is known to differ under its present one, too.
func TestRenamedTwice(t *testing.T) {
	t.Parallel()
	first, second := &document{Source: uuid(id("d.c", 1)), Pass: &Pass{Told: missing("1")}}, &document{Source: uuid(id("d.c", 1)), Pass: &Pass{Told: missing("2")}}
	for range 100 { // in any order
		if names := renamed(map[oplog.Namespace]*document{"d.b": first, "d.c": second}, []Listed{{NS: "td.c", SourceNS: "d.c", Source: id("d.c", 1)}}); !names["d.c"] {
			t.Fatal(names)
		}
	}
}

// TestToldOfForgotten: differences that are reported in a collection after another verification has forgotten its name are not forgotten
// as another round begins.
func TestToldOfForgotten(t *testing.T) {
	t.Parallel()
	for _, resume := range []bool{true, false} {
		s, _ := begun(t)
		all := list("d.a", "d.b")
		round := s.again(s.Store, 110, all)
		forget(t, s.Store, "d.b", all[1].Source, round.N)
		must.Succeed(t, s.SaveTold(t.Context(), "d.b", all[1].Source, round.N, missing("1"), 0))
		if _, _, err := beginAs(t.Context(), s.Store, all, resume, cutAt(120, s.future+120), time.Unix(5000, 0)); err != nil {
			t.Fatal(err)
		}
		if st := read(t, s.Store); st.AsOf != nil {
			t.Errorf("resumed %t: %+v", resume, st)
		}
	}
}
