package indexspec

import (
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
)

// maxDepth is how deep the parts of a partial filter may be nested.
const maxDepth = 20

// maxKeyPattern is how large the key of an index may be, in bytes.
const maxKeyPattern = 2048

// parseKey checks the key, and finds out what kind of index it asks for.
func (s *spec) parseKey() *servererr.Error {
	if len(s.key) > maxKeyPattern {
		return servererr.New(servererr.CannotCreateIndex, "Index key pattern too large.")
	}
	seen := map[string]bool{}
	it := rawbson.NewIter(s.key)
	for it.Next() {
		name := it.Name()
		if seen[name] {
			return servererr.New(servererr.BadValue, "The field '%s' appears multiple times in the index key pattern %s",
				name, bsontext.Document(s.key))
		}
		seen[name] = true
		plugin, isText := it.Text()
		wildcard := !isText && (name == "$**" || strings.HasSuffix(name, ".$**"))
		if wildcard {
			plugin = "wildcard"
		}
		if plugin != "" && s.plugin == "" {
			s.plugin = plugin
		}
		switch {
		case isText && !plugins[plugin]:
			return servererr.New(servererr.CannotCreateIndex, "Unknown index plugin '%s'", plugin)
		case isText && s.plugin != plugin:
			return servererr.New(servererr.CannotCreateIndex, "Can't use more than one index plugin for a single index.")
		}
		if err := s.checkKeyField(it.Elem, wildcard); err != nil {
			return err
		}
	}
	if len(seen) == 0 {
		return servererr.New(servererr.CannotCreateIndex, "Index keys cannot be empty.")
	}
	return nil
}

// checkKeyField checks the direction and the path of one field of the key.
func (s *spec) checkKeyField(e rawbson.Elem, wildcard bool) *servererr.Error {
	name := e.Name()
	if _, isText := e.Text(); !isText {
		v := e.Raw()
		f, number := v.AsFloat64OK()
		switch {
		case !number:
			return servererr.New(servererr.CannotCreateIndex, "Values in v:2 index key pattern cannot be of type %s. "+
				"Only numbers > 0, numbers < 0, and strings are allowed.", bsontext.TypeName(e.Type))
		case math.IsNaN(f):
			return servererr.New(servererr.CannotCreateIndex, "Values in the index key pattern cannot be NaN.")
		case f == 0:
			return servererr.New(servererr.CannotCreateIndex, "Values in the index key pattern cannot be 0.")
		case wildcard && f < 0:
			return servererr.New(servererr.CannotCreateIndex, "A numeric value in a $** index key pattern must be positive.")
		}
	} else if name == "$**" && s.plugin == "text" {
		return nil
	}
	switch {
	case name == "":
		return servererr.New(servererr.CannotCreateIndex, "Index keys cannot be an empty field.")
	case name == "_fts" && s.plugin != "text":
		return servererr.New(servererr.CannotCreateIndex, "Index key contains an illegal field name: field name starts with '_fts'.")
	case wildcard:
		name = strings.TrimSuffix(strings.TrimSuffix(name, "$**"), ".")
		if name == "" {
			return nil
		}
	}
	for i, part := range strings.Split(name, ".") {
		switch {
		case part == "":
			return servererr.New(servererr.CannotCreateIndex, "Index keys cannot contain an empty field.")
		case part[0] == '$' && (i == 0 || part != "$db" && part != "$id" && part != "$ref"):
			return servererr.New(servererr.CannotCreateIndex, "Index key contains an illegal field name: field name starts with '$'.")
		}
	}
	return nil
}

// MaxAge returns the largest expireAfterSeconds of an index: up to 5.0.13 and 6.0.1, the seconds since 1970 (SERVER-68477). Those are
// a constant here, so that tests do not depend on the time.
func MaxAge(v Version) int64 {
	if v.atLeast(7, 0) {
		return math.MaxInt32
	}
	return 1_790_000_000
}

// checkTTL checks expireAfterSeconds, whose refusals quote the specification.
func (s *spec) checkTTL(v Version) error {
	e, ok := rawbson.Lookup(s.given, "expireAfterSeconds")
	if !ok {
		return nil
	}
	seconds, text := e.Raw(), bsontext.Document(s.given)
	if !seconds.IsNumber() {
		return servererr.New(servererr.CannotCreateIndex,
			"TTL index 'expireAfterSeconds' option must be numeric, but received a type of '%s'. Index spec: %s", bsontext.TypeName(e.Type), text)
	}
	n := arg.Int64(seconds)
	const low = "TTL index 'expireAfterSeconds' option cannot be less than 0"
	const high = "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number"
	switch {
	case n >= 0 && n <= MaxAge(v):
	case v.atLeast(6, 0) && n < 0:
		return servererr.New(servererr.InvalidOptions, ". Index spec: %s :: caused by :: %s", text, low)
	case v.atLeast(6, 0):
		return servererr.New(servererr.InvalidOptions, ". Index spec: %s :: caused by :: %s", text, high)
	case n < 0:
		return servererr.New(servererr.CannotCreateIndex, "%sindex spec: %s", low, text)
	default:
		return servererr.New(servererr.CannotCreateIndex, "%s. Index spec: %s", high, text)
	}
	if arg.Count(s.key) != 1 {
		return servererr.New(servererr.CannotCreateIndex,
			"TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: %s", text)
	}
	return nil
}

// checkPlugin checks options against the kind of index.
func (s *spec) checkPlugin(v Version) error {
	refuse := func(format string, args ...any) error {
		return servererr.New(servererr.CannotCreateIndex, format, args...)
	}
	_, partial := rawbson.Lookup(s.given, "partialFilterExpression")
	_, ttl := rawbson.Lookup(s.given, "expireAfterSeconds")
	projection, projected := rawbson.Lookup(s.given, "wildcardProjection")
	shown, _ := projection.Document()
	switch {
	case s.clustered:
		return servererr.New(servererr.InvalidIndexSpecificationOption, "The 'clustered' option is only for the index of a clustered collection: %s",
			bsontext.Document(s.given))
	case s.plugin == "geoHaystack" && v.atLeast(5, 0):
		return refuse("GeoHaystack indexes cannot be created in version 5.0 and above. See https://dochub.mongodb.org/core/4.4-deprecate-geoHaystack")
	case s.plugin == "geoHaystack" || s.plugin == "2dsphere_bucket" && !v.atLeast(5, 1):
		return servererr.New(servererr.NotImplemented, "%s indexes are not implemented here", s.plugin)
	case s.plugin == "wildcard" && arg.Count(s.key) > 1 && !v.atLeast(7, 0):
		return refuse("wildcard indexes do not allow compounding")
	case s.plugin == "wildcard" && s.version < 2:
		return refuse("Index type 'wildcard' is not supported with v=%d", s.version)
	case s.plugin == "wildcard" && s.sparse:
		return refuse("Index type 'wildcard' does not support the sparse option")
	case s.plugin == "wildcard" && s.unique:
		return refuse("Index type 'wildcard' does not support the unique option")
	case s.plugin == "wildcard" && ttl:
		return refuse("Index type 'wildcard' cannot be a TTL index")
	case projected && s.plugin != "wildcard":
		return servererr.New(servererr.BadValue, "The field 'wildcardProjection' is only allowed in 'wildcard' indexes")
	case projected && !arg.Has(s.key, "$**"):
		return servererr.New(servererr.FailedToParse, "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": \u00b11}")
	case projected && len(shown) == rawbson.MinSize:
		return servererr.New(servererr.FailedToParse, "The 'wildcardProjection' field can't be an empty object")
	case s.plugin == "hashed" && (s.unique || s.prepare):
		return servererr.New(16764, "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.")
	case s.collation != nil && s.plugin != "" && s.plugin != "2dsphere" && s.plugin != "hashed" && s.plugin != "wildcard":
		return refuse("Index type '%s' does not support collation: %s", s.plugin, bsontext.Document(s.collation))
	case partial && s.sparse:
		return refuse("cannot mix \"partialFilterExpression\" and \"sparse\" options")
	}
	return nil
}

// checkPartial refuses expressions that the filter of a partial index cannot
// have.
func checkPartial(filter bson.Raw, depth int) *servererr.Error {
	refuse := func(what string) *servererr.Error {
		return servererr.New(servererr.CannotCreateIndex, "Expression not supported in partial index: %s", what)
	}
	it := rawbson.NewIter(filter)
	for it.Next() {
		name := it.Name()
		switch {
		case name == "$and" || name == "$or":
			if depth > maxDepth {
				return refuse(name)
			}
			array, _ := it.Array()
			parts := rawbson.NewIter(array)
			for parts.Next() {
				part, _ := parts.Document()
				if err := checkPartial(part, depth+1); err != nil {
					return err
				}
			}
		case strings.HasPrefix(name, "$"):
			return refuse(name)
		default:
			doc, _ := it.Document()
			ops := rawbson.NewIter(doc)
			for ops.Next() {
				if !strings.HasPrefix(ops.Name(), "$") {
					break
				}
				switch ops.Name() {
				case "$eq", "$lt", "$lte", "$gt", "$gte", "$type", "$in", "$exists", "$geoWithin", "$geoIntersects":
					if on, isBool := ops.Bool(); ops.Is("$exists") && isBool && !on {
						return refuse(bsontext.Document(filter))
					}
				default:
					return refuse(bsontext.Document(filter))
				}
			}
		}
	}
	return nil
}

// documentOf puts a document together from fields.
func documentOf(fields []rawbson.Elem) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	for i := range fields {
		f := &fields[i]
		doc = bsoncore.AppendValueElement(doc, f.Name(), bsoncore.Value{Type: bsoncore.Type(f.Type), Data: f.Value})
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}
