package memstore

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// changes is the result of a collMod. It is put together first, so that
// nothing has changed when some part of it is not possible.
type changes struct {
	target  *Collection
	options []field
	index   int // the index that changes, -1 for none
	spec    []field
}

// collMod changes options of a collection or of an index. An option that is not
// known is an error.
func (s *Store) collMod(op *oplog.Op) error {
	entry, err := op.CollMod()
	if err != nil {
		return err
	}
	c, err := s.resolve(op, entry.NS)
	if err != nil {
		return err
	}
	m := changes{target: c, options: split(c.options), index: -1}
	it := rawbson.NewIter(entry.Changes)
	for it.Next() {
		if err := m.take(it.Name(), it.Raw()); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	c.setOptions(arrange(m.options, optionPlace))
	if m.index >= 0 {
		c.indexes[m.index].spec = listedIndex(document(m.spec...))
	}
	return nil
}

func (m *changes) take(name string, v bson.RawValue) error {
	switch name {
	case "validator", "validationLevel", "validationAction":
		m.validation(strings.Clone(name), v)
	case "index":
		return m.changeIndex(v)
	case "expireAfterSeconds":
		return m.expire(v)
	case "timeseries":
		return m.timeseries(v)
	case "recordPreImages":
		m.setOrUnset("recordPreImages", v, truth(v))
	case "changeStreamPreAndPostImages":
		m.setOrUnset("changeStreamPreAndPostImages", v, enabled(v))
	case "cappedSize":
		return m.resize("size", v)
	case "cappedMax":
		return m.resize("max", v)
	default:
		if !isGeneric(name) {
			return InvalidOptions.because("collMod with an unknown option %q", name)
		}
	}
	return nil
}

// isGeneric reports whether a field is one that any command may have, or one that
// collMod has ignored for long. The server logs a collMod as it was sent.
func isGeneric(name string) bool {
	switch name {
	case "lsid", "txnNumber", "writeConcern", "readConcern", "comment", "maxTimeMS", "apiVersion", "apiStrict",
		"apiDeprecationErrors", "databaseVersion", "shardVersion", "maxTimeMSOpOnly", "autocommit", "startTransaction",
		"stmtId", "coordinator", "clientOperationKey", "mayBypassWriteBlocking", "rawData", "help",
		"timeseriesBucketsMayHaveMixedSchemaData",
		"usePowerOf2Sizes", "noPadding": // the last two of the storage engine before 4.2
		return true
	}
	return strings.HasPrefix(name, "$")
}

func (m *changes) setOrUnset(name string, v bson.RawValue, on bool) {
	if on {
		m.options = set(m.options, name, v)
	} else {
		m.options = unset(m.options, name)
	}
}

// validation sets one of the three options of document validation. The server
// stores all three then, the others with their defaults, and does not show an
// empty validator.
func (m *changes) validation(name string, v bson.RawValue) {
	for other, def := range map[string]string{"validationLevel": "strict", "validationAction": "error"} {
		if _, ok := get(m.options, other); !ok {
			m.options = set(m.options, other, stringValue(def))
		}
	}
	doc, isDoc := v.DocumentOK()
	m.setOrUnset(name, v, !isDoc || len(doc) > rawbson.MinSize)
}

// expire sets or removes (with "off") the age at which the documents of a
// time-series or clustered collection expire.
func (m *changes) expire(v bson.RawValue) error {
	if text, ok := v.StringValueOK(); ok {
		if text != "off" {
			return InvalidOptions.because("expireAfterSeconds is %q", text)
		}
		m.options = unset(m.options, "expireAfterSeconds")
		return nil
	}
	v = convert(v, bson.TypeInt64)
	if v.Type != bson.TypeInt64 {
		return InvalidOptions.because("expireAfterSeconds is %s", v)
	}
	m.options = set(m.options, "expireAfterSeconds", v)
	return nil
}

// bucketSpans are how many seconds a bucket spans, by granularity.
var bucketSpans = map[string]int32{"seconds": 60 * 60, "minutes": 24 * 60 * 60, "hours": 30 * 24 * 60 * 60}

// timeseries changes how wide the buckets of a time-series collection are.
func (m *changes) timeseries(v bson.RawValue) error {
	old, _ := get(m.options, "timeseries")
	oldDoc, ok := old.DocumentOK()
	changed, isDoc := v.DocumentOK()
	if !ok || !isDoc {
		return InvalidOptions.because("a change of timeseries to %s, from %s", v, old)
	}
	fields := split(oldDoc)
	it := rawbson.NewIter(changed)
	for it.Next() {
		switch name := it.Name(); name {
		case "granularity":
			text, _ := it.Text()
			span, known := bucketSpans[text]
			if !known {
				return InvalidOptions.because("a granularity of %s", it.Raw())
			}
			fields = set(fields, "granularity", it.Raw())
			fields = set(fields, "bucketMaxSpanSeconds", int32Value(span))
		case "bucketMaxSpanSeconds", "bucketRoundingSeconds": // since 6.3, instead of a granularity
			fields = set(unset(fields, "granularity"), strings.Clone(name), it.Raw())
		default:
			return InvalidOptions.because("a change of timeseries with an unknown field %q", name)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	m.options = set(m.options, "timeseries", documentValue(document(fields...)))
	return nil
}

// resize changes a limit of a capped collection (since 6.0). The size is rounded
// up to 256 bytes, as the server does on create.
func (m *changes) resize(name string, v bson.RawValue) error {
	limit := convert(v, bson.TypeInt64)
	if limit.Type != bson.TypeInt64 || !m.target.capped {
		return InvalidOptions.because("a change of the limits of %s to %s", m.target.ns, v)
	}
	n := limit.Int64()
	switch {
	case name == "size":
		n = (n + 255) &^ 255
	case n <= 0:
		m.options = unset(m.options, name)
		return nil
	}
	limit = int64Value(n)
	if int64(int32(n)) == n { // the server shows a number in the smaller type if it fits
		limit = int32Value(int32(n))
	}
	m.options = set(m.options, name, limit)
	return nil
}

func (m *changes) changeIndex(v bson.RawValue) error {
	doc, ok := v.DocumentOK()
	if !ok {
		return InvalidOptions.because("a change of the index %s", v)
	}
	wanted, _ := rawbson.Lookup(doc, "name")
	name, _ := wanted.Text()
	if m.index = m.target.find(name); m.index < 0 {
		return IndexNotFound.because("%s has no index %q to change", m.target.ns, name)
	}
	m.spec = split(m.target.indexes[m.index].spec)
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "name":
		case "expireAfterSeconds":
			m.spec = set(m.spec, "expireAfterSeconds", it.Raw())
		case "hidden":
			m.flag("hidden", truth(it.Raw()))
		case "prepareUnique":
			m.flag("prepareUnique", truth(it.Raw()))
		case "unique":
			m.flag("unique", truth(it.Raw()))
			m.flag("prepareUnique", false)
		case "forceNonUnique":
			m.flag("unique", false)
		default:
			return InvalidOptions.because("a change of an index with an unknown field %q", it.Name())
		}
	}
	return it.Err()
}

// flag sets a boolean of an index, which the server leaves out where it is
// false.
func (m *changes) flag(name string, on bool) {
	if on {
		m.spec = set(m.spec, name, boolValue(true))
	} else {
		m.spec = unset(m.spec, name)
	}
}

func documentValue(doc bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}
