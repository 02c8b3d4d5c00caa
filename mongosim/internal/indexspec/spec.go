package indexspec

import (
	"errors"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// fields are the fields that a specification may have, with the server
// version, major and minor, that brought them.
var fields = map[string][2]int{
	"v": {}, "key": {}, "name": {}, "ns": {}, "unique": {}, "background": {}, "dropDups": {},
	"sparse": {}, "partialFilterExpression": {}, "expireAfterSeconds": {}, "hidden": {}, "collation": {},
	"storageEngine": {}, "weights": {}, "default_language": {}, "language_override": {},
	"textIndexVersion": {}, "2dsphereIndexVersion": {}, "bits": {}, "min": {}, "max": {},
	"bucketSize": {}, "wildcardProjection": {}, "prepareUnique": {6, 0}, "clustered": {5, 3}, "originalSpec": {5, 1},
}

// plugins are the kinds of index that a key may name.
var plugins = map[string]bool{
	"2d": true, "2dsphere": true, "2dsphere_bucket": true, "hashed": true, "text": true, "geoHaystack": true,
}

// spec is a specification while it is checked and completed.
type spec struct {
	given bson.Raw
	key   bson.Raw
	name  string
	// version is the field v.
	version int32

	unique, sparse, prepare, clustered bool
	// collation is the completed one, nil for simple or none.
	collation    bson.Raw
	hasCollation bool
	// plugin is what the key names, "wildcard" for $**, "" for an ordinary index.
	plugin string
}

// Normalize checks a specification as a client gives it and returns it as a server of
// version v stores it. collation is that of the collection. ignore says that unknown
// fields are left out.
func Normalize(v Version, given, collation bson.Raw, ignore bool) (bson.Raw, error) {
	given, err := knownFields(v, given, ignore)
	if err != nil {
		return nil, err
	}
	s := spec{given: given}
	refused := s.parse()
	if refused == nil && s.isID() {
		refused = s.checkID()
	}
	if refused != nil {
		return nil, refused.Within("Error in specification " + bsontext.Document(given))
	}
	if err := s.checkTTL(v); err != nil {
		return nil, err
	}
	if !s.hasCollation && s.version >= 2 {
		s.collation = collation
	}
	if s.isID() {
		if string(s.collation) != string(collation) {
			return nil, servererr.New(servererr.BadValue, "The _id index must have the same collation as the collection.")
		}
		return storage.IDIndex(s.version, collation), nil
	}
	if err := s.checkPlugin(v); err != nil {
		return nil, err
	}
	return s.stored()
}

// ID checks the specification of the index on _id that create is given, and returns it
// as stored. collation is that of the collection.
func ID(given, collation bson.Raw) (bson.Raw, error) {
	s := spec{given: given}
	if err := s.parse(); err != nil {
		return nil, err
	}
	if err := s.checkID(); err != nil {
		return nil, err
	}
	own := s.collation
	if !arg.Has(given, "collation") && s.version >= 2 {
		own = collation
	}
	if string(own) != string(collation) {
		return nil, servererr.New(servererr.BadValue, "'idIndex' must have the same collation as the collection.")
	}
	return storage.IDIndex(s.version, own), nil
}

// idFields are the fields that the index on _id may be given with.
var idFields = map[string]bool{"v": true, "key": true, "name": true, "ns": true, "collation": true}

// knownFields returns the specification without the fields that no version knows,
// if they are to be ignored, and refuses it otherwise.
func knownFields(v Version, given bson.Raw, ignore bool) (bson.Raw, error) {
	var kept []rawbson.Elem
	seen := map[string]bool{}
	it := rawbson.NewIter(given)
	for it.Next() {
		name := it.Name()
		since, known := fields[name]
		known = known && v.atLeast(since[0], since[1])
		switch {
		case !known && !ignore:
			return nil, servererr.New(servererr.InvalidIndexSpecificationOption, "The field '%s' is not valid for an index specification. Specification: %s",
				name, bsontext.Document(given)).Within("Error in specification " + bsontext.Document(given))
		case seen[name]:
			return nil, servererr.New(40413, "BSON field 'createIndexes.indexes.%s' is a duplicate field", name)
		case known:
			seen[name] = true
			kept = append(kept, it.Elem)
		}
	}
	if err := it.Err(); err != nil {
		return nil, servererr.New(servererr.InvalidBSON, "index specification: %s", err)
	}
	return documentOf(kept), nil
}

func (s *spec) parse() *servererr.Error {
	s.version = 2
	hasName := false
	it := rawbson.NewIter(s.given)
	for it.Next() {
		if it.Is("name") {
			hasName = true
		}
		if err := s.take(it.Elem); err != nil {
			return err
		}
	}
	switch {
	case s.key == nil:
		return servererr.New(servererr.FailedToParse, "The 'key' field is a required property of an index specification")
	case !hasName:
		return servererr.New(servererr.FailedToParse, "The 'name' field is a required property of an index specification")
	case s.name == "" || strings.ContainsRune(s.name, 0):
		return servererr.New(servererr.CannotCreateIndex, "index name cannot be empty")
	case s.name == "*":
		return servererr.New(servererr.BadValue, "The index name '*' is not valid.")
	case s.name == "_id_" && !s.isID():
		return servererr.New(servererr.BadValue,
			"The index name '_id_' is reserved for the _id index, which must have key pattern {_id: 1}, found key: %s", bsontext.Document(s.key))
	case s.hasCollation && s.version < 2:
		return servererr.New(servererr.CannotCreateIndex,
			"Invalid index specification %s; cannot create an index with the 'collation' option and v=%d", bsontext.Document(s.given), s.version)
	case s.unique && s.prepare:
		return servererr.New(servererr.CannotCreateIndex,
			"Invalid index specification %s; cannot create an index with the 'unique' option and the 'prepareUnique' option", bsontext.Document(s.given))
	}
	if _, weights := rawbson.Lookup(s.given, "weights"); weights && s.plugin != "text" {
		return servererr.New(servererr.CannotCreateIndex,
			"Invalid index specification %s; the field 'weights' can only be specified with text indexes", bsontext.Document(s.given))
	}
	return nil
}

// take reads one field.
func (s *spec) take(e rawbson.Elem) *servererr.Error {
	ok, want := true, ""
	switch name := e.Name(); name {
	case "key":
		want = "an object"
		if s.key, ok = e.Document(); ok {
			return s.parseKey()
		}
	case "name":
		want = "a string"
		s.name, ok = e.Text()
	case "hidden":
		want = "a bool"
		_, ok = e.Bool()
	case "unique", "sparse", "prepareUnique", "background", "clustered", "dropDups":
		on, isFlag := arg.Flag(e.Raw())
		if !isFlag {
			return servererr.New(servererr.TypeMismatch, "The field '%s has value %s, which is not convertible to bool",
				name, bsontext.Element(name, e.Raw()))
		}
		s.setFlag(name, on)
	case "default_language", "language_override":
		want = "a string"
		_, ok = e.Text()
	case "textIndexVersion", "2dsphereIndexVersion", "bits", "min", "max", "bucketSize":
		want = "a number"
		v := e.Raw()
		ok = v.IsNumber()
	case "weights":
		want = "an object"
		_, isText := e.Text()
		_, isDoc := e.Document()
		ok = isText || isDoc
	case "collation":
		return s.takeCollation(e)
	case "partialFilterExpression":
		doc, isDoc := e.Document()
		if want, ok = "an object", isDoc; ok {
			if _, err := serverquery.CompileValidator(doc, serverquery.Options{}); err != nil {
				return refusal(err)
			}
			return checkPartial(doc, 0)
		}
	case "wildcardProjection", "originalSpec":
		want = "a non-empty object"
		_, ok = e.Document()
	case "storageEngine":
		if doc, isDoc := e.Document(); !isDoc || len(doc) > rawbson.MinSize {
			return servererr.New(servererr.NotImplemented, "index option storageEngine is not implemented here")
		}
	case "v":
		return s.takeVersion(e)
	}
	if !ok {
		return servererr.New(servererr.TypeMismatch, "The field '%s' must be %s, but got %s", e.Name(), want, bsontext.TypeName(e.Type))
	}
	return nil
}

func (s *spec) setFlag(name string, on bool) {
	switch name {
	case "unique":
		s.unique = on
	case "sparse":
		s.sparse = on
	case "prepareUnique":
		s.prepare = on
	case "clustered":
		s.clustered = on
	}
}

func (s *spec) takeCollation(e rawbson.Elem) *servererr.Error {
	doc, ok := e.Document()
	switch {
	case !ok:
		return servererr.New(servererr.TypeMismatch, "The field 'collation' must be an object, but got %s", bsontext.TypeName(e.Type))
	case len(doc) == rawbson.MinSize:
		return servererr.New(servererr.BadValue, "The field 'collation' cannot be an empty object.")
	}
	full, err := Collation(doc)
	if err != nil {
		return refusal(err)
	}
	s.collation, s.hasCollation = full, true
	return nil
}

func (s *spec) takeVersion(e rawbson.Elem) *servererr.Error {
	v := e.Raw()
	f, _ := v.AsFloat64OK()
	switch {
	case !v.IsNumber():
		return servererr.New(servererr.TypeMismatch, "The field 'v' must be a number, but got %s", bsontext.TypeName(e.Type))
	case f != math.Trunc(f) || math.Abs(f) > math.MaxInt32:
		return servererr.New(servererr.BadValue, "Index version must be representable as a 32-bit integer, but got %s", bsontext.Value(v))
	case f != 1 && f != 2:
		return servererr.New(servererr.CannotCreateIndex,
			"Invalid index specification %s; cannot create an index with v=%d", bsontext.Document(s.given), int32(f))
	}
	s.version = int32(f)
	return nil
}

// isID reports whether the key is that of the index on _id, in either direction.
func (s *spec) isID() bool {
	it := rawbson.NewIter(s.key)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	v := it.Raw()
	if !v.IsNumber() {
		return false
	}
	n := arg.Int64(v)
	return (n == 1 || n == -1) && !it.Next()
}

// IsID reports whether a key is {_id: 1}.
func IsID(key bson.Raw) bool {
	it := rawbson.NewIter(key)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	v := it.Raw()
	f, _ := v.AsFloat64OK()
	return f == 1 && !it.Next()
}

// checkID refuses what the index on _id cannot have.
func (s *spec) checkID() *servererr.Error {
	if s.clustered {
		return nil
	}
	it := rawbson.NewIter(s.given)
	for it.Next() {
		if it.Is("hidden") {
			return servererr.New(servererr.BadValue, "can't hide _id index")
		}
		if !idFields[it.Name()] {
			return servererr.New(servererr.InvalidIndexSpecificationOption,
				"The field '%s' is not valid for an _id index specification. Specification: %s", it.Name(), bsontext.Document(s.given))
		}
	}
	if !IsID(s.key) {
		return servererr.New(servererr.BadValue,
			"The field 'key' for an _id index must be {_id: 1}, but got %s", bsontext.Document(s.key))
	}
	return nil
}

// refusal is the server's error that checks of filters and collations return.
func refusal(err error) *servererr.Error {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e
	}
	return servererr.New(servererr.InternalError, "%s", err)
}
