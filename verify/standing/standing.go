package standing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// mostListed limits the lists of a Standing.
const mostListed = 100

// Standing is the verification state of a link. The zero value is that of one that was never
// verified.
type Standing struct {
	// AsOf is the oldest cut at which anything that counts was compared last, nil if something was
	// not; Oldest is the collection that it is of, by its name on the target.
	AsOf   *Cut
	Oldest oplog.Namespace
	// Why says why AsOf is nil.
	Why string
	// Collections is how many count, Verified how many of them are verified; New is how many were
	// made since the round began, and count from the next one on.
	Collections, Verified, New int
	// Unverified are those that count and are not, Unchecked those that could not be compared the last
	// time, the first of each. Differing have differences, those with most first. The others are counted.
	Unverified, Unchecked                        []Collection
	Differing                                    []Differing
	MoreUnverified, MoreUnchecked, MoreDiffering int
	// Differences counts all that are known, Kinds by kind.
	Differences int64
	Kinds       map[string]int64
	// Diverged are the collections with operations that met what they cannot have met at the source, and that were not compared
	// without a difference since; those that were are Settled.
	Diverged, Settled []checkpoint.Diverged
	// Round is the newest one, Done is how many of its collections it has compared, Bytes how many
	// bytes of the source's documents the newest results are of.
	Round Round
	Done  int
	Bytes int64
}

// Collection is a collection, and why it is listed.
type Collection struct {
	NS, SourceNS oplog.Namespace
	Why          string
	Since        time.Time
}

// Differing is a collection with differences.
type Differing struct {
	NS, SourceNS oplog.Namespace
	Differences  int64
	// AsOf is the cut of the comparison, nil while that has not ended. Found are the first ones.
	AsOf  *Cut
	Found []Found
}

// Read reads the verification state of a link from its metadata in a target, and what else
// they have that says that something was changed since. It has all that was confirmed before.
func Read(ctx context.Context, target mongo.Caller, db, link string) (Standing, error) {
	st, _, err := ReadOf(ctx, target, db, link, nil)
	return st, err
}

// State is the state of one collection.
type State struct {
	// Differences counts those that are known. Verified is whether no other ones are possible: its last comparison counts.
	Differences int64
	Verified    bool
}

// ReadOf is Read, and returns the states of some collections, by their names at the source, of those that there are.
func ReadOf(ctx context.Context, target mongo.Caller, db, link string, of []oplog.Namespace) (Standing, map[oplog.Namespace]State, error) {
	s := Store{Target: target, DB: db, Link: link}
	round, docs, err := s.load(ctx)
	if err != nil {
		return Standing{}, nil, err
	}
	var since since
	if err := since.foreign(ctx, target, db, link); err != nil {
		return Standing{}, nil, err
	}
	links, err := checkpoint.New(checkpoint.Config{Target: target, DB: db, Link: link})
	if err != nil {
		return Standing{}, nil, err
	}
	state, _, err := links.Newest(ctx)
	if err != nil {
		return Standing{}, nil, err
	}
	since.of(&state)
	// After the results: one that is newer than a divergence is of a cut at which that was known.
	if since.diverged, err = diverged(ctx, target, db, link); err != nil {
		return Standing{}, nil, err
	}
	st := sum(&round, docs, &since)
	return st, states(docs, &since, of), nil
}

// states returns the states of some collections, once all are summed up.
func states(docs map[oplog.Namespace]*document, changed *since, of []oplog.Namespace) map[oplog.Namespace]State {
	out := make(map[oplog.Namespace]State, len(of))
	for _, ns := range of {
		if d := docs[ns]; d != nil {
			one := Standing{Kinds: map[string]int64{}}
			one.differences(ns, d)
			why, _ := d.unverified(ns, changed)
			out[ns] = State{Differences: one.Differences, Verified: why == ""}
		}
	}
	return out
}

// since contains the changes after a comparison that other metadata record.
type since struct {
	// touched are the collections with foreign writes, by their names at the source, with the time
	// of the last one.
	touched map[oplog.Namespace]Moment
	// all is the time of the last foreign write to a collection that is not listed by name, zero for
	// none: it may have been any collection. ever means that there was one at an unknown time.
	all  Moment
	ever bool
	// leftOut are those that are copied again; copied is the time of the source as of which the link's
	// copy is consistent, and copying reports whether it is not yet.
	leftOut map[oplog.Namespace]bool
	copied  bson.Timestamp
	copying bool
	// diverged are the divergences of collections, by their names at the source.
	diverged map[oplog.Namespace]checkpoint.Diverged
}

func (s *since) of(st *checkpoint.State) {
	s.copied = st.CopiedUntil.TS
	s.copying = st.Copy != nil && st.Copy.Phase != checkpoint.Copied
	s.leftOut = make(map[oplog.Namespace]bool, len(st.LeftOut))
	for i := range st.LeftOut {
		s.leftOut[st.LeftOut[i].NS] = true
	}
}

// foreign reads the collections with foreign writes that nobody has dealt with. A state that is damaged
// has none: the guard says that.
func (s *since) foreign(ctx context.Context, target mongo.Caller, db, link string) error {
	store := guard.Store{Target: target, DB: db, Link: link}
	st, err := store.Read(ctx)
	if _, damaged := errors.AsType[*metadata.DamagedError](err); damaged || err == nil && st == nil {
		return nil
	}
	if err != nil {
		return err
	}
	cleared, err := store.Cleared(ctx)
	if err != nil {
		return err
	}
	st.Clear(cleared)
	s.touched, s.all = Foreign(st)
	s.ever = st.More > 0 && st.MoreLast.IsZero()
	return nil
}

// Moment is when something else has written to the target. TS is the timestamp of the entry in the
// target's oplog: it is what cuts are compared with, as the clock of the target's primary, of which Wall
// is, is another one after a failover.
type Moment struct {
	TS   bson.Timestamp
	Wall time.Time
}

// reaches reports whether the target at a cut may lack a write made at m.
func (m *Moment) reaches(c *Cut) bool { return !m.TS.IsZero() && !m.TS.Before(c.Target) }

// Foreign returns the collections with foreign writes of a state, by their names at the source, and
// when the last one was; and when it was of those that are not listed, zero for none.
func Foreign(st *guard.State) (touched map[oplog.Namespace]Moment, others Moment) {
	touched = make(map[oplog.Namespace]Moment, len(st.Touched))
	for i := range st.Touched {
		t := &st.Touched[i]
		if last := (Moment{TS: t.Until, Wall: t.Last}); last.TS.After(touched[t.Source].TS) {
			touched[t.Source] = last
		}
	}
	if st.More > 0 {
		others = Moment{TS: st.MoreUntil, Wall: st.MoreLast}
	}
	return touched, others
}

// WhyDiffers begins the reason of a mark of a collection in which a comparison has found a difference that is not among the results.
const WhyDiffers = "it differs, and "

// Texts of Standing.Why and Collection.Why.
const (
	whyNever   = "not compared yet"
	whyCopying = "it is copied again"
	whyCopied  = "it was copied after it was compared"
	whyForeign = "something else has written to it"
	// whyManyForeign is of all collections.
	whyManyForeign = "something else has written to more collections than are listed"
	whyReplaced    = WhyDiffers + "another comparison has replaced the one that has found that"
	// WhyDiverged is of a divergence after which the link has continued.
	WhyDiverged = "an operation met what it cannot have met at the source"
	whyNoRound  = "no verification of all collections is complete"
	whyOfLinkNS = "not verified: "
)

// sum adds everything up.
func sum(round *Round, docs map[oplog.Namespace]*document, changed *since) Standing {
	out := Standing{Round: *round, Kinds: map[string]int64{}}
	for _, ns := range sorted(docs) {
		d := docs[ns]
		if d.Pass != nil && d.Pass.Round != round.N {
			d.overtaken(round.N) // that of a verification which was not resumed
		}
		out.differences(ns, d)
		if d.Is != nil {
			out.Bytes += d.Is.Tally.Bytes
			if d.Is.Round == round.N {
				out.Done++
			}
		}
		if d.Fault != nil {
			out.Unchecked = append(out.Unchecked, Collection{NS: d.NS, SourceNS: ns, Why: d.Fault.Why, Since: d.Fault.At})
		}
		if (d.Joined == 0 || d.Joined > max(1, round.Complete)) && !d.differed() {
			out.New++
			continue
		}
		out.Collections++
		why, since := d.unverified(ns, changed)
		if why != "" {
			out.MoreUnverified++
			out.Unverified = append(out.Unverified, Collection{NS: d.NS, SourceNS: ns, Why: why, Since: since})
			continue
		}
		out.Verified++
		if first := &d.Is.First; out.AsOf == nil || oplog.CompareTimestamps(first.Target, out.AsOf.Target) < 0 {
			out.AsOf, out.Oldest = first, d.NS
		}
	}
	out.diverged(docs, changed)
	out.judge()
	return out
}

// judge says whether the link is verified as a whole, and limits the lists.
func (s *Standing) judge() {
	switch {
	case s.Round.Complete == 0:
		s.AsOf, s.Oldest, s.Why = nil, "", whyNoRound
	case len(s.Unverified) > 0:
		c := &s.Unverified[0]
		s.AsOf, s.Oldest, s.Why = nil, "", whyOfLinkNS+string(c.NS)+": "+c.Why
	case s.AsOf == nil && s.Round.Last != nil: // There is nothing to mirror.
		began := s.Round.Last.Began
		s.AsOf = &began
	}
	s.Unverified = s.Unverified[:min(len(s.Unverified), mostListed)]
	s.MoreUnverified -= len(s.Unverified)
	s.MoreUnchecked = max(0, len(s.Unchecked)-mostListed)
	s.Unchecked = s.Unchecked[:min(len(s.Unchecked), mostListed)]
	s.MoreDiffering = max(0, len(s.Differing)-mostListed)
	slices.SortStableFunc(s.Differing, func(a, b Differing) int { return cmp.Compare(b.Differences, a.Differences) })
	s.Differing = s.Differing[:min(len(s.Differing), mostListed)]
}

// unverified returns why a collection that counts is not verified, and since when as far as that is
// known; empty if it is.
func (d *document) unverified(ns oplog.Namespace, changed *since) (why string, at time.Time) {
	touched := changed.touched[ns.Series()]
	switch {
	case changed.copying || changed.leftOut[ns.Series()]:
		return whyCopying, time.Time{}
	case d.Is == nil && d.Fault != nil:
		return d.Fault.Why, d.Fault.At
	case d.Is == nil:
		return whyNever, time.Time{}
	case d.marked():
		return d.Mark.Why, d.Mark.At
	case oplog.CompareTimestamps(d.Is.First.Source, changed.copied) < 0:
		return whyCopied, time.Time{}
	case oplog.CompareTimestamps(d.Is.First.Source, changed.diverged[ns.Series()].Last) < 0:
		return WhyDiverged, changed.diverged[ns.Series()].Until
	case touched.reaches(&d.Is.First):
		return whyForeign, touched.Wall
	case changed.ever, changed.all.reaches(&d.Is.First):
		return whyManyForeign, changed.all.Wall
	}
	return "", time.Time{}
}

// differences adds those of a collection: of its result, and of the comparison that has not ended
// those that are not among them.
func (s *Standing) differences(ns oplog.Namespace, d *document) {
	one := Differing{NS: d.NS, SourceNS: ns}
	if d.Is != nil {
		one.AsOf, one.Found, one.Differences = &d.Is.First, d.Is.Found, d.Is.differences()
		for kind, n := range map[string]int64{"missing": d.Is.Tally.Missing, "extra": d.Is.Tally.Extra, "differs": d.Is.Tally.Differs, "order": d.Is.Tally.Order, "catalog": d.Is.Catalog} {
			if n > 0 {
				s.Kinds[kind] += n
			}
		}
	}
	if d.Pass != nil {
		all := d.Pass.all()
		for i := range all {
			f := &all[i]
			if slices.Contains(one.Found, *f) {
				continue
			}
			if len(one.Found) < MostFound {
				one.Found = append(slices.Clip(one.Found), *f)
			}
			one.Differences++
			s.Kinds[f.kind()]++
		}
		if d.Is == nil || d.Is.differences() == 0 {
			one.Differences += d.Pass.More // more than are listed, and none of them counted yet
		}
	}
	if one.Differences > 0 {
		s.Differing = append(s.Differing, one)
	}
	s.Differences += one.Differences
}

// kind is that of Standing.Kinds.
func (f *Found) kind() string {
	switch f.Kind {
	case "missing", "extra", "differs", "order":
		return f.Kind
	default:
		return "catalog"
	}
}

func sorted(docs map[oplog.Namespace]*document) []oplog.Namespace {
	names := make([]oplog.Namespace, 0, len(docs))
	for ns := range docs {
		names = append(names, ns)
	}
	slices.Sort(names)
	return names
}
