package corpus

import (
	"errors"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog/update"
)

// newerData are the codes of errors, in steady state, that occur with data newer
// than the log, and not with the data that the log was written on.
var newerData = []memstore.Code{
	memstore.NamespaceNotFound, memstore.NamespaceExists, memstore.InvalidNamespace, memstore.CommandNotSupportedOnView,
	memstore.DuplicateKey, memstore.IndexNotFound, memstore.IndexAlreadyExists, memstore.IndexOptionsConflict,
}

// steady applies the log as a member in steady state does, and reports errors and
// differences, unless before/ is found to be a copy that was taken while writes
// continued: the log does not lead from it to after/, and there is a sign that it
// was not the data that the log was written on.
func (p *proof) steady() *memstore.Store {
	store := p.base.Clone()
	p.judge.on, p.judge.exact = true, true
	err := p.apply(store, 0, len(p.groups), memstore.Steady)
	p.judge.exact = false
	differences := p.compare(store, err)
	counters := store.Counters()
	tolerated := counters
	tolerated.DeleteWasEmpty = 0 // both modes take that alike
	switch code, _ := errors.AsType[memstore.Code](err); {
	case !p.scenario.hasBefore():
	case len(differences) > 0:
		p.fuzzy = tolerated != memstore.Counters{} || p.judge.misfits > 0 || slices.Contains(newerData, code)
	case len(p.judge.wrongOnPreImage) > 0:
		p.fuzzy = p.judge.misfits > 0
	}
	if p.fuzzy {
		p.report.note("before/ is a moving copy: initial sync only")
		return store
	}
	if tolerated != (memstore.Counters{}) {
		// Not wrong, but no recording of a server so far has needed it.
		p.report.note("tolerated: " + counters.String())
	}
	p.report.fail("steady", differences)
	p.report.fail("compiled for the pre-image", p.judge.wrongOnPreImage)
	return store
}

// fits reports whether a delta may have been computed from a document: what it
// removes, replaces or changes inside is there, and of the kind that it says.
// What it inserts may be there, since a field that moves is inserted again.
func fits(d *update.ObjectDiff, doc bson.Raw) bool {
	for _, name := range d.Deletes {
		if _, ok := rawbson.Lookup(doc, name); !ok {
			return false
		}
	}
	for i := range d.Updates {
		if _, ok := rawbson.Lookup(doc, d.Updates[i].Name); !ok {
			return false
		}
	}
	for i := range d.Binaries {
		if e, ok := rawbson.Lookup(doc, d.Binaries[i].Name); !ok || e.Type != bson.TypeBinary {
			return false
		}
	}
	for i := range d.Subs {
		if e, ok := rawbson.Lookup(doc, d.Subs[i].Name); !ok || !fitsInside(&d.Subs[i].SubDiff, &e) {
			return false
		}
	}
	return true
}

func fitsInside(d *update.SubDiff, e *rawbson.Elem) bool {
	if d.Object != nil {
		doc, ok := e.Document()
		return ok && fits(d.Object, doc)
	}
	array, ok := e.Array()
	if !ok {
		return false
	}
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		if !m.IsSub() {
			continue // may be past the end: it is appended
		}
		if e, ok := rawbson.Lookup(array, strconv.Itoa(m.Index)); !ok || !fitsInside(&m.SubDiff, &e) {
			return false
		}
	}
	return true
}
