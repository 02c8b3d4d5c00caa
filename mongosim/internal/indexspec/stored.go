package indexspec

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
)

// stored is the specification in the server's order: v, unique, key, name, and
// the rest as given; the collation comes last if it is the collection's.
func (s *spec) stored() (bson.Raw, error) {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "v", s.version)
	if s.unique {
		doc = bsoncore.AppendBooleanElement(doc, "unique", true)
	}
	doc = s.appendKey(doc)
	doc = bsoncore.AppendStringElement(doc, "name", s.name)
	it := rawbson.NewIter(s.given)
	for it.Next() {
		switch name := it.Name(); name {
		case "v", "unique", "key", "name", "ns", "dropDups", "_id", "storageEngine", "collation":
			continue
		case "weights", "default_language", "language_override", "textIndexVersion":
			if s.plugin == "text" {
				continue // appended below, complete
			}
		case "2dsphereIndexVersion":
			continue
		case "hidden", "prepareUnique":
			if on, _ := arg.Flag(it.Raw()); !on {
				continue
			}
			doc = bsoncore.AppendBooleanElement(doc, name, true)
			continue
		}
		doc = bsoncore.AppendValueElement(doc, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	doc, err := s.appendText(doc)
	if err != nil {
		return nil, err
	}
	if s.plugin == "2dsphere" || s.plugin == "2dsphere_bucket" {
		version := int64(3)
		if e, ok := rawbson.Lookup(s.given, "2dsphereIndexVersion"); ok {
			version = arg.Int64(e.Raw())
		}
		if version < 1 || version > 3 {
			return nil, servererr.New(servererr.CannotCreateIndex, "unsupported geo index version { 2dsphereIndexVersion : %d }, only support versions: [1,2,3]", version)
		}
		doc = bsoncore.AppendInt32Element(doc, "2dsphereIndexVersion", int32(version))
	}
	if s.collation != nil {
		doc = bsoncore.AppendDocumentElement(doc, "collation", s.collation)
	}
	doc, err = bsoncore.AppendDocumentEnd(doc, i)
	if err != nil {
		return nil, servererr.New(servererr.CannotCreateIndex, "index specification: %s", err)
	}
	return doc, nil
}

// appendKey appends the key; the fields of a text index stand there as one.
func (s *spec) appendKey(doc []byte) []byte {
	if s.plugin != "text" {
		return bsoncore.AppendDocumentElement(doc, "key", s.key)
	}
	k, doc := bsoncore.AppendDocumentElementStart(doc, "key")
	written := false
	it := rawbson.NewIter(s.key)
	for it.Next() {
		if _, isText := it.Text(); isText {
			if !written {
				doc = bsoncore.AppendStringElement(doc, "_fts", "text")
				doc = bsoncore.AppendInt32Element(doc, "_ftsx", 1)
				written = true
			}
			continue
		}
		if it.Is("_ftsx") {
			continue
		}
		doc = bsoncore.AppendValueElement(doc, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, k)
	return doc
}

// heaviest is the largest weight that a field of a text index may have.
const heaviest = 99999

// appendText completes a text index: weights of all its fields, languages, version.
func (s *spec) appendText(doc []byte) ([]byte, error) {
	if s.plugin != "text" {
		return doc, nil
	}
	var weights bson.Raw
	if e, ok := rawbson.Lookup(s.given, "weights"); ok {
		if all, isText := e.Text(); isText {
			weights = bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, all, 1))
		} else {
			weights, _ = e.Document()
		}
	}
	w, doc := bsoncore.AppendDocumentElementStart(doc, "weights")
	given := rawbson.NewIter(weights)
	for given.Next() {
		v := given.Raw()
		if n := arg.Int64(v); !v.IsNumber() || n <= 0 || n > heaviest {
			return nil, servererr.New(servererr.CannotCreateIndex, "text index weight must be in the exclusive interval (0,100000) but found: %d", n)
		}
		doc = bsoncore.AppendValueElement(doc, given.Name(), bsoncore.Value{Type: bsoncore.Type(given.Type), Data: given.Value})
	}
	it := rawbson.NewIter(s.key)
	for it.Next() {
		if _, isText := it.Text(); isText && !it.Is("_fts") && !arg.Has(weights, it.Name()) {
			doc = bsoncore.AppendInt32Element(doc, it.Name(), 1)
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, w)
	for _, f := range []struct{ name, def string }{{"default_language", "english"}, {"language_override", "language"}} {
		word, ok := arg.Text(s.given, f.name)
		if !ok {
			word = f.def
		}
		doc = bsoncore.AppendStringElement(doc, f.name, word)
	}
	version := int64(3)
	if e, ok := rawbson.Lookup(s.given, "textIndexVersion"); ok {
		version = arg.Int64(e.Raw())
	}
	if version < 2 || version > 3 {
		return nil, servererr.New(servererr.CannotCreateIndex, "bad textIndexVersion: %d", version)
	}
	return bsoncore.AppendInt32Element(doc, "textIndexVersion", int32(version)), nil
}
