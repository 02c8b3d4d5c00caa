package read

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// findOnView runs a find on a view as the pipeline that it stands for.
func findOnView(ctx context.Context, r *dispatch.Request, t *Target, a *FindArgs, args pipelineArgs, out *dispatch.Reply) error {
	stages, err := a.stages()
	if err != nil {
		args.free()
		return err
	}
	args.batchSize, args.hint, args.collation = a.BatchSize, a.hint, a.Collation
	return runPipeline(ctx, r, t, stages, args, out)
}

// stages turns a find into the stages that do the same, as far as there are any.
func (a *FindArgs) stages() ([]bson.Raw, error) {
	unfit := func(what string) ([]bson.Raw, error) {
		return nil, servererr.New(servererr.InvalidPipelineOperator, "%s not supported in aggregation.", what)
	}
	_, natural := rawbson.Lookup(a.Sort, "$natural")
	switch {
	case a.recordID:
		return unfit("Option showRecordId")
	case a.tailable:
		return nil, servererr.New(servererr.InvalidPipelineOperator, "Tailable cursors are not supported in aggregation.")
	case a.noTimeout:
		return unfit("Option noCursorTimeout")
	case a.partial:
		return unfit("Option allowPartialResults")
	case natural:
		return unfit("Sort option $natural")
	case a.singleBatch && a.limit != 1:
		return unfit("Option singleBatch")
	case a.readOnce:
		return unfit("Option readOnce")
	case a.token:
		return unfit("Option $_requestResumeToken")
	}
	if _, err := serverquery.Compile(a.Filter, serverquery.Options{}); err != nil {
		return nil, err
	}
	var stages []bson.Raw
	stage := func(name string, doc bson.Raw) {
		if len(doc) > rawbson.MinSize {
			stages = append(stages, bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, name, doc)))
		}
	}
	number := func(name string, n int64) {
		if n > 0 {
			stages = append(stages, bsoncore.BuildDocument(nil, bsoncore.AppendInt64Element(nil, name, n)))
		}
	}
	stage("$match", a.Filter)
	stage("$sort", a.Sort)
	number("$skip", a.skip)
	number("$limit", a.limit)
	stage("$project", a.projection)
	return stages, nil
}
