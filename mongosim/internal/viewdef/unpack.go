package viewdef

import (
	"iter"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
)

// UnpackStage is the stage that the pipeline of a time-series collection begins
// with. It may stand nowhere else.
const UnpackStage = "$_internalUnpackBucket"

// CheckPipeline refuses a pipeline that cannot define a view.
func CheckPipeline(array bson.Raw) error {
	stages, err := Stages(array)
	if err != nil {
		return err
	}
	_, rest, err := SplitUnpack(stages)
	if err != nil {
		return err
	}
	for _, stage := range rest {
		switch name := string(arg.First(stage).Key); name {
		case "$out", "$merge", "$changeStream":
			return servererr.New(servererr.OptionNotSupportedOnView, "The aggregation stage %s in location 0 of the pipeline cannot be used in a view definition", name)
		}
	}
	return serverquery.CheckPipeline(rest, serverquery.Options{})
}

// Unpacker makes measurements of a time-series collection's buckets.
type Unpacker struct{ TimeField, MetaField string }

// SplitUnpack separates the unpacking stage, if there is one, from the rest.
func SplitUnpack(stages []bson.Raw) (*Unpacker, []bson.Raw, error) {
	if len(stages) == 0 {
		return nil, stages, nil
	}
	first := arg.First(stages[0])
	if !first.Is(UnpackStage) {
		return nil, stages, nil
	}
	spec, _ := first.Document()
	u := &Unpacker{}
	it := rawbson.NewIter(spec)
	for it.Next() {
		text, _ := it.Text()
		switch it.Name() {
		case "timeField":
			u.TimeField = strings.Clone(text)
		case "metaField":
			u.MetaField = strings.Clone(text)
		case "exclude":
			if array, ok := it.Array(); ok && len(array) > rawbson.MinSize {
				return nil, nil, servererr.New(servererr.NotImplemented, "%s with exclude is not implemented here", UnpackStage)
			}
		case "bucketMaxSpanSeconds":
		default:
			return nil, nil, servererr.New(servererr.NotImplemented, "%s with %s is not implemented here", UnpackStage, it.Name())
		}
	}
	if u.TimeField == "" {
		return nil, nil, servererr.New(5346508, "The $_internalUnpackBucket stage requires a timeField parameter")
	}
	return u, stages[1:], nil
}

// Stream unpacks the buckets of in.
func (u *Unpacker) Stream(in iter.Seq[bson.Raw], fault *error) iter.Seq[bson.Raw] {
	return func(yield func(bson.Raw) bool) {
		for bucket := range in {
			for doc, err := range u.measurements(bucket) {
				if err != nil {
					*fault = err
					return
				}
				if !yield(doc) {
					return
				}
			}
		}
	}
}

// measurements yields the contents of a bucket: the time, the metadata, then the
// other columns in the bucket's order.
func (u *Unpacker) measurements(bucket bson.Raw) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		control, _ := rawbson.Lookup(bucket, "control")
		inner, _ := control.Document()
		version, _ := rawbson.Lookup(inner, "version")
		v := version.Raw()
		if n := arg.Int64(v); !v.IsNumber() || n != 1 {
			yield(nil, servererr.New(servererr.NotImplemented, "buckets of version %d are not implemented here", n))
			return
		}
		meta, hasMeta := rawbson.Lookup(bucket, "meta")
		field, _ := rawbson.Lookup(bucket, "data")
		data, _ := field.Document()
		var times rawbson.Iter
		columns, names := []rawbson.Iter{}, []string{}
		it := rawbson.NewIter(data)
		for it.Next() {
			column, _ := it.Document()
			if it.Is(u.TimeField) {
				times = rawbson.NewIter(column)
				continue
			}
			values := rawbson.NewIter(column)
			values.Next()
			columns, names = append(columns, values), append(names, it.Name())
		}
		for times.Next() {
			start, doc := bsoncore.AppendDocumentStart(nil)
			doc = arg.Append(doc, u.TimeField, &times.Elem)
			if hasMeta && u.MetaField != "" {
				doc = arg.Append(doc, u.MetaField, &meta)
			}
			for i := range columns {
				if column := &columns[i]; column.Type != 0 && string(column.Key) == string(times.Key) {
					doc = arg.Append(doc, names[i], &column.Elem)
					if !column.Next() {
						column.Type = 0
					}
				}
			}
			doc, _ = bsoncore.AppendDocumentEnd(doc, start)
			if !yield(doc, nil) {
				return
			}
		}
	}
}
