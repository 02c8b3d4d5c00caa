package serverquery

import (
	"errors"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
)

// PipelineOptions are the inputs of a pipeline other than its text.
type PipelineOptions struct {
	Options
	// Random returns a number below n, for $sample. Nil is a fair choice.
	Random func(n int) int
	// Interrupt, if not nil, is called every 1,024 documents that a stage reads;
	// its error ends the run.
	Interrupt func() error

	shared *compilation
	// defines is true for the pipeline of a view that is not run.
	defines bool
}

// compilation is the state shared by the stages of a pipeline.
type compilation struct {
	// looked counts documents of the run.
	looked    int
	interrupt func() error
}

// interval is the number of documents between calls of Interrupt.
const interval = 1024

// look is called for each document that a stage reads.
func (c *compilation) look() error {
	if c.looked++; c.interrupt == nil || c.looked%interval != 0 {
		return nil
	}
	return c.interrupt()
}

// watched is a stream that can be interrupted.
func (c *compilation) watched(in documents) documents {
	if c.interrupt == nil {
		return in
	}
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range in {
			if err == nil {
				err = c.look()
			}
			if !yield(doc, err) || err != nil {
				return
			}
		}
	}
}

// Pipeline is a compiled aggregation pipeline, without the source that some begin
// with. It can be run repeatedly, but not concurrently.
type Pipeline struct {
	shared  *compilation
	stages  []stage
	leading *Matcher
}

// documents is a stream. It ends after the first error.
type documents = iter.Seq2[bson.Raw, error]

// stage transforms a stream. It reads no more than necessary.
type stage func(in documents) documents

// sources are the stages that produce documents without input.
var sources = []string{
	"$collStats", "$indexStats", "$currentOp", "$listLocalSessions", "$listSessions", "$changeStream", "$documents",
	"$planCacheStats", "$geoNear", "$listSampledQueries", "$search", "$searchMeta",
}

// SplitSource parts a pipeline that begins with a source, such as $collStats,
// from the rest, which [CompilePipeline] takes. Source is nil for all others.
func SplitSource(stages []bson.Raw) (source bson.Raw, rest []bson.Raw) {
	if len(stages) > 0 {
		it := rawbson.NewIter(stages[0])
		if it.Next() && slices.Contains(sources, it.Name()) {
			return stages[0], stages[1:]
		}
	}
	return nil, stages
}

// Stages takes the pipeline argument of a command apart.
func Stages(pipeline bson.RawValue) ([]bson.Raw, error) {
	if pipeline.Type != bson.TypeArray {
		return nil, servererr.New(servererr.TypeMismatch, "'pipeline' option must be specified as an array")
	}
	if err := validate(pipeline.Value); err != nil {
		return nil, err
	}
	var out []bson.Raw
	for _, e := range elems(pipeline.Value) {
		doc, ok := e.Document()
		if !ok {
			return nil, servererr.New(servererr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		out = append(out, doc)
	}
	return out, nil
}

// CompilePipeline compiles the stages $match, $project, $addFields, $set, $unset,
// $replaceRoot, $replaceWith, $group, $sort, $limit, $skip, $count, $sample and $unwind. What the server refuses, and what it knows beyond these, is a
// [*servererr.Error].
func CompilePipeline(stages []bson.Raw, o PipelineOptions) (*Pipeline, error) {
	o.shared = &compilation{interrupt: o.Interrupt}
	return compilePipeline(stages, o)
}

// CheckPipeline reports whether a pipeline may define a view. Stages and expressions
// that the server has and this package does not may: a view is defined, copied and
// dropped without being read.
func CheckPipeline(stages []bson.Raw, o Options) error {
	_, err := compilePipeline(stages, PipelineOptions{Options: o, shared: &compilation{}, defines: true})
	return err
}

func compilePipeline(stages []bson.Raw, o PipelineOptions) (*Pipeline, error) {
	p := &Pipeline{shared: o.shared}
	for i := 0; i < len(stages); i++ {
		if err := validate(stages[i]); err != nil {
			return nil, err
		}
		spec := elems(stages[i])
		if len(spec) != 1 {
			return nil, servererr.New(40323, "A pipeline stage specification object must contain exactly one field.")
		}
		name := spec[0].Name()
		if serverupdate.IsTransform(name) {
			// Stages that follow each other are compiled together: they see which
			// fields the ones before have removed, and put them back in place.
			n := i + 1
			for n < len(stages) && startsTransform(stages[n]) {
				n++
			}
			s, err := compileTransform(stages[i:n], o)
			if err != nil && !o.tolerates(err) {
				return nil, err
			}
			p.stages = append(p.stages, s)
			i = n - 1
			continue
		}
		s, matcher, err := compileStage(&spec[0], o)
		if err != nil && !o.tolerates(err) {
			return nil, err
		}
		if i == 0 {
			p.leading = matcher
		}
		p.stages = append(p.stages, s)
	}
	return p, nil
}

// tolerates reports whether an error is that of a feature that the server has and this
// package does not, in a view that is only defined.
func (o *PipelineOptions) tolerates(err error) bool {
	refused, ok := errors.AsType[*servererr.Error](err)
	return ok && refused.Code == servererr.NotImplemented && o.defines
}

func startsTransform(stage bson.Raw) bool {
	spec := elems(stage)
	return len(spec) == 1 && serverupdate.IsTransform(spec[0].Name())
}

func compileTransform(stages []bson.Raw, o PipelineOptions) (stage, error) {
	for _, s := range stages {
		if spec := elems(s); o.Collator != nil && !spec[0].Is("$unset") {
			return nil, notImplemented("the stage %s under a collation", spec[0].Name())
		}
	}
	t, err := serverupdate.CompileTransform(stages)
	if err != nil {
		return nil, refusal(err)
	}
	return each(func(doc bson.Raw) (bson.Raw, bool, error) {
		out, err := t.Run(doc)
		return out, true, refusal(err)
	}), nil
}

// Leading returns the filter of a first stage that is $match, nil for any other:
// its bounds may narrow what Run is given.
func (p *Pipeline) Leading() *Matcher { return p.leading }

// Run yields the result of the pipeline on the documents of in. It ends with
// the first error. Documents may share memory with those of in.
func (p *Pipeline) Run(in iter.Seq[bson.Raw]) iter.Seq2[bson.Raw, error] {
	return p.run(func(yield func(bson.Raw, error) bool) {
		for doc := range in {
			if !yield(doc, nil) {
				return
			}
		}
	})
}

func (p *Pipeline) run(in documents) documents {
	for _, s := range p.stages {
		in = s(p.shared.watched(in))
	}
	return in
}

// each is a stage that processes one document at a time.
func each(do func(doc bson.Raw) (out bson.Raw, keep bool, err error)) stage {
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			for doc, err := range in {
				keep := true
				if err == nil {
					doc, keep, err = do(doc)
				}
				if err != nil {
					yield(nil, err)
					return
				}
				if keep && !yield(doc, nil) {
					return
				}
			}
		}
	}
}

// whole is a stage that needs all documents first.
func whole(do func(docs []bson.Raw, yield func(bson.Raw) bool) error) stage {
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			var docs []bson.Raw
			for doc, err := range in {
				if err != nil {
					yield(nil, err)
					return
				}
				docs = append(docs, doc)
			}
			stopped := false
			err := do(docs, func(doc bson.Raw) bool {
				stopped = stopped || !yield(doc, nil)
				return !stopped
			})
			if err != nil && !stopped {
				yield(nil, err)
			}
		}
	}
}

// compileStage compiles all stages but the transforms. The matcher is that of $match.
func compileStage(e *rawbson.Elem, o PipelineOptions) (stage, *Matcher, error) {
	compile := map[string]func() (stage, error){
		"$project": func() (stage, error) { return compileProjectStage(e, o) },
		"$group":   func() (stage, error) { return compileGroup(e, o) },
		"$sort":    func() (stage, error) { return compileSortStage(e, o) },
		"$limit":   func() (stage, error) { return compileLimit(e) },
		"$skip":    func() (stage, error) { return compileSkip(e) },
		"$count":   func() (stage, error) { return compileCount(e) },
		"$sample":  func() (stage, error) { return compileSample(e, o) },
		"$unwind":  func() (stage, error) { return compileUnwind(e) },
	}
	name := e.Name()
	if name == "$match" {
		return compileMatch(e, o)
	}
	if do, ok := compile[name]; ok {
		s, err := do()
		return s, nil, err
	}
	switch {
	case name == "$documents":
		return nil, nil, servererr.New(5491300, "$documents' is not allowed in user requests")
	case slices.Contains(sources, name):
		return nil, nil, servererr.New(40602, "%s is only valid as the first stage in a pipeline", name)
	case slices.Contains(unmodelledStages, name):
		return nil, nil, notImplemented("the stage %s", name)
	}
	return nil, nil, servererr.New(40324, "Unrecognized pipeline stage name: '%s'", name)
}

// unmodelledStages are stages that the server has and this package does not.
var unmodelledStages = []string{
	"$out", "$merge", "$redact", "$bucket", "$bucketAuto", "$sortByCount", "$setWindowFields",
	"$lookup", "$graphLookup", "$unionWith", "$facet",
}
