package verify

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/oplogrep/replicator/oplog"
)

// errUnsettled reports a collection that had changed each time that it was read.
var errUnsettled = errors.New("it had changed each time that it was read")

// settled is a pair whose catalogs are compared.
type settled struct {
	pair
	found []Difference
	// cut is one at which the target had everything that the source's catalog had when it was
	// read; nil without a link.
	cut *Cut
	// unsettled is the error of one that was never the same twice.
	unsettled error
	// confirmed means that the differences were found twice in a row.
	confirmed bool
}

// mostRounds is how often catalogs are read until both sides are known for one time.
const mostRounds = 5

// settle compares the catalogs of everything, or of some namespaces of the source.
//
// Catalogs cannot be read as of a cut. Of a link, the source's is read before and after the
// target's, and a cut in between: what the source has not changed meanwhile, the target must
// have. A difference counts if it is found twice in a row, of the same collection of the target: the
// source may have made and dropped one between two listings, which is another one each time. All
// that have differences are read again together, at one cut.
func (v *Verifier) settle(ctx context.Context, only ...oplog.Namespace) ([]settled, error) {
	all, err := v.round(ctx, only...)
	if err != nil || v.cuts == nil {
		return all, err
	}
	for n := 1; n <= mostRounds; n++ {
		var open []oplog.Namespace
		for i := range all {
			if all[i].open() {
				open = append(open, all[i].sourceNS)
			}
		}
		if len(open) == 0 {
			break
		}
		list, err := v.round(ctx, open...)
		if err != nil {
			return nil, err
		}
		next := make(map[oplog.Namespace]*settled, len(list))
		for i := range list {
			next[list[i].sourceNS] = &list[i]
		}
		for i := range all {
			if s := &all[i]; s.open() {
				v.confirmCatalog(s, next[s.sourceNS], n == mostRounds)
			}
		}
	}
	return slices.DeleteFunc(all, func(s settled) bool { return s.want == nil && s.got == nil }), nil
}

// open reports whether the pair has to be read again.
func (s *settled) open() bool { return s.unsettled != nil || len(s.found) > 0 && !s.confirmed }

// confirmCatalog replaces s by next, the same pair read again, nil if neither side has it any
// more. last means that the pair is not read another time.
func (v *Verifier) confirmCatalog(s, next *settled, last bool) {
	if next == nil {
		v.leave(s.want, nil)
		*s = settled{pair: pair{ns: s.ns, sourceNS: s.sourceNS}}
		return
	}
	v.leave(s.want, []settled{*next})
	next.confirmed = s.unsettled == nil && next.unsettled == nil && s.got.uuidOf() == next.got.uuidOf() &&
		slices.EqualFunc(s.found, next.found, sameInCatalogs)
	*s = *next
	if last && len(s.found) > 0 && !s.confirmed {
		s.found, s.unsettled = nil, errUnsettled
	}
}

// sameInCatalogs reports whether two differences of catalogs are the same one.
func sameInCatalogs(a, b Difference) bool {
	return a.Kind == b.Kind && a.NS == b.NS && a.Name == b.Name && a.What == b.What &&
		slices.EqualFunc(a.Paths, b.Paths, func(a, b Path) bool {
			return a.Path == b.Path && a.What == b.What && a.Source == b.Source && a.Target == b.Target &&
				bytes.Equal(a.SourceValue, b.SourceValue) && bytes.Equal(a.TargetValue, b.TargetValue)
		})
}

// round compares the catalogs once.
func (v *Verifier) round(ctx context.Context, only ...oplog.Namespace) ([]settled, error) {
	onSource := chosen(func(ns oplog.Namespace) bool { _, ok := v.cfg.Scope.Target(ns); return ok }, only...)
	images := make([]oplog.Namespace, len(only))
	for i, ns := range only {
		images[i], _ = v.cfg.Scope.Target(ns)
	}
	onTarget := chosen(func(ns oplog.Namespace) bool { _, ok := v.cfg.Scope.Source(ns); return ok }, images...)
	source, err := v.source.list(ctx, onSource)
	if err != nil {
		return nil, err
	}
	var cut *Cut
	if v.cuts != nil {
		reached, err := v.cuts.reach(ctx, v.source.heard.Time())
		if err != nil {
			return nil, err
		}
		cut = &reached
	}
	var deferred Overlay
	if v.cfg.Deferred != nil {
		if deferred, err = v.cfg.Deferred(ctx); err != nil {
			return nil, err
		}
	}
	target, err := v.target.list(ctx, onTarget)
	if err != nil {
		return nil, err
	}
	after := source
	if v.cuts != nil {
		if after, err = v.source.list(ctx, onSource); err != nil {
			return nil, err
		}
	}
	if len(only) == 0 {
		v.summary.InvalidViews = source.invalid
	}
	all := v.compareCatalogs(source, target, after, deferred)
	for i := range all {
		all[i].cut = cut
	}
	return all, nil
}

// compareCatalogs compares the collections that the source has not changed between two listings.
func (v *Verifier) compareCatalogs(source, target, after *listing, deferred Overlay) []settled {
	both := &listing{collections: maps.Clone(after.collections)} // with those that were made meanwhile
	maps.Copy(both.collections, source.collections)
	var all []settled
	for _, p := range v.pairs(both, target) {
		s := settled{pair: p}
		if !source.collections[p.sourceNS].same(after.collections[p.sourceNS]) {
			s.unsettled = errUnsettled
		} else {
			s.found = v.catalog(&p, deferred)
		}
		all = append(all, s)
	}
	return all
}
