package verify

import (
	"context"
	"slices"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// foundList are the first differences of a collection, as they are stored; more counts the others.
type foundList struct {
	list []standing.Found
	more int64
	// told are all that were reported since the comparison began, also those of an attempt that was given up, and
	// toldMore counts the others.
	told     []standing.Found
	toldMore int64
}

// report passes differences on. They are stored before that: whatever ends the comparison afterwards, an earlier
// result without them does not count any more, until the collection was compared to its end.
func (v *Verifier) report(ctx context.Context, ns oplog.Namespace, found []Difference) error {
	if len(found) == 0 {
		return nil
	}
	v.mu.Lock()
	listed := v.keep(ns, found)
	more := v.found[ns].toldMore
	source := oplog.UUID{}
	if v.stores() {
		source = v.cfg.Progress.sources[ns]
	}
	v.mu.Unlock()
	if v.stores() {
		if err := v.cfg.Progress.store.SaveTold(ctx, ns, source, v.cfg.Progress.round.N, listed, more); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range found {
		if err := v.cfg.Found(&found[i]); err != nil {
			return err
		}
	}
	return nil
}

// keep adds differences to those of their collection, once, and returns those that are listed as told. The mutex is
// locked.
func (v *Verifier) keep(ns oplog.Namespace, found []Difference) (listed []standing.Found) {
	l := v.foundOf(ns)
	for i := range found {
		d, id := &found[i], ""
		if len(d.IDBSON) > 0 {
			id = IDText(d.id())
		}
		f := standing.NewFound(string(d.Kind), id, d.Name, d.What)
		switch {
		case slices.Contains(l.list, f):
		case len(l.list) == standing.MostFound:
			l.more++
		default:
			l.list = append(l.list, f)
		}
		switch {
		case slices.Contains(l.told, f): // which another verification may have found the same meanwhile
			listed = append(listed, f)
		case len(l.told) >= standing.MostFound:
			l.toldMore++
		default:
			l.told, listed = append(l.told, f), append(listed, f)
		}
	}
	return listed
}

// foundOf returns the differences of a collection. The mutex is locked.
func (v *Verifier) foundOf(ns oplog.Namespace) *foundList {
	l := v.found[ns]
	if l == nil {
		l = &foundList{}
		v.found[ns] = l
	}
	return l
}

// hasFound sets what an earlier process has found in a collection, besides what its catalog has now.
func (v *Verifier) hasFound(ns oplog.Namespace, list []standing.Found, more int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.foundOf(ns)
	for _, f := range list {
		if isOfDocument(Kind(f.Kind)) && !slices.Contains(l.list, f) {
			l.list = append(l.list, f)
		}
	}
	l.more = more
}

// foundIn returns the differences of a collection so far.
func (v *Verifier) foundIn(ns oplog.Namespace) (list []standing.Found, more int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.found[ns]; l != nil {
		return slices.Clone(l.list), l.more
	}
	return nil, 0
}

// hasTold adds what other processes have reported of a collection in the comparison that goes on. It is not compared at an earlier cut than
// theirs: their differences may be newer. Those of its catalog are left out if that may have been listed before they were reported.
func (v *Verifier) hasTold(ns oplog.Namespace, p *standing.Pass, onlyDocuments bool) {
	v.cuts.renew()
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.foundOf(ns)
	for _, f := range slices.Concat(p.Told, p.Found) {
		if !slices.Contains(l.told, f) && (!onlyDocuments || isOfDocument(Kind(f.Kind))) {
			l.told = append(l.told, f)
		}
	}
	l.toldMore = max(l.toldMore, p.ToldMore, p.More)
}

// toldIn returns the differences of a collection that were reported since the comparison began.
func (v *Verifier) toldIn(ns oplog.Namespace) (list []standing.Found, more int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.found[ns]; l != nil {
		return slices.Clone(l.told), l.toldMore
	}
	return nil, 0
}

// untell forgets the differences that were reported of another collection of the name.
func (v *Verifier) untell(ns oplog.Namespace) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if l := v.found[ns]; l != nil {
		l.told, l.toldMore = nil, 0
	}
}

// lose forgets the differences of a collection that begins again; those of its catalog stay if only
// its documents do. Those that were reported stay in told.
func (v *Verifier) lose(ns oplog.Namespace, onlyDocuments bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.found[ns]
	if l == nil {
		return
	}
	l.more = 0
	l.list = slices.DeleteFunc(l.list, func(f standing.Found) bool { return !onlyDocuments || isOfDocument(Kind(f.Kind)) })
}
