package standing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) *driver.Set {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1})
	return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
}

// id is the UUID of a collection's nth life.
func id(ns oplog.Namespace, life int) oplog.UUID {
	var u oplog.UUID
	copy(u[:], fmt.Sprintf("%s/%d", ns, life))
	return u
}

// cutAt is a cut at seconds of both clusters; that of the target must be of its future, so that no
// mark is after it.
func cutAt(source, target uint32) Cut {
	return Cut{Source: bson.Timestamp{T: source, I: 1}, Target: bson.Timestamp{T: target, I: 1}, At: time.Unix(int64(source)+1, 0).UTC()}
}

func result(round int64, c Cut) *Result {
	return &Result{Round: round, Type: "collection", First: c, Last: c, At: c.At, TargetUUID: uuid(oplog.UUID{1})}
}

func read(t *testing.T, s *Store) Standing {
	t.Helper()
	return must.Get(Read(t.Context(), s.Target, s.DB, s.Link))(t)
}

// book is a Store with what the tests of rounds do.
type book struct {
	*Store
	t      *testing.T
	future uint32
}

func list(names ...oplog.Namespace) (all []Listed) {
	for _, ns := range names {
		all = append(all, Listed{NS: "t" + ns, SourceNS: ns, Source: id(ns, 1)})
	}
	return all
}

// begin begins a round, or resumes one, at a time of the source.
func (b *book) begin(source uint32, all []Listed) (Round, map[oplog.Namespace]Head) {
	b.t.Helper()
	round, heads, err := beginAs(b.t.Context(), b.Store, all, true, cutAt(source, b.future+source), time.Unix(5000, 0))
	must.Succeed(b.t, err)
	return round, heads
}

func (b *book) end(r *Round) {
	b.t.Helper()
	must.Succeed(b.t, b.End(b.t.Context(), r, time.Unix(6000, 0)))
}

func (b *book) save(r *Round, ns oplog.Namespace, source uint32) {
	b.t.Helper()
	must.Succeed(b.t, b.SaveResult(b.t.Context(), list(ns)[0], result(r.N, cutAt(source, b.future+source)), b.told(ns)))
}

// is checks as of when the link is verified, 0 for never.
func (b *book) is(what string, source uint32, collections, verified, isNew int) Standing {
	b.t.Helper()
	st := read(b.t, b.Store)
	got := uint32(0)
	if st.AsOf != nil {
		got = st.AsOf.Source.T
	}
	if got != source || st.Collections != collections || st.Verified != verified || st.New != isNew || (st.AsOf == nil) != (st.Why != "") {
		b.t.Errorf("%s: verified as of %d, %+v", what, got, st)
	}
	return st
}

func newBook(t *testing.T) *book {
	t.Helper()
	target := open(t)
	return &book{Store: &Store{Target: target, DB: "replicator", Link: "l"}, t: t, future: must.Get(mongo.OperationTime(t.Context(), target))(t).T + 1000}
}

// TestStanding: a link is verified as of its oldest result, once a round is complete that had listed
// everything which counts.
func TestStanding(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	other := &Store{Target: s.Target, DB: "replicator", Link: "l2"} // whose name begins with it
	must.Succeed(t, other.Mark(t.Context(), "of another link", "d.a"))
	s.is("never", 0, 0, 0, 0)
	round, heads := s.begin(90, list("d.a", "d.b"))
	if len(heads) != 2 || !round.Open() {
		t.Errorf("%+v %+v", round, heads)
	}
	s.save(&round, "d.a", 101)
	s.is("a part", 0, 2, 1, 0)
	s.save(&round, "d.b", 102)
	s.is("all, and the round is not complete", 0, 2, 2, 0)
	s.end(&round)
	if st := s.is("complete", 101, 2, 2, 0); st.Oldest != "td.a" || st.Done != 2 || st.Round.Last == nil {
		t.Errorf("%+v", st)
	}

	// A later round has another collection; it counts once that is complete.
	round, heads = s.begin(110, list("d.a", "d.b", "d.c"))
	if heads["d.a"].Result == nil || heads["d.c"].Result != nil || round.N != 2 {
		t.Errorf("%+v %+v", round, heads)
	}
	s.is("a new one", 101, 2, 2, 1)
	s.save(&round, "d.a", 111)
	s.is("the oldest is another one", 102, 2, 2, 1)
	s.save(&round, "d.a", 99)
	s.is("an older result replaces none", 102, 2, 2, 1)
	s.save(&round, "d.b", 112)
	must.Succeed(t, s.SaveFault(t.Context(), "d.a", &Fault{Why: "planted", Round: 2, At: time.Unix(9000, 0)}, s.told("d.a")))
	if st := s.is("what could not be compared keeps its result", 111, 2, 2, 1); len(st.Unchecked) != 1 || st.Unchecked[0].Why != "planted" {
		t.Errorf("%+v", st)
	}
	s.end(&round)
	if st := s.is("one that counts was never compared", 0, 3, 2, 0); st.Why != "not verified: td.c: not compared yet" {
		t.Error(st.Why)
	}
	s.save(&round, "d.c", 113)
	s.is("it is", 111, 3, 3, 0)
}

// TestResumed: a round that goes on has the collections of its beginning; one that was made again
// counts from the next round on, and one that was dropped does not count any more.
func TestResumed(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	round, _ := s.begin(90, list("d.a", "d.b", "d.c"))
	for _, ns := range []oplog.Namespace{"d.a", "d.b", "d.c"} {
		s.save(&round, ns, 100)
	}
	s.end(&round)
	round, _ = s.begin(120, list("d.a", "d.b", "d.c"))
	again := list("d.a", "d.b")
	again[1].Source = id("d.b", 2)
	resumed, heads := s.begin(121, again)
	if resumed.N != round.N || resumed.Began.Source != round.Began.Source || heads["d.b"].Result != nil {
		t.Errorf("%+v %+v", resumed, heads)
	}
	s.is("made again", 100, 1, 1, 1)
	s.save(&round, "d.b", 122) // of the one that is gone
	if st := s.is("a result of the collection before", 100, 1, 1, 1); st.Done != 0 {
		t.Errorf("%+v", st)
	}
	must.Succeed(t, s.SaveResult(t.Context(), again[1], result(round.N, cutAt(123, s.future+123)), s.told(again[1].SourceNS)))
	s.end(&Round{N: 7})
	if st := read(t, s.Store); st.Round.Complete != 1 || !st.Round.Open() {
		t.Errorf("a round that is over has completed another one: %+v", st.Round)
	}
	s.end(&round)
	s.is("it counts from the next round on", 100, 1, 1, 1)
	round, _ = s.begin(130, again)
	s.end(&round)
	s.is("the next round", 100, 2, 2, 0)

	third := again[1]
	third.Source = id("d.b", 3)
	third.At = cutAt(0, s.future+135).Target
	must.Get(s.Replace(t.Context(), third, round.N))(t)
	s.is("made again", 100, 1, 1, 1)
	round, heads = s.begin(140, []Listed{again[0], third})
	s.end(&round)
	if s.is("the result of the collection before does not count", 0, 2, 1, 0); heads["d.b"].Result != nil {
		t.Errorf("%+v", heads)
	}
}

// TestMarks: a marked collection is not verified until it is compared at a later cut, and
// differences are known until a comparison does not find them.
func TestMarks(t *testing.T) {
	t.Parallel()
	ctx, target := t.Context(), open(t)
	s := &Store{Target: target, DB: "replicator", Link: "l"}
	a := Listed{NS: "d.a", SourceNS: "d.a", Source: id("d.a", 1)}
	now := func() Cut {
		t.Helper()
		// The write makes a time that no mark has.
		must.Get(target.Call(ctx, mongo.Command{DB: "d", Body: must.Marshal(t, bson.D{{Key: "insert", Value: "x"}, {Key: "documents", Value: bson.A{bson.D{}}}})}))(t)
		ts := must.Get(mongo.OperationTime(ctx, target))(t)
		return Cut{Source: bson.Timestamp{T: 7}, Target: ts, At: time.Now().UTC()}
	}
	round, _, err := beginAs(ctx, s, []Listed{a}, false, now(), time.Now())
	must.Succeed(t, err)
	compare := func(change func(*Result)) {
		t.Helper()
		r := result(round.N, now())
		change(r)
		must.Succeed(t, s.SaveResult(ctx, a, r, &Told{}))
	}
	same := func(*Result) {}
	compare(same)
	must.Succeed(t, s.End(ctx, &round, time.Now()))
	verified := func(what, why string) {
		t.Helper()
		if st := read(t, s); (st.AsOf != nil) != (why == "") || why != "" && (len(st.Unverified) != 1 || st.Unverified[0].Why != why) {
			t.Errorf("%s: %+v", what, st)
		}
	}
	verified("compared", "")
	before := result(round.N, now())
	must.Succeed(t, s.Mark(ctx, "planted", "d.a"))
	verified("marked", "planted")
	must.Succeed(t, s.SaveResult(ctx, a, before, &Told{}))
	verified("compared at a cut before the mark", "planted")
	if _, heads, err := beginAs(ctx, s, []Listed{a}, false, now(), time.Now()); err != nil || !heads["d.a"].Marked {
		t.Errorf("%v %+v", err, heads)
	}
	compare(same)
	verified("compared again", "")

	// What the guard has stored counts at once, and what it says again does not, once it is compared.
	moment := func(ts bson.Timestamp) Moment { return Moment{TS: ts, Wall: time.Unix(int64(ts.T), 0).UTC()} }
	last := bson.Timestamp{T: now().Target.T + 5, I: 1}
	foreign := guard.Store{Target: target, DB: "replicator", Link: "l"}
	touched := func(ts bson.Timestamp) {
		t.Helper()
		at := moment(ts).Wall
		must.Succeed(t, foreign.Write(ctx, &guard.State{
			Term: 1, At: oplog.OpTime{TS: bson.Timestamp{T: 1}, Term: 1}, Touched: []guard.Touched{{NS: "d.a", Source: "d.a", Count: 1, First: at, Last: at, Until: ts}},
		}, true))
	}
	touched(last)
	verified("a foreign write", whyForeign)
	must.Succeed(t, foreign.Clear(ctx, last))
	verified("it was cleared before it was marked", "")
	must.Succeed(t, s.Touched(ctx, "d.a", moment(now().Target)))
	verified("it is marked", whyForeign)
	compare(same)
	must.Succeed(t, s.Touched(ctx, "d.a", moment(bson.Timestamp{T: now().Target.T - 3600, I: 1})))
	verified("one that was marked already", "")

	// Differences.
	compare(func(r *Result) {
		r.Tally.Missing, r.Catalog = 2, 1
		r.Found = []Found{NewFound("missing", "1", "", ""), NewFound("index", "", "x_1", "extra")}
	})
	st := read(t, s)
	if diff := cmp.Diff(map[string]int64{"missing": 2, "catalog": 1}, st.Kinds); diff != "" || st.Differences != 3 || st.AsOf == nil {
		t.Errorf("%s %+v", diff, st)
	}
	pass := &Pass{Made: bson.NewObjectID(), Round: st.Round.N, Source: uuid(a.Source), Target: uuid(a.Source), Found: []Found{NewFound("extra", "9", "", ""), NewFound("missing", "1", "", "")}}
	must.Succeed(t, s.SavePass(ctx, "d.a", pass))
	if st = read(t, s); st.Differences != 4 || st.Kinds["extra"] != 1 || len(st.Differing[0].Found) != 3 {
		t.Errorf("of a comparison that has not ended: %+v", st)
	}
	if p := must.Get(s.Pass(ctx, "d.a"))(t); p == nil || len(p.Found) != 2 {
		t.Errorf("%+v", p)
	}
	compare(func(r *Result) { r.Round = st.Round.N })
	if st = read(t, s); st.Differences != 0 || len(st.Differing) != 0 {
		t.Errorf("%+v", st)
	}
}

// TestForeignEverywhere: foreign writes to more collections than are listed leave none verified, until each
// is compared again, whether or not they are cleared.
func TestForeignEverywhere(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	ctx := t.Context()
	other := &Store{Target: s.Target, DB: "replicator", Link: "l2"}
	round, _ := s.begin(90, list("d.a", "d.b"))
	_, _, err := beginAs(ctx, other, list("d.a"), true, cutAt(90, 90), time.Unix(5000, 0))
	must.Succeed(t, err)
	s.save(&round, "d.a", 101)
	s.save(&round, "d.b", 102)
	s.end(&round)
	s.is("compared", 101, 2, 2, 0)
	foreign, last := guard.Store{Target: s.Target, DB: "replicator", Link: "l"}, bson.Timestamp{T: s.future + 101, I: 2}
	moment := Moment{TS: last, Wall: time.Unix(int64(last.T), 0)}
	must.Succeed(t, foreign.Write(ctx, &guard.State{Term: 1, At: oplog.OpTime{TS: bson.Timestamp{T: 1}, Term: 1}, More: 3, MoreLast: moment.Wall, MoreUntil: last}, true))
	s.is("before it is marked", 0, 2, 1, 0)
	must.Succeed(t, foreign.Clear(ctx, last))
	s.is("cleared before it was marked", 101, 2, 2, 0)
	must.Succeed(t, s.TouchedAll(ctx, moment))
	var marked []Mark
	for _, doc := range must.Get(loaded(ctx, s.Store))(t) {
		marked = append(marked, *doc.Mark)
	}
	if len(marked) != 2 || marked[0].Why != whyManyForeign || marked[1].Why != whyManyForeign {
		t.Errorf("%+v", marked)
	}
	if docs := must.Get(loaded(ctx, other))(t); docs["d.a"].Mark != nil {
		t.Errorf("another link: %+v", docs["d.a"])
	}
}

func loaded(ctx context.Context, s *Store) (map[oplog.Namespace]*document, error) {
	_, docs, err := s.load(ctx)
	return docs, err
}

// TestBeforeClear: a collection whose foreign write is cleared before the link has marked it is not verified until
// it is compared again; one compared after the foreign write is, and so is one of another link.
func TestBeforeClear(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	ctx := t.Context()
	round, _ := s.begin(90, list("d.a", "d.b", "d.c"))
	s.save(&round, "d.a", 101)
	s.save(&round, "d.b", 110)
	s.save(&round, "d.c", 120)
	s.end(&round)
	s.is("compared", 101, 3, 3, 0)
	at := func(second uint32) bson.Timestamp { return bson.Timestamp{T: s.future + second, I: 2} }
	// The clock of the target's primary is of the past: it orders nothing.
	past := time.Unix(1, 0).UTC()
	foreign := guard.Store{Target: s.Target, DB: "replicator", Link: "l"}
	deal := func(st *guard.State, last bson.Timestamp) {
		t.Helper()
		st.Term, st.At = 1, oplog.OpTime{TS: bson.Timestamp{T: 1}, Term: 1}
		must.Succeed(t, foreign.Write(ctx, st, true))
		must.Succeed(t, s.BeforeClear(ctx, st))
		must.Succeed(t, foreign.Clear(ctx, last))
	}
	deal(&guard.State{Touched: []guard.Touched{{NS: "d.a", Source: "d.a", Last: past, Until: at(101)}, {NS: "d.b", Source: "d.b", Last: past, Until: at(109)}, {NS: "d.z", Source: "d.z", Last: past, Until: at(109)}}}, at(109))
	s.is("two namespaces cleared", 0, 3, 2, 0)
	s.save(&round, "d.a", 115)
	s.is("compared again", 110, 3, 3, 0)
	deal(&guard.State{More: 1, MoreLast: past, MoreUntil: at(112)}, at(112))
	s.is("more than are listed cleared", 0, 3, 2, 0)
	s.save(&round, "d.b", 116)
	s.is("all compared again", 115, 3, 3, 0)
	// One that is marked already, for longer, stays so.
	must.Succeed(t, s.Mark(ctx, "planted", "d.c"))
	before := must.Get(loaded(ctx, s.Store))(t)["d.c"].Mark
	deal(&guard.State{More: 1, MoreLast: past, MoreUntil: bson.Timestamp{T: before.Target.T - 1, I: 1}}, at(113))
	if after := must.Get(loaded(ctx, s.Store))(t)["d.c"].Mark; *after != *before {
		t.Errorf("%+v, before it was %+v", after, before)
	}
}

// TestRepaired: a document that a repair has found equal at a later cut differs no longer; one that it does not
// name, or that was found after it, does.
func TestRepaired(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	ctx := t.Context()
	round, _ := s.begin(90, list("d.a"))
	must.Succeed(t, s.Repaired(ctx, "d.a", []string{"1"}, bson.Timestamp{T: s.future + 500})) // not compared yet
	save := func(source uint32) {
		t.Helper()
		r := result(round.N, cutAt(source, s.future+source))
		r.Last = cutAt(source+5, s.future+source+5)
		long := strings.Repeat("x", 300)
		r.Tally = Tally{EqualDocs: 10, Missing: 1, Extra: 1, Differs: 60, Order: 1}
		r.Catalog = 1
		r.Found = []Found{
			NewFound("missing", "1", "", ""), NewFound("extra", "2", "", ""), NewFound("differs", "3", "", ""), NewFound("differs", "4", "", ""),
			NewFound("differs", long, "", ""), NewFound("order", "1", "", ""), NewFound("index", "", "x_1", "extra"),
		}
		must.Succeed(t, s.SaveResult(ctx, list("d.a")[0], r, &Told{}))
	}
	differ := func(what string, want int64, ids ...string) {
		t.Helper()
		st := read(t, s.Store)
		var got []string
		for _, f := range st.Differing[0].Found {
			got = append(got, f.Kind+f.ID[:min(len(f.ID), 3)])
		}
		if diff := cmp.Diff(ids, got); diff != "" || st.Differences != want {
			t.Errorf("%s: %d differences, want %d: %s", what, st.Differences, want, diff)
		}
	}
	all := []string{"missing1", "extra2", "differs3", "differs4", "differsxxx", "order1", "index"}
	save(101)
	s.end(&round)
	differ("compared", 64, all...)
	ids := []string{"1", "2", "3", "9", strings.Repeat("x", 300)}
	must.Succeed(t, s.Repaired(ctx, "d.a", ids, bson.Timestamp{T: s.future + 106, I: 1}))
	differ("too early to be of what the comparison has seen last", 64, all...)
	must.Succeed(t, s.Repaired(ctx, "d.a", ids, bson.Timestamp{T: s.future + 107}))
	differ("repaired", 61, "differs4", "differsxxx", "order1", "index")
	if st := read(t, s.Store); st.Kinds["differs"] != 59 || st.Kinds["missing"] != 0 || st.Kinds["extra"] != 0 {
		t.Errorf("%+v", st.Kinds)
	}
	save(200)
	differ("found again later", 64, all...)
	for range 2 * mostRepaired / MostFound {
		must.Succeed(t, s.Repaired(ctx, "d.a", slices.Repeat([]string{"5"}, MostFound), bson.Timestamp{T: s.future + 300}))
	}
	if docs := must.Get(loaded(ctx, s.Store))(t); len(docs["d.a"].Repaired) != mostRepaired {
		t.Errorf("%d are kept", len(docs["d.a"].Repaired))
	}
}

// TestCopied: a comparison that is older than the link's copy says nothing.
func TestCopied(t *testing.T) {
	t.Parallel()
	docs := map[oplog.Namespace]*document{"d.a": {NS: "d.a", Joined: 1, Is: result(1, cutAt(100, 100))}}
	for _, c := range []struct {
		changed since
		why     string
	}{
		{since{copied: bson.Timestamp{T: 100, I: 1}}, ""},
		{since{copied: bson.Timestamp{T: 100, I: 2}}, whyCopied},
		{since{copying: true}, whyCopying},
		{since{leftOut: map[oplog.Namespace]bool{"d.a": true}}, whyCopying},
		{since{leftOut: map[oplog.Namespace]bool{"d.b": true}}, ""},
		{since{touched: map[oplog.Namespace]Moment{"d.a": {TS: bson.Timestamp{T: 99, I: 9}, Wall: time.Unix(200, 0)}}}, ""},
		{since{touched: map[oplog.Namespace]Moment{"d.a": {TS: bson.Timestamp{T: 100, I: 1}, Wall: time.Unix(50, 0)}}}, whyForeign},
		{since{all: Moment{TS: bson.Timestamp{T: 99, I: 9}, Wall: time.Unix(200, 0)}}, ""},
		{since{all: Moment{TS: bson.Timestamp{T: 100, I: 1}, Wall: time.Unix(50, 0)}}, whyManyForeign},
		{since{ever: true}, whyManyForeign},
	} {
		st := sum(&Round{N: 1, Complete: 1}, docs, &c.changed)
		if why := ""; c.why != "" && (len(st.Unverified) != 1 || st.Unverified[0].Why != c.why) || c.why == "" && st.Why != why {
			t.Errorf("%+v: %+v", c.changed, st)
		}
	}
}

// TestSum: whatever rounds list and compare, a link is verified as of no later time than any collection
// that has been there since before the newest complete round began was last compared.
func TestSum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var round Round
		clock := uint32(10)
		names := []oplog.Namespace{"d.a", "d.b", "d.c", "d.d"}
		docs := map[oplog.Namespace]*document{}
		// last is when each was compared, made since which round it is there; the model.
		last, there := map[oplog.Namespace]uint32{}, map[oplog.Namespace]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			clock++
			ns := rapid.SampledFrom(names).Draw(t, "ns")
			switch rapid.SampledFrom([]string{"make", "drop", "begin", "compare", "mark", "end"}).Draw(t, "what") {
			case "make":
				if there[ns] == 0 {
					there[ns] = round.N + 1
				}
			case "drop":
				delete(there, ns)
				delete(last, ns)
				delete(docs, ns)
			case "begin":
				round.N++
				for ns := range there {
					if docs[ns] == nil {
						docs[ns] = &document{NS: ns, Joined: round.N}
					}
				}
			case "compare":
				if d := docs[ns]; d != nil {
					d.Is, last[ns] = result(round.N, cutAt(clock, clock)), clock
				}
			case "mark":
				if d := docs[ns]; d != nil {
					d.Mark = &Mark{Target: bson.Timestamp{T: clock, I: 9}, Why: "planted"}
					delete(last, ns)
				}
			case "end":
				round.Complete = round.N
			}
			st := sum(&round, docs, &since{})
			if st.AsOf == nil {
				continue
			}
			if round.Complete == 0 {
				t.Fatalf("verified before any round was complete: %+v", st)
			}
			for _, ns := range slices.Sorted(maps.Keys(there)) {
				if there[ns] <= round.Complete && docs[ns] != nil && docs[ns].Joined <= round.Complete && (last[ns] == 0 || last[ns] < st.AsOf.Source.T) {
					t.Fatalf("%s was compared last at %d, and everything is verified as of %d", ns, last[ns], st.AsOf.Source.T)
				}
			}
		}
	})
}
