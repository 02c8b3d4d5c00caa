package standing

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// delayed is a target that executes a write late: something else happens before.
type delayed struct {
	mongo.Caller
	before func()
}

// Call implements mongo.Caller.
func (d *delayed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("update"); err == nil && d.before != nil {
		before := d.before
		d.before = nil
		before()
	}
	return d.Caller.Call(ctx, cmd)
}

// TestLateMark: a mark that is stored late, after one of a later time, does not take that one back.
func TestLateMark(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	target := func() bson.Timestamp {
		_, docs, err := s.load(t.Context())
		must.Succeed(t, err)
		return docs["d.a"].Mark.Target
	}
	var later bson.Timestamp
	late := Store{DB: s.DB, Link: s.Link, Target: &delayed{s.Target, func() {
		must.Succeed(t, s.Mark(t.Context(), "another", "d.b")) // The target's time goes on.
		must.Succeed(t, s.Mark(t.Context(), "later", "d.a"))
		later = target()
	}}}
	must.Succeed(t, late.Mark(t.Context(), "sooner", "d.a"))
	if got := target(); later.IsZero() || got != later {
		t.Errorf("marked as of %v, and then as of %v", later, got)
	}
	must.Succeed(t, s.Mark(t.Context(), "again", "d.b", "d.a"))
	if got := target(); !got.After(later) {
		t.Errorf("marked again as of %v, before that as of %v", got, later)
	}
}

// TestReplacedPass: what a comparison has found that another one replaces before its end is not forgotten: the
// collection is not verified until it is compared again.
func TestReplacedPass(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	pass := func(round *Round, ns oplog.Namespace, found ...Found) {
		must.Succeed(t, s.SavePass(t.Context(), ns, &Pass{Made: bson.NewObjectID(), Round: round.N, Source: uuid(id(ns, 1)), Target: uuid(id(ns, 1)), Found: found}))
	}
	all := list("d.a", "d.b", "d.c")
	round, _ := s.begin(90, all)
	for _, ns := range []oplog.Namespace{"d.a", "d.b"} {
		s.save(&round, ns, 100)
	}
	r := result(round.N, cutAt(100, s.future+100))
	r.Tally.Missing, r.Found = 1, []Found{NewFound("missing", "1", "", "")}
	must.Succeed(t, s.SaveResult(t.Context(), all[2], r, s.told("d.c")))
	s.end(&round)
	round, _ = s.begin(110, all)
	pass(&round, "d.a")
	pass(&round, "d.b", NewFound("missing", "1", "", ""))
	pass(&round, "d.c", NewFound("missing", "1", "", ""))
	round, _ = s.begin(120, all) // goes on
	if st := s.is("found", 100, 3, 3, 0); st.Differences != 2 {
		t.Errorf("%+v", st)
	}
	round, heads, err := beginAs(t.Context(), s.Store, all, false, cutAt(130, s.future+130), time.Unix(5000, 0))
	must.Succeed(t, err)
	if st := s.is("replaced", 0, 3, 2, 0); len(st.Unverified) != 1 || st.Unverified[0].NS != "td.b" || !heads["d.b"].Marked || heads["d.a"].Marked || heads["d.c"].Marked {
		t.Errorf("%+v, %+v", st.Unverified, heads)
	}
	s.save(&round, "d.b", 130)
	s.is("compared again", 100, 3, 3, 0)
}

// TestLostRound: once the document of the round is damaged or gone, all collections count again, as of the
// round that begins from the start.
func TestLostRound(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	var round Round
	for n := range uint32(4) {
		all := list("d.a")
		if n == 3 {
			all = list("d.a", "d.b") // which joins late
		}
		round, _ = s.begin(90+10*n, all)
		s.save(&round, "d.a", 90+10*n)
		s.end(&round)
	}
	must.Succeed(t, s.write(t.Context(), metadata.Delete(s.DB, metadata.Verified, metadata.ByID(s.roundID()))))
	round, _ = s.begin(200, list("d.a", "d.b"))
	s.save(&round, "d.a", 200)
	s.end(&round)
	s.is("d.b was never compared", 0, 2, 1, 0)
	s.save(&round, "d.b", 201)
	s.is("both are", 200, 2, 2, 0)
}

// TestOvertaken: what a comparison finds is not forgotten while a later round, which another one has begun, has not compared
// the collection: not even if the later round begins as it is stored.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		// told stores a difference, with a Store, and begin begins another round.
		run func(t *testing.T, s *book, told func(*Store), begin func(*Store))
	}{
		"after it has begun": {func(_ *testing.T, s *book, told func(*Store), begin func(*Store)) {
			begin(s.Store)
			told(s.Store)
		}},
		"it begins before the first write": {func(_ *testing.T, s *book, told func(*Store), begin func(*Store)) {
			told(&Store{DB: s.DB, Link: s.Link, Target: &delayed{s.Target, func() { begin(s.Store) }}})
		}},
		"stored after it has read the results": {func(_ *testing.T, s *book, told func(*Store), begin func(*Store)) {
			begin(&Store{DB: s.DB, Link: s.Link, Target: &delayed{s.Target, func() { told(s.Store) }}})
		}},
		"and has a pass": {func(t *testing.T, s *book, told func(*Store), begin func(*Store)) {
			t.Helper()
			begin(s.Store)
			must.Succeed(t, s.SavePass(t.Context(), "d.a", &Pass{Made: bson.NewObjectID(), Round: 3, Source: uuid(id("d.a", 1)), Told: []Found{NewFound("missing", "9", "", "")}}))
			told(s.Store)
			if pass := must.Get(s.Pass(t.Context(), "d.a"))(t); pass.Round != 3 || len(pass.Told) != 1 || pass.Told[0].ID != "9" {
				t.Errorf("the pass of the later round: %+v", pass)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newBook(t)
			all := list("d.a", "d.b")
			future := s.future
			s.future = 0 // The first results are older than every mark.
			round, _ := s.begin(90, all)
			s.save(&round, "d.a", 100)
			s.save(&round, "d.b", 100)
			s.end(&round)
			s.future = future
			round, _ = s.begin(110, all)
			told := func(by *Store) {
				must.Succeed(t, by.SaveTold(t.Context(), "d.a", id("d.a", 1), round.N, []Found{NewFound("missing", "1", "", "")}, 0))
			}
			var later Round
			begin := func(by *Store) {
				var err error
				later, _, err = beginAs(t.Context(), by, all, false, cutAt(120, s.future+120), time.Unix(5000, 0))
				must.Succeed(t, err)
			}
			tt.run(t, s, told, begin)
			if st := s.is("found", 0, 2, 1, 0); len(st.Unverified) != 1 || st.Unverified[0].NS != "td.a" || st.Unverified[0].Why != whyReplaced {
				t.Errorf("%+v", st.Unverified)
			}
			s.save(&later, "d.a", 130)
			s.is("compared later", 100, 2, 2, 0)
		})
	}
}

// TestMoreThanListed: of collections that are not listed all are counted, and the states of those that are asked for are known: one
// whose comparison has been replaced is not known to be equal.
func TestMoreThanListed(t *testing.T) {
	t.Parallel()
	round := Round{N: 2, Complete: 1}
	docs := map[oplog.Namespace]*document{}
	for i := range mostListed + 20 {
		ns := oplog.Namespace(fmt.Sprintf("d.c%d", i))
		d := &document{NS: ns, Joined: 1, Is: result(1, cutAt(100, 100)), Fault: &Fault{Why: "planted"}}
		d.Is.Tally.Missing = int64(i)
		docs[ns] = d
	}
	docs["d.c0"].Mark = &Mark{Target: bson.Timestamp{T: 200}, Why: whyReplaced}
	docs["d.c1"].Pass = &Pass{Round: 2, Found: []Found{NewFound("extra", "1", "", "")}}
	st := sum(&round, docs, &since{})
	if len(st.Unchecked) != mostListed || st.MoreUnchecked != 20 || len(st.Differing) != mostListed || st.MoreDiffering != 19 {
		t.Errorf("%d unchecked and %d more, %d differing and %d more", len(st.Unchecked), st.MoreUnchecked, len(st.Differing), st.MoreDiffering)
	}
	got := states(docs, &since{}, []oplog.Namespace{"d.c0", "d.c1", "d.c2", "d.other"})
	want := map[oplog.Namespace]State{"d.c0": {}, "d.c1": {Differences: 2, Verified: true}, "d.c2": {Differences: 2, Verified: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSeries: the buckets of a time series are not verified any more once something else has written to it, it is copied again, or a
// comparison of it was asked for. It is named by its own name then.
func TestSeries(t *testing.T) {
	t.Parallel()
	const series, buckets = oplog.Namespace("d.ts"), oplog.Namespace("d.system.buckets.ts")
	s := newBook(t)
	all := list(series, buckets, "d.a")
	future := s.future
	s.future = 0 // The first results are older than every mark.
	round, _ := s.begin(90, all)
	for _, l := range all {
		s.save(&round, l.SourceNS, 100)
	}
	s.end(&round)
	s.is("equal", 100, 3, 3, 0)
	must.Succeed(t, s.Mark(t.Context(), "planted", series))
	s.is("marked", 0, 3, 1, 0)
	s.future = future
	round, heads := s.begin(110, all)
	if !heads[buckets].Marked || !heads[series].Marked || heads["d.a"].Marked {
		t.Errorf("%+v", heads)
	}
	s.save(&round, series, 110)
	if st := s.is("the buckets are not compared", 0, 3, 2, 0); len(st.Unverified) != 1 || st.Unverified[0].SourceNS != buckets {
		t.Errorf("%+v", st.Unverified)
	}
	s.save(&round, buckets, 111)
	s.is("compared", 100, 3, 3, 0)

	_, docs, err := s.load(t.Context())
	must.Succeed(t, err)
	for what, changed := range map[string]*since{
		"a foreign write": {touched: map[oplog.Namespace]Moment{series: {TS: bson.Timestamp{T: s.future + 200}}}},
		"copied again":    {leftOut: map[oplog.Namespace]bool{series: true}},
	} {
		if st := sum(&round, docs, changed); st.Verified != 1 {
			t.Errorf("%s: %+v", what, st)
		}
	}
}

// TestOvertakenKeeps: a comparison that a later round has overtaken does not delete what that has found, whether it begins with the
// collection, ends, or cannot compare it.
func TestOvertakenKeeps(t *testing.T) {
	t.Parallel()
	for name, earlier := range map[string]func(t *testing.T, s *book, r *Round){
		"begins": func(t *testing.T, s *book, r *Round) {
			t.Helper()
			must.Succeed(t, s.SavePass(t.Context(), "d.a", &Pass{Made: bson.NewObjectID(), Round: r.N, Source: uuid(id("d.a", 1))}))
		},
		"ends": func(_ *testing.T, s *book, r *Round) { s.save(r, "d.a", 115) },
		"cannot compare it": func(t *testing.T, s *book, r *Round) {
			t.Helper()
			must.Succeed(t, s.SaveFault(t.Context(), "d.a", &Fault{Why: "planted", Round: r.N}, s.told("d.a")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newBook(t)
			all := list("d.a")
			round, _ := s.begin(90, all)
			s.save(&round, "d.a", 100)
			s.end(&round)
			round, _ = s.begin(110, all)
			later, _, err := beginAs(t.Context(), s.Store, all, false, cutAt(120, s.future+120), time.Unix(5000, 0))
			must.Succeed(t, err)
			must.Succeed(t, s.SaveTold(t.Context(), "d.a", id("d.a", 1), later.N, []Found{NewFound("missing", "1", "", "")}, 0))
			earlier(t, s, &round)
			if st := read(t, s.Store); st.Differences != 1 {
				t.Errorf("the later round has found one: %+v", st)
			}
			s.save(&later, "d.a", 130)
			if st := s.is("compared later", 130, 1, 1, 0); st.Differences != 0 {
				t.Errorf("%+v", st)
			}
			if pass := must.Get(s.Pass(t.Context(), "d.a"))(t); pass != nil {
				t.Errorf("%+v", pass)
			}
		})
	}
}

// TestLostRoundPass: once the document of the round is gone, a pass of a later round does not keep those of the rounds that begin
// from the start from being stored.
func TestLostRoundPass(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	all := list("d.a")
	for range 3 {
		round, _ := s.begin(90, all)
		s.end(&round)
	}
	pass := func(round int64) {
		must.Succeed(t, s.SavePass(t.Context(), "d.a", &Pass{Made: bson.NewObjectID(), Round: round, Source: uuid(id("d.a", 1))}))
	}
	pass(3)
	must.Succeed(t, s.write(t.Context(), metadata.Delete(s.DB, metadata.Verified, metadata.ByID(s.roundID()))))
	round, _ := s.begin(200, all)
	pass(round.N)
	if got := must.Get(s.Pass(t.Context(), "d.a"))(t); round.N != 1 || got.Round != 1 {
		t.Errorf("round %d: %+v", round.N, got)
	}
	s.save(&round, "d.a", 200)
	s.end(&round)
	s.is("compared", 200, 1, 1, 0)
}
