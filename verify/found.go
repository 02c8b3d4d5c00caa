package verify

import (
	"slices"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// foundList are the first differences of a collection, as they are stored; more counts the others.
type foundList struct {
	list []standing.Found
	more int64
}

// report passes a difference on.
func (v *Verifier) report(d *Difference) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keep(d)
	return v.cfg.Found(d)
}

// keep adds a difference to those of its collection, once. The mutex is locked.
func (v *Verifier) keep(d *Difference) {
	if v.found[d.SourceNS] == nil {
		v.found[d.SourceNS] = &foundList{}
	}
	id := ""
	if len(d.IDBSON) > 0 {
		id = IDText(d.id())
	}
	l, f := v.found[d.SourceNS], standing.NewFound(string(d.Kind), id, d.Name, d.What)
	switch {
	case slices.Contains(l.list, f):
	case len(l.list) == standing.MostFound:
		l.more++
	default:
		l.list = append(l.list, f)
	}
}

// hasFound sets what an earlier process has found in a collection, besides what its catalog has now.
func (v *Verifier) hasFound(ns oplog.Namespace, list []standing.Found, more int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.found[ns]
	if l == nil {
		l = &foundList{}
		v.found[ns] = l
	}
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

// lose forgets the differences of a collection that begins again; those of its catalog stay if only
// its documents do.
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
