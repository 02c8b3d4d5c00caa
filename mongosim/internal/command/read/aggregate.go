package read

import (
	"context"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// pipelineArgs are the arguments of a pipeline other than its stages.
type pipelineArgs struct {
	collation bson.Raw
	hint      Hint
	batchSize int64 // -1 if not given

	look    dispatch.Looker
	at      bson.Timestamp
	release func()
}

var aggregateFields = []string{
	"pipeline", "cursor", "explain", "allowDiskUse", "bypassDocumentValidation", "collation", "hint", "let", "needsMerge",
	"fromMongos", "runtimeConstants", "legacyRuntimeConstants", "isMapReduceCommand", "exchange", "use44SortKeys",
	"unwrappedReadPref", "requestReshardingResumeToken",
}

func parseAggregate(cmd bson.Raw) (stages []bson.Raw, a pipelineArgs, err error) {
	a.batchSize = -1
	read := dispatch.ArgReader("aggregate")
	var piped, cursored, explain bool
	var let bson.Raw
	err = dispatch.EachArg(cmd, func(e *rawbson.Elem) (err error) {
		var flag bool
		switch name := e.Name(); name {
		case "pipeline":
			piped = true
			stages, err = serverquery.Stages(e.Raw())
		case "cursor":
			cursored = true
			a.batchSize, err = read.BatchSizeOf(e)
		case "explain":
			err = read.Bool(e, &explain)
		case "collation":
			err = read.Object(e, &a.collation)
		case "hint":
			a.hint, err = ParseHint(e)
		case "let":
			err = read.Object(e, &let)
		case "allowDiskUse", "bypassDocumentValidation", "use44SortKeys":
			err = read.Bool(e, &flag)
		case "fromMongos", "needsMerge", "isMapReduceCommand", "requestReshardingResumeToken":
			if err = read.Bool(e, &flag); err == nil && flag {
				err = servererr.New(servererr.NotImplemented, "aggregate option %s is not implemented here", name)
			}
		case "exchange", "runtimeConstants", "legacyRuntimeConstants", "unwrappedReadPref":
			err = servererr.New(servererr.NotImplemented, "aggregate option %s is not implemented here", name)
		}
		return err
	})
	switch {
	case err != nil:
	case !piped:
		err = dispatch.MissingField("aggregate", "pipeline")
	case explain:
		err = servererr.New(servererr.NotImplemented, "aggregate option explain is not implemented here")
	case !cursored:
		err = servererr.New(servererr.FailedToParse,
			"The 'cursor' option is required, except for aggregate with the explain argument")
	default:
		err = refuseLet(let)
	}
	return stages, a, err
}

func runAggregate(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	stages, a, err := parseAggregate(r.Cmd)
	if err != nil {
		return err
	}
	if err := mayReadStats(r, stages); err != nil {
		return err
	}
	first := dispatch.FirstElem(r.Cmd)
	if n, ok := dispatch.NumberArg(&first); ok {
		if n != 1 {
			return servererr.New(servererr.FailedToParse,
				"Invalid command format: the 'aggregate' field must specify a collection name or 1")
		}
		return databaseAggregate(stages)
	}
	if a.look, a.at, a.release, err = r.ReadAt(); err != nil {
		return err
	}
	var t Target
	err = a.look(func(s dispatch.Sight) (err error) { t, err = namedTarget(r, s); return err })
	if err != nil {
		a.free()
		return err
	}
	if source, rest := serverquery.SplitSource(stages); source != nil {
		return runSource(ctx, r, &t, source, rest, a, out)
	}
	return runPipeline(ctx, r, &t, stages, a, out)
}

// mayReadStats requires the privileges of the stages beyond reading the named
// collection.
func mayReadStats(r *dispatch.Request, stages []bson.Raw) error {
	if r.Server.Config.Auth == nil || r.Conn.Internal {
		return nil
	}
	source, _ := serverquery.SplitSource(stages)
	if source == nil {
		return nil
	}
	first, stage := dispatch.FirstElem(r.Cmd), dispatch.FirstElem(source)
	if coll, ok := first.Text(); ok && stage.Is("$collStats") {
		return r.Allowed("collStats", r.DB, coll)
	}
	return nil
}

// free ends a pin that no cursor took over.
func (a *pipelineArgs) free() {
	if a.release != nil {
		a.release()
	}
}

// databaseAggregate refuses pipelines without a collection: all sources that they
// could begin with are the server's own affairs.
func databaseAggregate(stages []bson.Raw) error {
	if source, rest := serverquery.SplitSource(stages); source != nil {
		name := dispatch.FirstElem(source)
		if name.Is("$documents") {
			return servererr.New(servererr.Code(5491300), "$documents' is not allowed in user requests")
		}
		if err := serverquery.CheckPipeline(rest, serverquery.Options{}); err != nil {
			return err
		}
		return servererr.New(servererr.NotImplemented, "the stage %s is not implemented here", name.Name())
	}
	if err := serverquery.CheckPipeline(stages, serverquery.Options{}); err != nil {
		return err
	}
	what := "an empty pipeline"
	if len(stages) > 0 {
		name := dispatch.FirstElem(stages[0])
		what = name.Name()
	}
	return servererr.New(servererr.InvalidNamespace,
		"{aggregate: 1} is not valid for '%s'; a collection is required.", what)
}

// runPipeline returns the result of the stages on the target.
func runPipeline(ctx context.Context, r *dispatch.Request, t *Target, stages []bson.Raw, a pipelineArgs, out *dispatch.Reply) error {
	f, err := pipeline(r, t, stages, &a)
	if err != nil {
		a.free()
		return err
	}
	return answerPipeline(ctx, r, t.NS, f, a, out)
}

func answerPipeline(ctx context.Context, r *dispatch.Request, ns oplog.Namespace, f dispatch.Feed, a pipelineArgs, out *dispatch.Reply) error {
	c := r.NewCursor(ns, f)
	c.At, c.Release = a.at, a.release
	limit := a.batchSize
	if limit < 0 {
		limit = firstBatchDocs
	}
	err := openCursor(ctx, r, c, a.look, limit, false, out)
	return executorError(err, "PlanExecutor error during aggregation")
}

// pipeline compiles stages on a collection or view.
func pipeline(r *dispatch.Request, t *Target, stages []bson.Raw, a *pipelineArgs) (dispatch.Feed, error) {
	base := *t
	if t.view != nil {
		if other, err := t.overrides(a.collation); err != nil || other {
			if err != nil {
				return nil, err
			}
			return nil, servererr.New(servererr.OptionNotSupportedOnView, "Cannot override a view's default collation %s", t.NS)
		}
		stages = append(append([]bson.Raw(nil), t.view.Stages...), stages...)
		err := a.look(func(s dispatch.Sight) (err error) { base, err = targetAt(s, t.view.NS); return err })
		if err != nil {
			return nil, err
		}
		base.collation = t.collation
	}
	unpack, stages, err := viewdef.SplitUnpack(stages)
	if err != nil {
		return nil, err
	}
	collator, same, err := base.Collator(a.collation)
	if err != nil {
		return nil, err
	}
	f := &pipeFeed{}
	p, err := serverquery.CompilePipeline(stages, serverquery.PipelineOptions{
		Options:   serverquery.Options{Collator: collator},
		Random:    r.Server.Random.Below,
		Interrupt: f.interrupt,
	})
	if err != nil {
		return nil, err
	}
	q := &Query{same: same && t.view == nil, Hint: a.hint}
	q.Debug = func() string { return DebugQuery(t.NS, &FindArgs{BatchSize: -1, Collation: a.collation}) }
	if leading := p.Leading(); leading != nil && unpack == nil {
		q.match = leading
		match := dispatch.FirstElem(stages[0])
		q.Filter, _ = match.Document()
	} else if q.match, err = serverquery.Compile(nil, serverquery.Options{}); err != nil {
		return nil, err
	}
	if f.source, _, err = base.plan(q); err != nil {
		return nil, err
	}
	f.start = p.Run
	if unpack != nil {
		f.start = func(in iter.Seq[bson.Raw]) iter.Seq2[bson.Raw, error] { return p.Run(unpack.Stream(in, &f.fault)) }
	}
	return f, nil
}

// runSource answers a pipeline that begins with a source.
func runSource(ctx context.Context, r *dispatch.Request, t *Target, source bson.Raw, rest []bson.Raw, a pipelineArgs, out *dispatch.Reply) error {
	docs, err := sourceDocuments(r, t, source, &a)
	if err == nil {
		var p *serverquery.Pipeline
		if p, err = serverquery.CompilePipeline(rest, serverquery.PipelineOptions{}); err == nil {
			f := &pipeFeed{start: func(iter.Seq[bson.Raw]) iter.Seq2[bson.Raw, error] {
				return p.Run(func(yield func(bson.Raw) bool) {
					for _, doc := range docs {
						if !yield(doc) {
							return
						}
					}
				})
			}}
			return answerPipeline(ctx, r, t.NS, f, a, out)
		}
	}
	a.free()
	return err
}

func sourceDocuments(r *dispatch.Request, t *Target, source bson.Raw, a *pipelineArgs) ([]bson.Raw, error) {
	stage := dispatch.FirstElem(source)
	if stage.Is("$documents") {
		return nil, servererr.New(servererr.Code(5491300), "$documents' is not allowed in user requests")
	}
	if !stage.Is("$collStats") {
		return nil, servererr.New(servererr.NotImplemented, "the stage %s is not implemented here", stage.Name())
	}
	spec, ok := stage.Document()
	if !ok {
		return nil, servererr.New(servererr.FailedToParse, "$collStats must take a nested object but found: %s", stage.Name())
	}
	doc, err := collStatsStage(r, t, spec, a.look)
	return []bson.Raw{doc}, err
}
