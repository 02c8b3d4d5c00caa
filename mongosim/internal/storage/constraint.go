package storage

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// constraint is a constraint of an index on the documents of its collection.
type constraint struct {
	name               string
	pattern, collation bson.Raw
	fields             []string
	descending         []bool
	sparse, hashed     bool
	// special is the check of a text or geo index, which has no keys here.
	special func(doc bson.Raw) error
	partial func(doc bson.Raw) bool
	coll    *bsonorder.Collator

	// unique constraints keep their keys in slots. A lenient one accepts the
	// duplicates that it finds when it begins (prepareUnique).
	unique, lenient bool
	slots           map[string]*slot
}

// slot is a key of a unique index in its newest state, uncommitted changes
// included.
type slot struct {
	key string
	// holder has the key now, kept had it before unit changed that; nil means none.
	holder, kept *record
	// unit is the open unit that took or freed the key, or nil.
	unit *Unit
	// ts and seq are the commit that last took or freed it.
	ts, seq uint64
	// shared is set once the key has been found with several documents, which only
	// lenient constraints and relaxed units allow.
	shared bool
}

// newConstraint reads a specification. It is nil for an index that accepts every
// document: those on one field that are neither unique nor hashed, and wildcard
// indexes.
func newConstraint(spec bson.Raw, opts *Options) (*constraint, error) {
	c := &constraint{name: indexName(spec)}
	var filter bson.Raw
	it := rawbson.NewIter(spec)
	for it.Next() {
		switch it.Name() {
		case "key":
			c.pattern, _ = it.Document()
		case "unique":
			c.unique = c.unique || it.Truth()
		case "prepareUnique":
			if it.Truth() {
				c.unique, c.lenient = true, true
			}
		case "sparse":
			c.sparse = it.Truth()
		case "partialFilterExpression":
			filter, _ = it.Document()
		case "collation":
			c.collation, _ = it.Document()
		}
	}
	if err := it.Err(); err != nil {
		return nil, servererr.New(servererr.InvalidBSON, "specification of index %s: %s", c.name, err)
	}
	if c.special = specialCheck(spec); c.special == nil && !c.readPattern() {
		return nil, nil
	}
	return c, c.compile(filter, opts)
}

// readPattern reads the fields of the index. It is false if they constrain nothing.
func (c *constraint) readPattern() bool {
	numeric := false
	for it := rawbson.NewIter(c.pattern); it.Next(); {
		kind, special := it.Text()
		if special && kind != "hashed" || it.Is("$**") || strings.HasSuffix(it.Name(), ".$**") {
			return false
		}
		c.hashed = c.hashed || special
		descending := false
		if it.Type == bson.TypeInt32 || it.Type == bson.TypeInt64 || it.Type == bson.TypeDouble {
			descending = bsonorder.Compare(it.Raw(), zero, nil) < 0
		}
		c.fields = append(c.fields, string(it.Key))
		c.descending = append(c.descending, descending)
		for part := range strings.SplitSeq(it.Name(), ".") {
			_, err := strconv.ParseUint(part, 10, 32)
			numeric = numeric || err == nil
		}
	}
	return c.unique || c.hashed || len(c.fields) > 1 || numeric
}

var zero = bson.RawValue{Type: bson.TypeInt32, Value: []byte{0, 0, 0, 0}}

func (c *constraint) compile(filter bson.Raw, opts *Options) error {
	var err error
	if c.coll, err = bsonorder.NewCollator(c.collation); err != nil && c.unique {
		return servererr.New(servererr.NotImplemented, "unique index %s: %s", c.name, err)
	}
	if c.unique {
		c.slots = map[string]*slot{}
	}
	if filter == nil {
		return nil
	}
	if opts.Filter == nil {
		if c.unique {
			return servererr.New(servererr.NotImplemented, "unique index %s: no partialFilterExpression can be followed here", c.name)
		}
		c.partial = func(bson.Raw) bool { return false }
		return nil
	}
	c.partial, err = opts.Filter(filter, c.coll)
	return err
}

// demandsAs reports whether c and d are the same constraint, so that one can
// replace the other. Filters cannot be compared.
func (c *constraint) demandsAs(d *constraint) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.partial == nil && d.partial == nil && c.unique == d.unique && c.lenient == d.lenient && c.sparse == d.sparse &&
		slices.Equal(c.pattern, d.pattern) && slices.Equal(c.collation, d.collation)
}

// duplicate is the server's refusal of a key that is taken. Its message names no index if that is the order of a
// clustered collection (insertDocumentsImpl in collection_write_path.cpp).
func duplicate(ns oplog.Namespace, index string, pattern, collation bson.Raw, values []bson.RawValue, coll *bsonorder.Collator) error {
	shown, stated, encoded := []byte{0, 0, 0, 0}, []byte{0, 0, 0, 0}, []byte{0, 0, 0, 0}
	anyEncoded := false
	i := 0
	for it := rawbson.NewIter(pattern); it.Next() && i < len(values); i++ {
		v := values[i]
		text, isText := v.StringValueOK()
		// The server's index holds collation keys, which are no text, so it shows
		// them in hexadecimal. They come from other tables here.
		isHex := isText && (len(collation) > 0 || !utf8.ValidString(text))
		if isHex {
			key := text
			if coll != nil {
				key = string(coll.Key(text))
			}
			digits := hex.EncodeToString([]byte(key))
			shown = bsoncore.AppendStringElement(shown, it.Name(), "0x"+digits)
			stated = bsoncore.AppendStringElement(stated, it.Name(), digits)
		} else {
			shown = appendValue(shown, it.Name(), v)
			stated = appendValue(stated, it.Name(), v)
		}
		encoded = bsoncore.AppendBooleanElement(encoded, strconv.Itoa(i), isHex)
		anyEncoded = anyEncoded || isHex
	}
	message := "E11000 duplicate key error collection: " + string(ns)
	if index != "" {
		message += " index: " + index
	}
	if len(collation) > 0 {
		message += " collation: " + bsontext.Document(collation)
	}
	message += " dup key: " + bsontext.Document(closed(shown))

	info := bsoncore.AppendDocumentElement([]byte{0, 0, 0, 0}, "keyPattern", pattern)
	info = bsoncore.AppendDocumentElement(info, "keyValue", closed(stated))
	if anyEncoded {
		info = bsoncore.AppendArrayElement(info, "hexEncoded", bsoncore.Array(closed(encoded)))
	}
	if len(collation) > 0 {
		info = bsoncore.AppendDocumentElement(info, "collation", collation)
	}
	return servererr.New(servererr.DuplicateKey, "%s", message).WithInfo(closed(info))
}

func appendValue(dst []byte, name string, v bson.RawValue) []byte {
	return append(bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), name), v.Value...)
}

// closed ends a document that was begun with four bytes for its length.
func closed(doc []byte) bson.Raw {
	doc = append(doc, 0)
	return bson.Raw(bsoncore.UpdateLength(doc, 0, int32(len(doc))))
}
