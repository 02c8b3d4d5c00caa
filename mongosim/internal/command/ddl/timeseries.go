package ddl

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// bucketSpans are the seconds that a bucket may span, by granularity.
var bucketSpans = map[string]int32{"seconds": 3600, "minutes": 86400, "hours": 2592000}

// checkTimeseries checks the arguments of a time-series collection.
func (a *createOptions) checkTimeseries(r *dispatch.Request) error {
	series := a.doc("timeseries")
	if series == nil {
		return nil
	}
	for _, name := range a.names {
		switch name {
		case "timeseries", "storageEngine", "indexOptionDefaults", "collation", "expireAfterSeconds", "flags":
			continue
		case "capped":
			if !a.flag(name) {
				continue
			}
		}
		return servererr.New(servererr.InvalidOptions, "%s: 'timeseries' is not allowed with '%s'", a.ns, name)
	}
	it := rawbson.NewIter(series)
	for it.Next() {
		switch name := it.Name(); name {
		case "timeField", "metaField", "granularity":
			if it.Type != bson.TypeString {
				return dispatch.WrongType("create.timeseries", name, it.Type, "string")
			}
		case "bucketMaxSpanSeconds":
			v := it.Raw()
			if !v.IsNumber() {
				return dispatch.WrongType("create.timeseries", name, it.Type, "long", "int", "decimal", "double")
			}
		case "bucketRoundingSeconds":
			if r.Server.AtLeast(6, 3) {
				return servererr.New(servererr.NotImplemented, "create with timeseries.%s is not implemented here", name)
			}
			return dispatch.UnknownField("create.timeseries", name)
		default:
			return dispatch.UnknownField("create.timeseries", name)
		}
	}
	return a.checkSeriesFields(series)
}

func (a *createOptions) checkSeriesFields(series bson.Raw) error {
	timeField, ok := arg.Text(series, "timeField")
	if !ok {
		return dispatch.MissingField("create.timeseries", "timeField")
	}
	metaField, hasMeta := arg.Text(series, "metaField")
	granularity, span := granularityOf(series)
	switch {
	case strings.Contains(timeField, "."):
		return servererr.New(servererr.InvalidOptions, "%s: 'timeField' must be a top-level field and not contain a '.'", a.ns)
	case hasMeta && metaField == "_id":
		return servererr.New(servererr.InvalidOptions, "'metaField' cannot be \"_id\"")
	case hasMeta && metaField == timeField:
		return servererr.New(servererr.InvalidOptions, "'metaField' cannot be the same as 'timeField'")
	case strings.Contains(metaField, "."):
		return servererr.New(servererr.InvalidOptions, "%s: 'metaField' must be a top-level field and not contain a '.'", a.ns)
	case span == 0:
		return servererr.New(servererr.BadValue,
			"Enumeration value '%s' for field 'create.timeseries.granularity' is not a valid value.", granularity)
	}
	if e, ok := rawbson.Lookup(series, "bucketMaxSpanSeconds"); ok && arg.Int64(e.Raw()) != int64(span) {
		return servererr.New(5510500, "Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of %d "+
			"for the provided granularity", span)
	}
	return nil
}

// granularityOf is how wide the buckets are, by name and in seconds: 0 for a name
// that is none.
func granularityOf(series bson.Raw) (name string, span int32) {
	name, given := arg.Text(series, "granularity")
	if !given {
		name = "seconds"
	}
	return name, bucketSpans[name]
}

// bucketOptions are the options of the collection of buckets.
func bucketOptions(r *dispatch.Request, args *createOptions) (bson.Raw, error) {
	series := args.doc("timeseries")
	timeField, ok := arg.Text(series, "timeField")
	if !ok {
		return nil, dispatch.MissingField("create.timeseries", "timeField")
	}
	granularity, span := granularityOf(series)
	i, options := bsoncore.AppendDocumentStart(nil)
	options = bsoncore.AppendDocumentElement(options, "validator", bucketValidator(timeField, r.Server.AtLeast(5, 0)))
	if args.collation != nil {
		options = bsoncore.AppendDocumentElement(options, "collation", args.collation)
	}
	options = bsoncore.AppendBooleanElement(options, "clusteredIndex", true)
	if args.has("expireAfterSeconds") {
		options = bsoncore.AppendInt64Element(options, "expireAfterSeconds", args.number("expireAfterSeconds"))
	}
	t, options := bsoncore.AppendDocumentElementStart(options, "timeseries")
	options = bsoncore.AppendStringElement(options, "timeField", timeField)
	if metaField, ok := arg.Text(series, "metaField"); ok {
		options = bsoncore.AppendStringElement(options, "metaField", metaField)
	}
	options = bsoncore.AppendStringElement(options, "granularity", granularity)
	options = bsoncore.AppendInt32Element(options, "bucketMaxSpanSeconds", span)
	options, _ = bsoncore.AppendDocumentEnd(options, t)
	options, _ = bsoncore.AppendDocumentEnd(options, i)
	return options, nil
}

// supportSeries makes the index on the meta field and the time that servers since
// 6.3 give a time-series collection by themselves. It is logged like any other.
func supportSeries(r *dispatch.Request, ops opwrite.Ops, series bson.Raw, buckets oplog.Namespace) error {
	meta, hasMeta := arg.Text(series, "metaField")
	if !hasMeta || !r.Server.AtLeast(6, 3) {
		return nil
	}
	timeField, _ := arg.Text(series, "timeField")
	key := bsoncore.NewDocumentBuilder().AppendInt32("meta", 1).
		AppendInt32("control.min."+timeField, 1).AppendInt32("control.max."+timeField, 1).Build()
	spec := bsoncore.NewDocumentBuilder().AppendInt32("v", 2).AppendDocument("key", key).
		AppendString("name", meta+"_1_"+timeField+"_1").Build()
	coll, _ := ops.View().Collection(buckets)
	return ops.CreateIndexes(coll, []bson.Raw{bson.Raw(spec)})
}

// createTimeseries creates the collection of buckets, unless an equal one
// exists, and the view of the name on it. If the name is that of buckets, it makes no view.
func createTimeseries(r *dispatch.Request, ops opwrite.Ops, args *createOptions) error {
	options, err := bucketOptions(r, args)
	if err != nil {
		return err
	}
	buckets := args.ns.Series().Buckets()
	if err := CheckCreateName(buckets); err != nil {
		return err
	}
	if existing, exists := ops.View().Collection(buckets); !exists {
		if _, err := ops.Create(buckets, options, nil); err != nil {
			return err
		}
		if err := supportSeries(r, ops, args.doc("timeseries"), buckets); err != nil {
			return err
		}
	} else if string(existing.Options) != string(options) {
		return servererr.New(servererr.NamespaceExists, "Bucket Collection already exists. NS: %s. UUID: %s", buckets, existing.UUID)
	}
	if args.ns.IsBuckets() {
		return nil // as a $out creates them
	}
	series := args.doc("timeseries")
	timeField, _ := arg.Text(series, "timeField")
	metaField, hasMeta := arg.Text(series, "metaField")
	_, span := granularityOf(series)
	p, pipeline := bsoncore.AppendArrayStart(nil)
	s, pipeline := bsoncore.AppendDocumentElementStart(pipeline, "0")
	u, pipeline := bsoncore.AppendDocumentElementStart(pipeline, viewdef.UnpackStage)
	pipeline = bsoncore.AppendStringElement(pipeline, "timeField", timeField)
	if hasMeta {
		pipeline = bsoncore.AppendStringElement(pipeline, "metaField", metaField)
	}
	pipeline = bsoncore.AppendInt32Element(pipeline, "bucketMaxSpanSeconds", span)
	pipeline = bsoncore.AppendArrayElement(pipeline, "exclude", dispatch.EmptyArray)
	pipeline, _ = bsoncore.AppendDocumentEnd(pipeline, u)
	pipeline, _ = bsoncore.AppendDocumentEnd(pipeline, s)
	pipeline, _ = bsoncore.AppendArrayEnd(pipeline, p)
	def := viewdef.Def{On: buckets.Collection(), Pipeline: pipeline, Collation: args.collation}
	return InsertView(ops, args.ns, viewdef.Document(args.ns, def))
}

// collModTimeseries changes the collection of buckets, and its view if their
// width changes.
func collModTimeseries(r *dispatch.Request, b *opwrite.Batch, ns oplog.Namespace, def viewdef.Def, out *dispatch.Reply) error {
	buckets, ok := b.View().Collection(ns.Buckets())
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns does not exist")
	}
	if err := collMod(r, b, buckets, out); err != nil {
		return err
	}
	changed, _ := b.View().ByUUID(buckets.UUID)
	e, _ := rawbson.Lookup(changed.Options, "timeseries")
	series, _ := e.Document()
	_, span := granularityOf(series)
	if def.Pipeline, ok = withSpan(def.Pipeline, span); !ok {
		return nil
	}
	return replaceView(b, ns, def)
}

// checkGranularity allows wider buckets only.
func (m *modification) checkGranularity(e rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return dispatch.WrongType("collMod", "timeseries", e.Type, "object")
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "granularity":
		case "bucketMaxSpanSeconds", "bucketRoundingSeconds":
			return servererr.New(servererr.NotImplemented, "collMod with timeseries.%s is not implemented here", it.Name())
		default:
			return dispatch.UnknownField("collMod.timeseries", it.Name())
		}
		text, isText := it.Text()
		span, known := bucketSpans[text]
		switch {
		case !isText:
			return dispatch.WrongType("collMod.timeseries", "granularity", it.Type, "string")
		case !known:
			return notInEnum("collMod.timeseries.granularity", it.Raw())
		}
		was, _ := rawbson.Lookup(m.coll.Options, "timeseries")
		series, _ := was.Document()
		if old, ok := arg.Text(series, "granularity"); ok && bucketSpans[old] > span {
			return servererr.New(servererr.InvalidOptions, "Invalid transition for timeseries.granularity. "+
				"Can only transition from 'seconds' to 'minutes' or 'minutes' to 'hours'.")
		}
	}
	return nil
}

// withSpan gives the unpacking stage that a pipeline begins with another width of
// buckets, in seconds. ok is false if that changes nothing.
func withSpan(pipeline bson.Raw, span int32) (changed bson.Raw, ok bool) {
	p, out := bsoncore.AppendArrayStart(nil)
	stages := rawbson.NewIter(pipeline)
	for stages.Next() {
		stage, _ := stages.Document()
		first := dispatch.FirstElem(stage)
		spec, isDoc := first.Document()
		if !first.Is(viewdef.UnpackStage) || !isDoc {
			out = bsoncore.AppendDocumentElement(out, stages.Name(), stage)
			continue
		}
		s, dst := bsoncore.AppendDocumentElementStart(out, stages.Name())
		u, dst := bsoncore.AppendDocumentElementStart(dst, viewdef.UnpackStage)
		it := rawbson.NewIter(spec)
		for it.Next() {
			if n, isInt := it.Raw().Int32OK(); isInt && it.Is("bucketMaxSpanSeconds") {
				dst = bsoncore.AppendInt32Element(dst, "bucketMaxSpanSeconds", span)
				ok = ok || n != span
				continue
			}
			dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
		}
		dst, _ = bsoncore.AppendDocumentEnd(dst, u)
		out, _ = bsoncore.AppendDocumentEnd(dst, s)
	}
	out, _ = bsoncore.AppendArrayEnd(out, p)
	return out, ok
}

// bucketValidator is the schema that the server gives a collection of buckets.
func bucketValidator(timeField string, closed bool) bson.Raw {
	object := func(fields ...any) bson.D {
		d := bson.D{}
		for i := 0; i < len(fields); i += 2 {
			d = append(d, bson.E{Key: fields[i].(string), Value: fields[i+1]})
		}
		return d
	}
	bounds := object("bsonType", "object", "required", bson.A{timeField},
		"properties", object(timeField, object("bsonType", "date")))
	control := object("version", object("bsonType", "number"), "min", bounds, "max", bounds)
	if closed {
		control = append(control, bson.E{Key: "closed", Value: object("bsonType", "bool")})
	}
	doc, err := bson.Marshal(object("$jsonSchema", object(
		"bsonType", "object",
		"required", bson.A{"_id", "control", "data"},
		"properties", object(
			"_id", object("bsonType", "objectId"),
			"control", object("bsonType", "object", "required", bson.A{"version", "min", "max"}, "properties", control),
			"data", object("bsonType", "object"),
			"meta", object()),
		"additionalProperties", false)))
	if err != nil {
		panic("command: the bucket validator is always valid BSON: " + err.Error())
	}
	return doc
}
