package verify

import (
	"cmp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// pair is a collection of both sides, nil where one does not have it.
type pair struct {
	ns, sourceNS oplog.Namespace
	want, got    *listed
}

// kind is the type of the collection.
func (p *pair) kind() string {
	if p.want != nil {
		return p.want.kind
	}
	return p.got.kind
}

// pairs pairs the collections of two sides, in the order of the target's names.
func (v *Verifier) pairs(source, target *listing) []pair {
	byName := map[oplog.Namespace]*pair{}
	at := func(ns, from oplog.Namespace) *pair {
		if byName[ns] == nil {
			byName[ns] = &pair{ns: ns, sourceNS: from}
		}
		return byName[ns]
	}
	for from, l := range source.collections {
		if ns, ok := v.cfg.Scope.Target(from); ok {
			at(ns, from).want = l
		}
	}
	for ns, l := range target.collections {
		if from, ok := v.cfg.Scope.Source(ns); ok {
			at(ns, from).got = l
		}
	}
	all := make([]pair, 0, len(byName))
	for _, p := range byName {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b pair) int { return cmp.Compare(a.ns, b.ns) })
	return all
}

// catalog returns how type, options and indexes of a pair differ.
func (v *Verifier) catalog(p *pair, deferred Overlay) []Difference {
	base := Difference{Kind: OfCollection, NS: p.ns, SourceNS: p.sourceNS}
	switch {
	case p.want == nil && p.got == nil:
		return nil
	case p.got == nil:
		base.What = whatMissing
		return []Difference{base}
	case p.want == nil:
		base.What = whatExtra
		return []Difference{base}
	case p.want.kind != p.got.kind:
		base.What = whatType
		base.Paths = []Path{{What: whatType, Source: p.want.kind, Target: p.got.kind}}
		return []Difference{base}
	}
	options, indexes := p.got.options, p.got.indexes
	if deferred != nil {
		options, indexes = deferred(p.ns, options, indexes)
	}
	found := v.options(p, options)
	return append(found, v.indexes(p, indexes)...)
}

// options compares the options of a collection, or the definition of a view.
func (v *Verifier) options(p *pair, options bson.Raw) []Difference {
	kind := OfOption
	if p.want.kind == typeView {
		kind = OfView
	}
	var found []Difference
	for _, path := range compareFields(plainOptions(v.renamed(p)), plainOptions(options), v.cfg.ShowValues, sameOption) {
		name := path.Path
		if f, _, deep := cutPath(path.Path); deep {
			name = f
		}
		if n := len(found); n > 0 && found[n-1].Name == name {
			found[n-1].Paths = append(found[n-1].Paths, path)
			continue
		}
		what := whatDiffers
		if name == path.Path && (path.What == whatMissing || path.What == whatExtra) {
			what = path.What
		}
		found = append(found, Difference{Kind: kind, NS: p.ns, SourceNS: p.sourceNS, Name: name, What: what, Paths: []Path{path}})
	}
	return found
}

// plainOptions returns the options of a collection without what a server has noted among them about
// the buckets of a time series, and shows in newer releases only: they may have values of several
// types in a field, or were made under other options.
func plainOptions(options bson.Raw) bson.Raw {
	const noted = "app_metadata=(timeseriesBuck"
	if text, _ := options.Lookup("storageEngine", "wiredTiger", "configString").StringValueOK(); !strings.HasPrefix(text, noted) {
		return options
	}
	b := document()
	for it := rawbson.NewIter(options); it.Next(); {
		if !it.Is("storageEngine") {
			b.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
		}
	}
	return bson.Raw(b.Build())
}

// renamed returns the source's options as the target has to show them: a view reads what its
// collection is called there.
func (v *Verifier) renamed(p *pair) bson.Raw {
	e, ok := rawbson.Lookup(p.want.options, "viewOn")
	if !ok {
		return p.want.options
	}
	on, _ := e.Text()
	to, ok := v.cfg.Scope.Target(oplog.NewNamespace(p.want.ns.DB(), on))
	if !ok {
		return p.want.options
	}
	b := document()
	for it := rawbson.NewIter(p.want.options); it.Next(); {
		if it.Is("viewOn") {
			b.AppendString("viewOn", to.Collection())
			continue
		}
		b.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	return bson.Raw(b.Build())
}

// indexes compares indexes by their names.
func (v *Verifier) indexes(p *pair, indexes []bson.Raw) []Difference {
	base := Difference{Kind: OfIndex, NS: p.ns, SourceNS: p.sourceNS}
	byName := map[string]bson.Raw{}
	for _, spec := range indexes {
		byName[indexName(spec)] = spec
	}
	var found []Difference
	add := func(name, what string, paths []Path) {
		d := base
		d.Name, d.What, d.Paths = name, what, paths
		found = append(found, d)
	}
	for _, spec := range p.want.indexes {
		name := indexName(spec)
		other, ok := byName[name]
		delete(byName, name)
		if !ok {
			add(name, whatMissing, nil)
			continue
		}
		if paths := compareFields(plainIndex(spec), plainIndex(other), v.cfg.ShowValues, sameInIndex); len(paths) > 0 {
			add(name, whatDiffers, paths)
		}
	}
	for name := range byName {
		add(name, whatExtra, nil)
	}
	slices.SortFunc(found, func(a, b Difference) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// flags are the fields of an index whose truth counts, and which are false if they are missing.
var flags = []string{"unique", "sparse", "hidden", "prepareUnique"}

// plainIndex returns an index without fields that mean nothing. That of a clustered collection shows options of the
// collection, in newer releases only.
func plainIndex(spec bson.Raw) bson.Raw {
	clustered, _ := rawbson.Lookup(spec, "clustered")
	b := document()
	for it := rawbson.NewIter(spec); it.Next(); {
		if it.Is("ns") || it.Is("background") || slices.Contains(flags, it.Name()) && !it.Truth() {
			continue
		}
		if clustered.Truth() && (it.Is("expireAfterSeconds") || it.Is("collation")) {
			continue
		}
		b.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	return bson.Raw(b.Build())
}

func sameInIndex(name string, a, b bson.RawValue) bool {
	return slices.Contains(flags, name) || sameNumber(a, b)
}

func sameOption(name string, a, b bson.RawValue) bool {
	if name == "timeseries" && a.Type == bson.TypeEmbeddedDocument && b.Type == a.Type {
		return len(compareFields(a.Value, b.Value, false, func(_ string, a, b bson.RawValue) bool { return sameNumber(a, b) })) == 0
	}
	return sameNumber(a, b)
}
