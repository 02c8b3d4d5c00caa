package storage

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// The numbers, without names, of the server's refusals of documents by text and geo
// indexes (fts_spec.cpp, expression_keys_private.cpp, hash.cpp).
const (
	languageType        servererr.Code = 17261
	languageUnsupported servererr.Code = 17262
	geoKeys             servererr.Code = 16755
	flatType            servererr.Code = 13026
	flatRange           servererr.Code = 13027
	flatShape           servererr.Code = 16804
	flatEmpty           servererr.Code = 13068
)

// languages are those that text indexes know, by both of their names.
var languages = strings.Fields(`none da danish nl dutch en english fi finnish fr french de german hu hungarian it italian
	nb norwegian pt portuguese ro romanian ru russian es spanish sv swedish tr turkish`)

// specialCheck returns the constraint of a text or geo index on a document, nil
// for an index of another kind. They make keys that nothing here reads.
func specialCheck(spec bson.Raw) func(doc bson.Raw) error {
	key, _ := rawbson.Lookup(spec, "key")
	pattern, _ := key.Document()
	for it := rawbson.NewIter(pattern); it.Next(); {
		path := it.Name()
		switch kind, _ := it.Text(); kind {
		case "text":
			field := "language"
			if e, ok := rawbson.Lookup(spec, "language_override"); ok {
				field, _ = e.Text()
			}
			return func(doc bson.Raw) error { return checkLanguage(doc, strings.Clone(field)) }
		case "2dsphere":
			return func(doc bson.Raw) error { return checkSphere(doc, path) }
		case "2d":
			return func(doc bson.Raw) error { return checkFlat(doc, path, span(spec, "min", -180), span(spec, "max", 180)) }
		}
	}
	return nil
}

func span(spec bson.Raw, name string, other float64) float64 {
	e, ok := rawbson.Lookup(spec, name)
	if f, isNumber := e.Raw().AsFloat64OK(); ok && isNumber {
		return f
	}
	return other
}

func checkLanguage(doc bson.Raw, field string) error {
	e, ok := rawbson.Lookup(doc, field)
	if !ok {
		return nil
	}
	text, isText := e.Text()
	switch {
	case !isText:
		return servererr.New(languageType, "found language override field in document with non-string type")
	case !slices.Contains(languages, strings.ToLower(text)):
		return servererr.New(languageUnsupported, "language override unsupported: %s", text)
	}
	return nil
}

// along calls f with the values at the end of a path, of all elements of the arrays
// that it goes through.
func along(doc bson.Raw, path string, f func(e rawbson.Elem) error) error {
	e, rest, found := follow(doc, path)
	switch {
	case !found:
		return nil
	case rest == "":
		return f(e)
	}
	for it := rawbson.NewIter(e.Value); it.Next(); {
		if inner, isDoc := it.Document(); isDoc {
			if err := along(inner, rest, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSphere refuses values that are not geometry. It checks points fully; of the
// rest only the type and the presence of coordinates.
func checkSphere(doc bson.Raw, path string) error {
	return along(doc, path, func(e rawbson.Elem) error {
		if e.Type == bson.TypeNull || e.Type == bson.TypeUndefined || isGeometry(e) {
			return nil
		}
		return servererr.New(geoKeys, "Can't extract geo keys: %s  unknown GeoJSON type: %s", bsontext.Document(doc), bsontext.Value(e.Raw()))
	})
}

func isGeometry(e rawbson.Elem) bool {
	if list, ok := e.Array(); ok {
		if len(list) == rawbson.MinSize || isPoint(list) {
			return true
		}
		for it := rawbson.NewIter(list); it.Next(); {
			if it.Type != bson.TypeEmbeddedDocument || !isGeometry(it.Elem) {
				return false
			}
		}
		return true
	}
	doc, ok := e.Document()
	if !ok {
		return false
	}
	kind, hasType := rawbson.Lookup(doc, "type")
	if !hasType {
		return len(doc) == rawbson.MinSize || isPoint(doc)
	}
	coordinates, _ := rawbson.Lookup(doc, "coordinates")
	list, isArray := coordinates.Array()
	switch name, _ := kind.Text(); name {
	case "Point":
		return isArray && isPoint(list)
	case "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon":
		return isArray && len(list) > rawbson.MinSize
	case "GeometryCollection":
		parts, _ := rawbson.Lookup(doc, "geometries")
		_, isArray = parts.Array()
		return isArray
	}
	return false
}

// isPoint reports whether a document or array begins with a longitude and a latitude.
func isPoint(doc bson.Raw) bool {
	it := rawbson.NewIter(doc)
	for _, most := range []float64{180, 90} {
		if !it.Next() {
			return false
		}
		f, ok := it.Raw().AsFloat64OK()
		if !ok || f < -most || f > most {
			return false
		}
	}
	return true
}

// checkFlat refuses values that are not a pair of coordinates in range. Values other
// than documents and arrays are not checked.
func checkFlat(doc bson.Raw, path string, least, most float64) error {
	return along(doc, path, func(e rawbson.Elem) error {
		if e.Type != bson.TypeArray && e.Type != bson.TypeEmbeddedDocument || len(e.Value) == rawbson.MinSize {
			return nil
		}
		it := rawbson.NewIter(e.Value)
		it.Next()
		if _, isNumber := it.Raw().AsFloat64OK(); isNumber {
			return checkPair(e.Value, least, most)
		}
		for more := true; more; more = it.Next() {
			if it.Type != bson.TypeArray && it.Type != bson.TypeEmbeddedDocument {
				return servererr.New(flatShape, "location object expected, location array not in correct format")
			}
			if len(it.Value) == rawbson.MinSize {
				continue
			}
			if err := checkPair(it.Value, least, most); err != nil {
				return err
			}
		}
		return nil
	})
}

func checkPair(doc bson.Raw, least, most float64) error {
	it := rawbson.NewIter(doc)
	for range 2 {
		if !it.Next() {
			return servererr.New(flatEmpty, "geo field only has 1 element")
		}
		f, isNumber := it.Raw().AsFloat64OK()
		switch {
		case !isNumber:
			return servererr.New(flatType, "geo values must be 'legacy coordinate pairs' for 2d indexes")
		case f < least || f > most:
			return servererr.New(flatRange, "point not in interval of [ %g, %g ] :: caused by :: %s", least, most, bsontext.Document(doc))
		}
	}
	return nil
}
