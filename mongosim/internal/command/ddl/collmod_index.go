package ddl

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/indexspec"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// indexChange is the index argument of collMod. Changes without effect are nil.
type indexChange struct {
	index   storage.Index
	expire  *int64
	hidden  *bool
	unique  *bool
	prepare *bool
	force   *bool
}

// takeIndex adds the change of an index.
func (m *modification) takeIndex(e rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return dispatch.WrongType("collMod", "index", e.Type, "object")
	}
	c := &indexChange{}
	name, key, err := c.parse(m.r.Server, doc)
	if err != nil {
		return err
	}
	if c.expire != nil {
		switch {
		case m.series:
			return servererr.New(servererr.InvalidOptions, "TTL indexes are not supported for time-series collections. "+
				"Please refer to the documentation and use the top-level 'expireAfterSeconds' option instead")
		case m.coll.CappedBytes > 0 && m.r.Server.AtLeast(5, 1) && !m.r.Server.AtLeast(7, 1):
			return servererr.New(servererr.InvalidOptions, "TTL indexes are not supported for capped collections.")
		}
		if m.r.Server.AtLeast(5, 0) { // earlier, collMod took any number
			if err := checkAge(*c.expire, indexspec.MaxAge(m.r.Server.Version)); err != nil {
				return err
			}
		}
	}
	if c.index, err = indexFor(m.coll, name, key); err != nil {
		return err
	}
	m.index = c
	return m.checkIndex(c)
}

// checkIndex refuses changes that are invalid for the index, and drops those
// without effect.
func (m *modification) checkIndex(c *indexChange) error {
	isID := c.index.Name == "_id_" && m.coll.IDIndex != nil
	if c.expire != nil {
		m.count++
		key, _ := c.old("key")
		pattern, _ := key.Document()
		_, had := c.old("expireAfterSeconds")
		switch {
		case !had && !m.r.Server.AtLeast(5, 1):
			return servererr.New(servererr.InvalidOptions, "no expireAfterSeconds field to update")
		case !had && isID:
			return servererr.New(servererr.InvalidOptions, "the _id field does not support TTL indexes")
		case !had && arg.Count(pattern) != 1:
			return servererr.New(servererr.InvalidOptions, "TTL indexes are single-field indexes, compound indexes do not support TTL")
		}
	}
	if c.unique != nil {
		m.count++
		switch {
		case !*c.unique:
			return servererr.New(servererr.BadValue, "Cannot make index non-unique")
		case isID || c.oldFlag("unique"):
			c.unique = nil
		case !c.oldFlag("prepareUnique"):
			return servererr.New(servererr.InvalidOptions, "Cannot make index unique with collMod without first setting prepareUnique")
		}
	}
	if c.hidden != nil {
		m.count++
		switch {
		case strings.HasPrefix(m.coll.NS.Collection(), "system.") && !m.series:
			return servererr.New(servererr.BadValue, "Can't hide index on system collection")
		case isID:
			return servererr.New(servererr.BadValue, "can't hide _id index")
		case *c.hidden == c.oldFlag("hidden"):
			c.hidden = nil
		}
	}
	if c.prepare != nil {
		m.count++
		// On an index that is unique, as that on _id is, it changes nothing (parseCollModRequest in coll_mod.cpp).
		if isID || c.oldFlag("unique") || *c.prepare == c.oldFlag("prepareUnique") {
			c.prepare = nil
		}
	}
	if c.force != nil {
		m.count++
		switch {
		case !*c.force:
			return servererr.New(servererr.BadValue, "'forceNonUnique: false' is not supported")
		case !c.oldFlag("unique"):
			c.force = nil
		}
	}
	m.count-- // the argument index itself is none
	if c.expire != nil || len(c.flags()) > 0 {
		m.o = c.appendCommand(m.o)
	}
	return nil
}

// parse reads the argument, which names the index or gives its key.
func (c *indexChange) parse(s *dispatch.Server, doc bson.Raw) (name string, key bson.Raw, err error) {
	const structName = "collMod.index"
	named := false
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !knowsField(s, it.Name()) {
			if !s.AtLeast(5, 0) {
				continue // 4.4 looks only for the fields that it knows (parseCollModRequest in coll_mod.cpp)
			}
			return "", nil, dispatch.UnknownField(structName, it.Name())
		}
		wants := []string{"bool", "long", "int", "decimal", "double"}
		var flag, ok bool
		switch field := it.Name(); field {
		case "name":
			wants, named = []string{"string"}, true
			name, ok = it.Text()
		case "keyPattern":
			wants = []string{"object"}
			key, ok = it.Document()
		case "expireAfterSeconds":
			wants = []string{"long", "int", "decimal", "double"}
			v := it.Raw()
			n := arg.Int64(v)
			c.expire, ok = &n, v.IsNumber()
		case "hidden":
			flag, ok = arg.Flag(it.Raw())
			c.hidden = &flag
		case "unique", "prepareUnique":
			if flag, ok = arg.Flag(it.Raw()); field == "unique" {
				c.unique = &flag
			} else {
				c.prepare = &flag
			}
		case "forceNonUnique":
			flag, ok = arg.Flag(it.Raw())
			c.force = &flag
		}
		if !ok {
			return "", nil, dispatch.WrongType(structName, it.Name(), it.Type, wants...)
		}
	}
	switch {
	case named && key != nil:
		return "", nil, servererr.New(servererr.InvalidOptions, "Cannot specify both key pattern and name.")
	case !named && key == nil:
		return "", nil, servererr.New(servererr.InvalidOptions, "Must specify either index name or key pattern.")
	case (c.unique != nil || c.prepare != nil) && s.FCV[0] < 6:
		return "", nil, servererr.New(servererr.InvalidOptions, "collMod does not support converting an index to 'unique' or to 'prepareUnique' mode")
	case c.unique != nil && c.force != nil:
		return "", nil, servererr.New(servererr.InvalidOptions, "collMod does not support 'unique' and 'forceNonUnique' options at the same time")
	case c.expire != nil || c.hidden != nil || c.unique != nil || c.prepare != nil || c.force != nil:
		return name, key, nil
	case s.AtLeast(6, 0):
		return "", nil, servererr.New(servererr.InvalidOptions, "no expireAfterSeconds, hidden, unique, or prepareUnique field")
	}
	return "", nil, servererr.New(servererr.InvalidOptions, "no expireAfterSeconds or hidden field")
}

// knowsField reports whether the server has a field of the argument (coll_mod.idl).
func knowsField(s *dispatch.Server, name string) bool {
	switch name {
	case "name", "keyPattern", "expireAfterSeconds", "hidden":
		return true
	case "unique", "prepareUnique":
		return s.AtLeast(6, 0)
	case "forceNonUnique":
		return s.AtLeast(6, 1)
	}
	return false
}

// indexFor finds an index by its name or, with key not nil, by its key.
func indexFor(coll *storage.Collection, name string, key bson.Raw) (storage.Index, error) {
	if key == nil {
		for _, index := range coll.Indexes {
			if index.Name == name && !index.Building {
				return index, nil
			}
		}
		return storage.Index{}, servererr.New(servererr.IndexNotFound, "cannot find index %s for ns %s", name, coll.NS)
	}
	found := indexesByKey(coll, key)
	switch len(found) {
	case 0:
		return storage.Index{}, servererr.New(servererr.IndexNotFound, "cannot find index %s for ns %s", bsontext.Document(key), coll.NS)
	case 1:
		return found[0], nil
	}
	return storage.Index{}, servererr.New(servererr.AmbiguousIndexKeyPattern,
		"index keyPattern %s matches %d indexes, must use index name. Conflicting indexes:%s, %s",
		bsontext.Document(key), len(found), bsontext.Document(found[0].Spec), bsontext.Document(found[1].Spec))
}

// indexesByKey are the indexes on a key, whose numbers count by their value.
func indexesByKey(coll *storage.Collection, key bson.Raw) (found []storage.Index) {
	wanted := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: key}
	for _, index := range coll.Indexes {
		if e, ok := rawbson.Lookup(index.Spec, "key"); ok && bsonorder.Compare(e.Raw(), wanted, nil) == 0 {
			found = append(found, index)
		}
	}
	return found
}

func (c *indexChange) appendCommand(o []byte) []byte {
	i, o := bsoncore.AppendDocumentElementStart(o, "index")
	o = bsoncore.AppendStringElement(o, "name", c.index.Name)
	if c.expire != nil {
		o = bsoncore.AppendInt64Element(o, "expireAfterSeconds", *c.expire)
	}
	for _, f := range c.flags() {
		o = bsoncore.AppendBooleanElement(o, f.name, *f.value)
	}
	o, _ = bsoncore.AppendDocumentEnd(o, i)
	return o
}

type indexFlag struct {
	name  string
	value *bool
}

// flags are the given boolean changes, in the server's order.
func (c *indexChange) flags() []indexFlag {
	var given []indexFlag
	for _, f := range []indexFlag{{"hidden", c.hidden}, {"unique", c.unique}, {"prepareUnique", c.prepare}, {"forceNonUnique", c.force}} {
		if f.value != nil {
			given = append(given, f)
		}
	}
	return given
}

func (c *indexChange) old(name string) (rawbson.Elem, bool) {
	return rawbson.Lookup(c.index.Spec, name)
}

func (c *indexChange) oldFlag(name string) bool {
	e, ok := c.old(name)
	if !ok {
		return false
	}
	on, _ := arg.Flag(e.Raw())
	return on
}

func (c *indexChange) appendOld(o2 []byte) []byte {
	if c.expire != nil {
		if e, ok := c.old("expireAfterSeconds"); ok {
			o2 = bsoncore.AppendInt64Element(o2, "expireAfterSeconds_old", arg.Int64(e.Raw()))
		}
	}
	if c.hidden != nil {
		o2 = bsoncore.AppendBooleanElement(o2, "hidden_old", c.oldFlag("hidden"))
	}
	return o2
}

func (c *indexChange) appendReply(s *dispatch.Server, dst []byte) []byte {
	if c.expire != nil {
		switch e, ok := c.old("expireAfterSeconds"); {
		case ok && !s.AtLeast(5, 0): // of whatever type it was
			dst = bsoncore.AppendValueElement(dst, "expireAfterSeconds_old", bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
		case ok:
			dst = dispatch.AppendNumber(dst, "expireAfterSeconds_old", arg.Int64(e.Raw()))
		}
		dst = dispatch.AppendNumber(dst, "expireAfterSeconds_new", *c.expire)
	}
	for _, f := range c.flags() {
		if f.name != "unique" && f.name != "forceNonUnique" {
			dst = bsoncore.AppendBooleanElement(dst, f.name+"_old", c.oldFlag(f.name))
		}
		dst = bsoncore.AppendBooleanElement(dst, f.name+"_new", *f.value)
	}
	return dst
}

// refusal converts the store's error for an index that becomes unique.
func (c *indexChange) refusal(err error) error {
	e, ok := errors.AsType[*servererr.Error](err)
	if c == nil || c.unique == nil || !ok || e.Code != servererr.DuplicateKey {
		return err
	}
	return servererr.New(servererr.CannotConvertIndexToUnique,
		"Cannot convert the index to unique. Please resolve conflicting documents before running collMod again.")
}
