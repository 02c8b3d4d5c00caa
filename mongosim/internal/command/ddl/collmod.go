package ddl

import (
	"context"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// collModFields are the arguments of collMod.
var collModFields = []string{
	"index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline", "recordPreImages",
	"changeStreamPreAndPostImages", "expireAfterSeconds", "timeseries", "cappedSize", "cappedMax", "dryRun", mixedField, uuidField,
}

// mixedField says whether buckets of a time series may have values of several types in a field. It
// has no effect here: such buckets are always accepted.
const mixedField = "timeseriesBucketsMayHaveMixedSchemaData"

// collModSince are the versions that brought arguments which 4.4 does not have.
var collModSince = map[string][2]int{
	"expireAfterSeconds": {5, 0}, "timeseries": {5, 0}, "changeStreamPreAndPostImages": {6, 0},
	"cappedSize": {6, 0}, "cappedMax": {6, 0}, "dryRun": {6, 0}, mixedField: {6, 0}, uuidField: {6, 0},
}

func runCollMod(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	it := rawbson.NewIter(r.Cmd)
	for it.Next() {
		if since := collModSince[it.Name()]; !r.Server.AtLeast(since[0], since[1]) || it.Is("recordPreImages") && r.Server.AtLeast(6, 2) {
			return unknownCollMod(r, it.Name())
		}
	}
	want, err := expected(r, uuidField)
	if err != nil {
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		if err := meant(b.View(), ns, want); err != nil {
			return err
		}
		if coll, ok := b.View().Collection(ns); ok {
			if err := notBuilding(coll); err != nil {
				return err
			}
			return collMod(r, b, coll, out)
		}
		def, isView, err := viewdef.Lookup(b.View(), ns)
		switch {
		case err != nil:
			return err
		case isView && def.Timeseries:
			return collModTimeseries(r, b, ns, def, out)
		case isView:
			return collModView(r, b, ns, def)
		}
		return servererr.New(servererr.NamespaceNotFound, "ns does not exist")
	})
}

func unknownCollMod(r *dispatch.Request, name string) error {
	if r.Server.AtLeast(5, 0) {
		return dispatch.UnknownField("collMod", name)
	}
	return servererr.New(servererr.InvalidOptions, "unknown option to collMod: %s", name)
}

// collModView replaces a view's definition. Fields that are not given stay.
func collModView(r *dispatch.Request, b *opwrite.Batch, ns oplog.Namespace, def viewdef.Def) error {
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	for it.Next() {
		switch name := it.Name(); name {
		case "viewOn":
			text, ok := it.Text()
			if !ok {
				return servererr.New(servererr.InvalidOptions, "'viewOn' option must be a string")
			}
			if text != "" {
				def.On = text
			}
		case "pipeline":
			var ok bool
			if def.Pipeline, ok = it.Array(); !ok {
				return servererr.New(servererr.InvalidOptions, "not a valid aggregation pipeline")
			}
		default:
			if isCollModField(name) {
				return servererr.New(servererr.InvalidOptions, "option not supported on a view: %s", name)
			}
		}
	}
	if err := checkDefinition(ns, def); err != nil {
		return err
	}
	if err := viewdef.CheckGraph(b.View(), ns, def); err != nil {
		return err
	}
	return replaceView(b, ns, def)
}

func isCollModField(name string) bool { return slices.Contains(collModFields, name) }

// replaceView stores another definition of a view.
func replaceView(b *opwrite.Batch, ns oplog.Namespace, def viewdef.Def) error {
	views, ok := b.View().Collection(oplog.NewNamespace(ns.DB(), "system.views"))
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns does not exist")
	}
	old, ok := viewRecord(views, ns)
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "cannot modify missing view %s", ns)
	}
	return b.Update(views, old, opwrite.Update{Post: viewdef.Document(ns, def)}, opwrite.Stmt{})
}

// modification is a collMod of a collection while it is assembled.
type modification struct {
	r    *dispatch.Request
	coll *storage.Collection
	// series is true if it has the buckets of a time-series collection.
	series bool
	// o is the command as logged, unfinished.
	o     []byte
	index *indexChange
	// count is how many things are changed.
	count int
}

// collMod changes options and at most one index of a collection.
func collMod(r *dispatch.Request, b *opwrite.Batch, coll *storage.Collection, out *dispatch.Reply) error {
	m := modification{r: r, coll: coll}
	_, m.series = rawbson.Lookup(coll.Options, "timeseries")
	var start int32
	start, m.o = bsoncore.AppendDocumentStart(nil)
	m.o = bsoncore.AppendStringElement(m.o, "collMod", coll.NS.Collection())
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	for it.Next() {
		if err := m.take(it.Elem); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return servererr.New(servererr.InvalidBSON, "collMod: %s", err)
	}
	if m.index != nil && m.index.prepare != nil && m.count > 1 {
		return servererr.New(servererr.InvalidOptions, "prepareUnique cannot be combined with any other modification.")
	}
	m.o, _ = bsoncore.AppendDocumentEnd(m.o, start)
	options, index, spec, err := replay.Modified(coll, commandTail(m.o))
	if err != nil {
		return servererr.New(servererr.InvalidOptions, "collMod of %s: %s", coll.NS, err)
	}
	if err := b.CollMod(coll, options, index, spec, m.o, m.oldState()); err != nil {
		return m.index.refusal(err)
	}
	if m.index != nil {
		out.Buf = m.index.appendReply(m.r.Server, out.Buf)
	}
	return nil
}

// take adds one argument.
func (m *modification) take(e rawbson.Elem) error {
	name := e.Name()
	if !isCollModField(name) || name == uuidField || e.Type == bson.TypeNull || e.Type == bson.TypeUndefined {
		return nil
	}
	m.count++
	if m.series {
		switch name {
		case "validator", "validationLevel", "validationAction", "recordPreImages", "changeStreamPreAndPostImages", "cappedSize", "cappedMax":
			return servererr.New(servererr.InvalidOptions, "option not supported on a time-series collection: %s", name)
		}
	}
	switch name {
	case "index":
		return m.takeIndex(e)
	case "validator", "validationLevel", "validationAction":
		if err := m.checkValidation(name, e); err != nil {
			return err
		}
	case "recordPreImages":
		if _, ok := arg.Flag(e.Raw()); !ok {
			return dispatch.WrongType("collMod", name, e.Type, "bool", "long", "int", "decimal", "double")
		}
		if m.r.Server.AtLeast(6, 0) {
			return nil // accepted for old programs only
		}
	case "changeStreamPreAndPostImages":
		doc, ok := e.Document()
		if !ok {
			return dispatch.WrongType("collMod", name, e.Type, "object")
		}
		if _, err := imagesEnabled("collMod", doc); err != nil {
			return err
		}
	case "cappedSize", "cappedMax":
		return m.takeLimit(name, e)
	case "expireAfterSeconds":
		return m.takeAge(e)
	case mixedField, "timeseries":
		if err := m.checkSeries(name, e); err != nil {
			return err
		}
	case "viewOn", "pipeline":
		return servererr.New(servererr.InvalidOptions, "'%s' option only supported on a view", name)
	case "dryRun":
		if on, _ := arg.Flag(e.Raw()); on {
			return servererr.New(servererr.NotImplemented, "collMod with dryRun is not implemented here")
		}
		return nil
	}
	m.o = bsoncore.AppendValueElement(m.o, name, bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
	return nil
}

// checkSeries checks an argument about a time series.
func (m *modification) checkSeries(name string, e rawbson.Elem) error {
	switch {
	case !m.series:
		return servererr.New(servererr.InvalidOptions, "option only supported on a time-series collection: %s", name)
	case name == "timeseries":
		return m.checkGranularity(e)
	case e.Type != bson.TypeBoolean:
		return dispatch.WrongType("collMod", name, e.Type, "bool")
	}
	return nil
}

// checkValidation checks an argument about the validator.
func (m *modification) checkValidation(name string, e rawbson.Elem) error {
	doc, isDoc := e.Document()
	switch {
	case name == "validator" && !isDoc:
		return dispatch.WrongType("collMod", name, e.Type, "object")
	case name == "validator":
		return checkValidatorOn(m.r.Server, m.coll.NS, doc)
	case e.Type != bson.TypeString:
		return dispatch.WrongType("collMod", name, e.Type, "string")
	case name == "validationLevel" && !oneOf(e.Raw(), "off", "strict", "moderate"),
		name == "validationAction" && !isAction(m.r.Server, e.Raw()):
		return notInEnum("collMod."+name, e.Raw())
	}
	return nil
}

// takeLimit adds a new limit of a capped collection.
func (m *modification) takeLimit(name string, e rawbson.Elem) error {
	v := e.Raw()
	n := arg.Int64(v)
	switch {
	case !v.IsNumber():
		return dispatch.WrongType("collMod", name, e.Type, "long", "int", "decimal", "double")
	case m.coll.CappedBytes == 0:
		return servererr.New(servererr.InvalidOptions, "option only supported on a capped collection: %s", name)
	case name == "cappedSize" && (n < 1 || roundedSize(n) > maxCapped):
		return servererr.New(51024, "BSON field '%s' value must be >= 1, actual value '%d'", name, n)
	case name == "cappedMax" && n > math.MaxInt32:
		return servererr.New(servererr.BadValue, "max in a capped collection has to be < 2^31 or not set")
	}
	m.o = bsoncore.AppendInt64Element(m.o, name, n)
	return nil
}

// takeAge adds a new age at which documents of a clustered collection expire.
func (m *modification) takeAge(e rawbson.Elem) error {
	if _, clustered := rawbson.Lookup(m.coll.Options, "clusteredIndex"); !clustered {
		return servererr.New(servererr.InvalidOptions,
			"'expireAfterSeconds' option is only supported on collections clustered by _id")
	}
	if text, ok := e.Text(); ok {
		if text != "off" {
			return servererr.New(servererr.InvalidOptions,
				"Invalid string value for the 'clusteredIndex::expireAfterSeconds' option. Got: '%s'. Accepted value is 'off'", text)
		}
		m.o = bsoncore.AppendStringElement(m.o, "expireAfterSeconds", text)
		return nil
	}
	v := e.Raw()
	if !v.IsNumber() {
		return dispatch.WrongType("collMod", "expireAfterSeconds", e.Type, "string", "long", "int", "decimal", "double")
	}
	n := arg.Int64(v)
	if err := checkAge(n, m.r.Server.Config.Now().Unix()); err != nil {
		return err
	}
	m.o = bsoncore.AppendInt64Element(m.o, "expireAfterSeconds", n)
	return nil
}

// oldState is the entry's description of the state before.
func (m *modification) oldState() bson.Raw {
	start, o2 := bsoncore.AppendDocumentStart(nil)
	c, o2 := bsoncore.AppendDocumentElementStart(o2, "collectionOptions_old")
	o2 = bsoncore.AppendBinaryElement(o2, "uuid", 4, m.coll.UUID[:])
	o2 = append(o2, m.coll.Options[4:len(m.coll.Options)-1]...)
	o2, _ = bsoncore.AppendDocumentEnd(o2, c)
	if m.index != nil {
		o2 = m.index.appendOld(o2)
	}
	o2, _ = bsoncore.AppendDocumentEnd(o2, start)
	return o2
}

// commandTail is a command without its first field.
func commandTail(cmd bson.Raw) bson.Raw {
	it := rawbson.NewIter(cmd)
	it.Next()
	i, doc := bsoncore.AppendDocumentStart(nil)
	for it.Next() {
		doc = bsoncore.AppendValueElement(doc, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}
