package verify

import (
	"bytes"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// mostPaths is how many paths a difference names.
	mostPaths = 20
	// mostText is how many bytes of text a value is shown with.
	mostText = 1000
)

// The values of Path.What.
const (
	whatMissing = "missing"
	whatExtra   = "extra"
	whatDiffers = "differs"
	whatType    = "type"
	whatValue   = "value"
	whatBytes   = "bytes"
	whatOrder   = "order"
)

// differ finds the paths at which two documents differ.
type differ struct {
	anyOrder, show bool
	paths          []Path
	more           bool
}

// compareDocuments returns where two documents differ; no path means that they are the same,
// or, if anyOrder, that they differ in the order of fields only.
func compareDocuments(source, target bson.Raw, anyOrder, values bool) (paths []Path, more bool) {
	if bytes.Equal(source, target) {
		return nil, false
	}
	d := differ{anyOrder: anyOrder, show: values}
	ordered := d.documents("", source, target, false, 1)
	if len(d.paths) == 0 && (!anyOrder || !ordered) {
		// Bytes that no field has, such as the length of a document that is not valid.
		d.add(Path{What: whatBytes, Source: "object", Target: "object"})
	}
	return d.paths, d.more
}

// field is a field of a document, the nth of its name from 0 on.
type field struct {
	rawbson.Elem
	nth int
}

// fieldsOf splits a document. It returns false if that is not valid.
func fieldsOf(doc []byte) ([]field, bool) {
	var list []field
	it := rawbson.NewIter(doc)
	for it.Next() {
		list = append(list, field{Elem: it.Elem})
	}
	// Few documents have many fields, and even fewer two of one name.
	seen := make(map[string]int, len(list))
	for i := range list {
		list[i].nth = seen[list[i].Name()]
		seen[list[i].Name()]++
	}
	return list, it.Err() == nil
}

// documents compares two documents, or arrays. It reports whether it has compared all of both,
// so that there are no differences but those found.
func (d *differ) documents(at string, source, target []byte, array bool, depth int) bool {
	a, aOK := fieldsOf(source)
	b, bOK := fieldsOf(target)
	if !aOK || !bOK || depth > rawbson.MaxDepth {
		d.add(Path{Path: at, What: whatBytes, Source: "object", Target: "object"})
		return false
	}
	type name struct {
		name string
		nth  int
	}
	place := make(map[name]int, len(b))
	for i := range b {
		place[name{b[i].Name(), b[i].nth}] = i
	}
	whole, next, disorder := true, 0, ""
	taken := make([]bool, len(b))
	for i := range a {
		f := &a[i]
		j, ok := place[name{f.Name(), f.nth}]
		if !ok {
			d.add(d.path(at, f, whatMissing, &f.Elem, nil))
			continue
		}
		taken[j] = true
		if j < next && disorder == "" {
			disorder = f.Name()
		}
		next = max(next, j+1)
		whole = d.fields(at, f, &b[j], depth) && whole
	}
	for j := range b {
		if !taken[j] {
			d.add(d.path(at, &b[j], whatExtra, nil, &b[j].Elem))
		}
	}
	if disorder != "" && (!d.anyOrder || array) {
		d.add(Path{Path: join(at, disorder), What: whatOrder})
	}
	return whole
}

// fields compares two fields of one name.
func (d *differ) fields(at string, a, b *field, depth int) bool {
	switch {
	case a.Type == b.Type && bytes.Equal(a.Value, b.Value):
		return true
	case a.Type != b.Type:
		d.add(d.path(at, a, whatType, &a.Elem, &b.Elem))
		return true
	case a.Type == bson.TypeEmbeddedDocument || a.Type == bson.TypeArray:
		had := len(d.paths)
		whole := d.documents(join(at, a.Name()), a.Value, b.Value, a.Type == bson.TypeArray, depth+1)
		if len(d.paths) == had && !d.more && (!d.anyOrder || !whole) {
			d.add(d.path(at, a, whatBytes, &a.Elem, &b.Elem))
		}
		return whole
	case bsonorder.Compare(a.Raw(), b.Raw(), nil) == 0:
		d.add(d.path(at, a, whatBytes, &a.Elem, &b.Elem))
	default:
		d.add(d.path(at, a, whatValue, &a.Elem, &b.Elem))
	}
	return true
}

func (d *differ) path(at string, f *field, what string, source, target *rawbson.Elem) Path {
	p := Path{Path: join(at, f.Name()), What: what}
	if f.nth > 0 {
		p.Occurrence = f.nth + 1
	}
	if source != nil {
		p.Source = bsontext.TypeName(source.Type)
		if d.show {
			p.SourceValue = valueJSON(source.Raw(), mostText)
		}
	}
	if target != nil {
		p.Target = bsontext.TypeName(target.Type)
		if d.show {
			p.TargetValue = valueJSON(target.Raw(), mostText)
		}
	}
	return p
}

func (d *differ) add(p Path) {
	if len(d.paths) == mostPaths {
		d.more = true
		return
	}
	d.paths = append(d.paths, p)
}

func join(at, name string) string {
	if at == "" {
		return strings.Clone(name)
	}
	return at + "." + name
}

// compareFields returns how the fields of two documents of a catalog differ, whatever their
// order: same decides about two values of one name.
func compareFields(source, target bson.Raw, values bool, same func(name string, a, b bson.RawValue) bool) []Path {
	d := differ{show: values}
	a, _ := fieldsOf(source)
	b, _ := fieldsOf(target)
	for i := range a {
		j := slices.IndexFunc(b, func(f field) bool { return f.Is(a[i].Name()) })
		if j < 0 {
			d.add(d.path("", &a[i], whatMissing, &a[i].Elem, nil))
			continue
		}
		if !same(a[i].Name(), a[i].Raw(), b[j].Raw()) {
			d.fields("", &a[i], &b[j], 1)
		}
		b = slices.Delete(b, j, j+1)
	}
	for j := range b {
		d.add(d.path("", &b[j], whatExtra, nil, &b[j].Elem))
	}
	return d.paths
}

// sameNumber reports whether two values are the same bytes, or one number in two types.
func sameNumber(a, b bson.RawValue) bool {
	if a.IsNumber() && b.IsNumber() {
		return bsonorder.Compare(a, b, nil) == 0
	}
	return a.Type == b.Type && bytes.Equal(a.Value, b.Value)
}

// cutPath returns the first field of a path, and the rest. A name with a dot counts as two.
func cutPath(path string) (first, rest string, deep bool) { return strings.Cut(path, ".") }
