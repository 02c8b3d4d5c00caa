package serverquery

import (
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

func compileMatch(e *rawbson.Elem, o PipelineOptions) (stage, *Matcher, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, nil, servererr.New(15959, "the match filter must be an expression in an object")
	}
	m, err := Compile(doc, o.Options)
	if err != nil {
		return nil, nil, err
	}
	return each(func(doc bson.Raw) (bson.Raw, bool, error) {
		ok, err := m.Match(doc)
		return doc, ok, err
	}), m, nil
}

func compileProjectStage(e *rawbson.Elem, o PipelineOptions) (stage, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, servererr.New(15969, "$project specification must be an object")
	}
	const context = "Invalid $project"
	if len(doc) == rawbson.MinSize {
		return nil, servererr.New(51272, "projection specification must have at least one field").Within(context)
	}
	p, err := compileProjection(doc, &projectionParser{coll: o.Collator})
	if err != nil {
		return nil, inContext(context, err)
	}
	return each(func(doc bson.Raw) (bson.Raw, bool, error) {
		out, err := p.Apply(doc)
		return out, true, err
	}), nil
}

func compileSortStage(e *rawbson.Elem, o PipelineOptions) (stage, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, servererr.New(15973, "the $sort key specification must be an object")
	}
	s, err := CompileSort(doc, o.Options)
	switch {
	case err != nil:
		return nil, err
	case s.natural != 0:
		return nil, checkFieldPath("$natural")
	case s.Empty():
		return nil, servererr.New(15976, "$sort stage must have at least one sort key")
	}
	return whole(func(docs []bson.Raw, yield func(bson.Raw) bool) error {
		if err := s.order(docs, o.shared.look); err != nil {
			return err
		}
		for _, doc := range docs {
			if !yield(doc) {
				break
			}
		}
		return nil
	}), nil
}

// amount reads the number of $limit and $skip.
func amount(e *rawbson.Elem, code servererr.Code) (int64, error) {
	v := valueOf(e)
	n, ok := v.whole()
	what := ""
	switch {
	case !v.number():
		what = "Expected a number in"
	case !ok:
		what = "Expected an integer"
	case n < 0:
		what = "Expected a non-negative number in"
	default:
		return n, nil
	}
	return 0, servererr.New(code, "invalid argument to %s stage: %s: %s", e.Name(), what, bsontext.Element(e.Name(), v.raw()))
}

func compileLimit(e *rawbson.Elem) (stage, error) {
	n, err := amount(e, 5107201)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, servererr.New(15958, "the limit must be positive")
	}
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			left := n
			for doc, err := range in {
				left--
				if !yield(doc, err) || left == 0 {
					return
				}
			}
		}
	}, nil
}

func compileSkip(e *rawbson.Elem) (stage, error) {
	n, err := amount(e, 5107200)
	if err != nil {
		return nil, err
	}
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			left := n
			for doc, err := range in {
				if err == nil && left > 0 {
					left--
					continue
				}
				if !yield(doc, err) {
					return
				}
			}
		}
	}, nil
}

func compileCount(e *rawbson.Elem) (stage, error) {
	name, ok := e.Text()
	switch {
	case !ok:
		return nil, servererr.New(40156, "the count field must be a non-empty string")
	case name == "":
		return nil, servererr.New(40157, "the count field must be a non-empty string")
	case name[0] == '$':
		return nil, servererr.New(40158, "the count field cannot be a $-prefixed path")
	}
	for _, c := range []byte(name) {
		switch c {
		case 0:
			return nil, servererr.New(40159, "the count field cannot contain a null byte")
		case '.':
			return nil, servererr.New(40160, "the count field cannot contain '.'")
		}
	}
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			n := int64(0)
			for _, err := range in {
				if err != nil {
					yield(nil, err)
					return
				}
				n++
			}
			if n > 0 { // no documents, no count
				yield(wrap(name, wholeNumber(n)), nil)
			}
		}
	}, nil
}

// wholeNumber is an int32 where n fits.
func wholeNumber(n int64) val {
	if int64(int32(n)) == n {
		return val{bson.TypeInt32, bsoncore.AppendInt32(nil, int32(n))}
	}
	return val{bson.TypeInt64, bsoncore.AppendInt64(nil, n)}
}

func compileSample(e *rawbson.Elem, o PipelineOptions) (stage, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, servererr.New(28745, "the $sample stage specification must be an object")
	}
	n, given := int64(0), false
	for _, f := range elems(doc) {
		v := valueOf(&f)
		if !f.Is("size") {
			return nil, servererr.New(28748, "unrecognized option to $sample: %s", f.Name())
		}
		if !v.number() {
			return nil, servererr.New(28746, "size argument to $sample must be a number")
		}
		if n, given = cutOff(v); n < 0 {
			return nil, servererr.New(28747, "size argument to $sample must not be negative")
		}
	}
	if !given {
		return nil, servererr.New(28749, "$sample stage must specify a size")
	}
	random := o.Random
	if random == nil {
		random = rand.IntN
	}
	return whole(func(docs []bson.Raw, yield func(bson.Raw) bool) error {
		for i := range docs {
			if int64(i) == n {
				break
			}
			j := i + random(len(docs)-i)
			docs[i], docs[j] = docs[j], docs[i]
			if !yield(docs[i]) {
				break
			}
		}
		return nil
	}), nil
}

// inContext adds the stage to an error.
func inContext(context string, err error) error {
	if e, ok := err.(*servererr.Error); ok { //nolint:errorlint // the compilers of this package do not wrap
		return e.Within(context)
	}
	return err
}
