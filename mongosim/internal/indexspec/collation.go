package indexspec

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/text/language"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// collationVersion is the version of the collation library that the server
// records in a stored collation.
const collationVersion = "57.1"

// Collation returns a collation as the server stores it, every field
// given and with its version; nil for the simple collation.
func Collation(spec bson.Raw) (bson.Raw, error) {
	c, err := parseCollation(spec)
	if err != nil || c.locale == "simple" {
		return nil, err
	}
	full := c.document(true)
	if tag, err := language.Parse(c.locale); err != nil || tag.IsRoot() {
		return nil, servererr.New(servererr.BadValue, "Field 'locale' is invalid in: %s", bsontext.Document(c.document(false)))
	}
	if _, err := bsonorder.NewCollator(full); err != nil {
		return nil, servererr.New(servererr.NotImplemented, "collation %s is not implemented here: %s",
			bsontext.Document(full), err)
	}
	return full, nil
}

// collation is a collation as given, with the server's defaults.
type collation struct {
	locale, caseFirst, alternate, maxVariable string
	caseLevel, numeric, normalization         bool
	backwards                                 *bool
	strength                                  int32
}

func parseCollation(spec bson.Raw) (collation, error) {
	c := collation{caseFirst: "off", alternate: "non-ignorable", maxVariable: "punct", strength: 3}
	it := rawbson.NewIter(spec)
	for it.Next() {
		if err := c.take(&it.Elem); err != nil {
			return c, err
		}
	}
	if err := it.Err(); err != nil {
		return c, servererr.New(servererr.InvalidBSON, "collation: %s", err)
	}
	if _, ok := rawbson.Lookup(spec, "locale"); !ok {
		return c, servererr.New(40414, "BSON field 'collation.locale' is missing but a required field")
	}
	return c, nil
}

// take reads one field.
func (c *collation) take(e *rawbson.Elem) error {
	var ok bool
	switch e.Name() {
	case "locale":
		c.locale, ok = e.Text()
	case "caseLevel":
		c.caseLevel, ok = e.Bool()
	case "caseFirst":
		c.caseFirst, ok = e.Text()
	case "strength":
		var n int64
		n, ok = e.Int64()
		if n < 1 || n > 5 {
			return servererr.New(servererr.BadValue,
				"Enumeration value '%d' for field 'collation.strength' is not a valid value.", n)
		}
		c.strength = int32(n)
	case "numericOrdering":
		c.numeric, ok = e.Bool()
	case "alternate":
		c.alternate, ok = e.Text()
	case "maxVariable":
		c.maxVariable, ok = e.Text()
	case "normalization":
		c.normalization, ok = e.Bool()
	case "backwards":
		var b bool
		b, ok = e.Bool()
		c.backwards = &b
	case "version":
		_, ok = e.Text()
	default:
		return servererr.New(40415, "BSON field 'collation.%s' is an unknown field.", e.Name())
	}
	if !ok {
		return servererr.New(servererr.TypeMismatch, "BSON field 'collation.%s' is the wrong type '%s'",
			e.Name(), bsontext.TypeName(e.Type))
	}
	return nil
}

// document is the collation with all its fields, with the version as it is stored, or
// without it as messages print it.
func (c *collation) document(version bool) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "locale", c.locale)
	doc = bsoncore.AppendBooleanElement(doc, "caseLevel", c.caseLevel)
	doc = bsoncore.AppendStringElement(doc, "caseFirst", c.caseFirst)
	doc = bsoncore.AppendInt32Element(doc, "strength", c.strength)
	doc = bsoncore.AppendBooleanElement(doc, "numericOrdering", c.numeric)
	doc = bsoncore.AppendStringElement(doc, "alternate", c.alternate)
	doc = bsoncore.AppendStringElement(doc, "maxVariable", c.maxVariable)
	doc = bsoncore.AppendBooleanElement(doc, "normalization", c.normalization)
	if version || c.backwards != nil {
		doc = bsoncore.AppendBooleanElement(doc, "backwards", c.backwards != nil && *c.backwards)
	}
	if version {
		doc = bsoncore.AppendStringElement(doc, "version", collationVersion)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}
