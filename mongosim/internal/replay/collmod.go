package replay

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// modification is the result of a collMod. It is put together first, so that
// nothing has changed when some part of it is not possible.
type modification struct {
	coll    *storage.Collection
	options fields
	changed bool
	// index is the index that changes, "" for none, and spec its new
	// specification.
	index string
	spec  bson.Raw
}

// collMod changes options of a collection or of an index. An option that is not
// known is an error.
func (a *Applier) collMod(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.CollMod()
	if err != nil {
		return err
	}
	c, err := resolve(u.View(), op, entry.NS)
	if err != nil {
		return err
	}
	changes := entry.Changes
	if a.skipIndexes {
		changes = newFields(changes).unset("index").document()
	}
	options, index, spec, err := Modified(c, changes)
	if err == nil && options != nil {
		err = u.SetOptions(c.UUID, options)
	}
	if err == nil && index != "" {
		err = u.SetIndex(c.UUID, index, spec)
	}
	return err
}

// Modified returns what the changes of a collMod entry (all of o but the first
// field) mean for a collection: its new options, nil if unchanged, and the one
// index that changes with its specification, "" if none does. A primary that
// uses it gets the same result as its secondaries.
func Modified(c *storage.Collection, changes bson.Raw) (options bson.Raw, index string, spec bson.Raw, err error) {
	m := modification{coll: c, options: newFields(c.Options)}
	it := rawbson.NewIter(changes)
	for it.Next() {
		if err := m.take(it.Elem); err != nil {
			return nil, "", nil, err
		}
	}
	if err := it.Err(); err != nil {
		return nil, "", nil, err
	}
	if m.changed {
		options = m.options.arranged().document()
	}
	return options, m.index, m.spec, nil
}

func (m *modification) take(e rawbson.Elem) error {
	switch name := e.Name(); name {
	case "validator", "validationLevel", "validationAction":
		m.validation(e)
	case "index":
		return m.changeIndex(e)
	case "expireAfterSeconds":
		return m.expire(e)
	case "timeseries":
		return m.timeseries(e)
	case "recordPreImages":
		m.setIf(e, e.Truth())
	case "changeStreamPreAndPostImages":
		m.setIf(e, enabled(&e))
	case "cappedSize", "cappedMax":
		return m.resize(e)
	default:
		if !generic(name) {
			return fmt.Errorf("collMod with an unknown option %q", name)
		}
	}
	return nil
}

// generic reports whether a field is one that any command may have, or one that
// collMod has long ignored: the server logs a collMod as it was sent.
func generic(name string) bool {
	switch name {
	case "lsid", "txnNumber", "writeConcern", "readConcern", "comment", "maxTimeMS", "apiVersion", "apiStrict",
		"apiDeprecationErrors", "databaseVersion", "shardVersion", "maxTimeMSOpOnly", "autocommit", "startTransaction",
		"stmtId", "coordinator", "clientOperationKey", "mayBypassWriteBlocking", "rawData", "help",
		"timeseriesBucketsMayHaveMixedSchemaData",
		"usePowerOf2Sizes", "noPadding":
		return true
	}
	return strings.HasPrefix(name, "$")
}

func (m *modification) setIf(e rawbson.Elem, on bool) {
	m.changed = true
	if on {
		m.options = m.options.set(e)
	} else {
		m.options = m.options.unset(e.Name())
	}
}

// validation sets one of the three options of document validation. The server
// stores all three then, the others with their defaults, and does not show an
// empty validator.
func (m *modification) validation(e rawbson.Elem) {
	if !m.options.has("validationLevel") {
		m.options = m.options.set(text("validationLevel", "strict"))
	}
	if !m.options.has("validationAction") {
		m.options = m.options.set(text("validationAction", "error"))
	}
	doc, isDoc := e.Document()
	m.setIf(e, !isDoc || len(doc) > rawbson.MinSize)
}

// expire sets or removes (with "off") the age at which the documents of a
// time-series or clustered collection expire.
func (m *modification) expire(e rawbson.Elem) error {
	if s, ok := e.Text(); ok && s == "off" {
		m.setIf(e, false)
		return nil
	}
	n, ok := e.Int64()
	if !ok {
		return fmt.Errorf("expireAfterSeconds is %s", e.Raw())
	}
	m.setIf(long("expireAfterSeconds", n), true)
	return nil
}

// timeseries changes how wide the buckets of a time-series collection are.
func (m *modification) timeseries(e rawbson.Elem) error {
	old, ok := rawbson.Lookup(m.coll.Options, "timeseries")
	was, _ := old.Document()
	is, isDoc := e.Document()
	if !ok || !isDoc {
		return fmt.Errorf("a change of timeseries to %s", e.Raw())
	}
	all := newFields(was)
	it := rawbson.NewIter(is)
	for it.Next() {
		switch it.Name() {
		case "granularity":
			// How many seconds a bucket spans.
			spans := map[string]int64{"seconds": 60 * 60, "minutes": 24 * 60 * 60, "hours": 30 * 24 * 60 * 60}
			name, _ := it.Text()
			span, known := spans[name]
			if !known {
				return fmt.Errorf("a granularity of %s", it.Raw())
			}
			all = all.set(it.Elem).set(number("bucketMaxSpanSeconds", span))
		case "bucketMaxSpanSeconds", "bucketRoundingSeconds": // since 6.3, instead of a granularity
			all = all.unset("granularity").set(it.Elem)
		default:
			return fmt.Errorf("a change of timeseries with an unknown field %q", it.Name())
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	m.setIf(element("timeseries", bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: all.document()}), true)
	return nil
}

// resize changes a limit of a capped collection (since 6.0). The size is rounded
// up to 256 bytes, as on creation.
func (m *modification) resize(e rawbson.Elem) error {
	n, ok := e.Int64()
	if !ok || m.coll.CappedBytes == 0 {
		return fmt.Errorf("a change of the limits of %s to %s", m.coll.NS, e.Raw())
	}
	if e.Is("cappedSize") {
		m.setIf(number("size", (n+255)&^255), true)
	} else {
		m.setIf(number("max", n), n > 0)
	}
	return nil
}

// changeIndex changes an index. The flags that are true come last then, and those
// that are false go.
func (m *modification) changeIndex(e rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return fmt.Errorf("a change of the index %s", e.Raw())
	}
	wanted, _ := rawbson.Lookup(doc, "name")
	name, _ := wanted.Text()
	index, ok := maybeIndex(m.coll, name)
	if !ok {
		return servererr.New(servererr.IndexNotFound, "cannot find index %s for ns %s", name, m.coll.NS)
	}
	all := newFields(index.Spec)
	flags := map[string]bool{}
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch field := it.Name(); field {
		case "name":
		case "expireAfterSeconds":
			n, ok := it.Int64()
			if !ok {
				return fmt.Errorf("expireAfterSeconds is %s", it.Raw())
			}
			all = all.set(long("expireAfterSeconds", n))
		case "hidden", "prepareUnique":
			flags[field] = it.Truth()
		case "unique":
			flags[field] = it.Truth()
			all = all.unset("prepareUnique")
		case "forceNonUnique": // since 6.1
			flags["unique"] = false
		default:
			return fmt.Errorf("a change of an index with an unknown field %q", field)
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, field := range []string{"hidden", "unique", "prepareUnique"} {
		on, given := flags[field]
		if !given {
			continue
		}
		if all = all.unset(field); on {
			all = append(all, boolean(field, true))
		}
	}
	m.index, m.spec = name, all.document()
	return nil
}

// oldState is the o2 of a collMod entry.
func oldState(c *storage.Collection, changes bson.Raw) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	options, doc := bsoncore.AppendDocumentElementStart(doc, "collectionOptions_old")
	doc = bsoncore.AppendBinaryElement(doc, "uuid", bson.TypeBinaryUUID, c.UUID[:])
	doc = append(doc, c.Options[4:len(c.Options)-1]...)
	doc, _ = bsoncore.AppendDocumentEnd(doc, options)
	change, _ := rawbson.Lookup(changes, "index")
	if given, ok := change.Document(); ok {
		wanted, _ := rawbson.Lookup(given, "name")
		name, _ := wanted.Text()
		index, _ := maybeIndex(c, name)
		if _, ok := rawbson.Lookup(given, "expireAfterSeconds"); ok {
			if old, had := rawbson.Lookup(index.Spec, "expireAfterSeconds"); had {
				n, _ := old.Int64()
				doc = bsoncore.AppendInt64Element(doc, "expireAfterSeconds_old", n)
			}
		}
		if _, ok := rawbson.Lookup(given, "hidden"); ok {
			old, _ := rawbson.Lookup(index.Spec, "hidden")
			on, _ := old.Bool()
			doc = bsoncore.AppendBooleanElement(doc, "hidden_old", on)
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}
