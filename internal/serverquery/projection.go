package serverquery

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
)

// Projection says which fields of a document are returned, and in which form.
type Projection struct {
	root *projected
	// exclusion says that fields that are not named stay.
	exclusion bool
	// positional is the path before ".$", nil if there is none.
	positional []string
	slices     []*projected
}

// projected is one level of the paths that a projection names.
type projected struct {
	kind  projectedKind
	order []string
	kids  map[string]*projected

	expr      *serverupdate.Expr
	elemMatch leaf
	slice     sliceArgs
	path      []string // of a slice
	computes  bool     // there is an expression here or below
}

type projectedKind int

const (
	branch projectedKind = iota
	included
	excluded
	computed
	matched // $elemMatch
	sliced  // $slice
)

// sliceArgs are the numbers of $slice: how many elements to skip, and how many to
// take. Without skip, a negative limit counts from the end.
type sliceArgs struct {
	skip, limit int64
	hasSkip     bool
}

// CompileProjection compiles the projection of a find. A nil or empty spec
// returns documents as they are. What the server refuses is a [*servererr.Error].
func CompileProjection(spec bson.Raw, o Options) (*Projection, error) {
	if len(spec) == 0 {
		return &Projection{}, nil
	}
	if err := validate(spec); err != nil {
		return nil, err
	}
	if len(spec) == rawbson.MinSize {
		return &Projection{}, nil
	}
	return compileProjection(spec, &projectionParser{coll: o.Collator, find: true})
}

func compileProjection(spec []byte, p *projectionParser) (*Projection, error) {
	p.out = &Projection{root: newBranch()}
	for _, e := range elems(spec) {
		if err := p.field(&e, "", 1); err != nil {
			return nil, err
		}
	}
	p.finish()
	p.out.root.markComputed()
	return p.out, nil
}

func newBranch() *projected { return &projected{kids: map[string]*projected{}} }

// projectionMode is the mode implied by the fields so far: unknown while only _id
// and slices were named.
type projectionMode int

const (
	unknownMode projectionMode = iota
	inclusionMode
	exclusionMode
)

type projectionParser struct {
	coll *bsonorder.Collator
	find bool
	mode projectionMode
	// id is 1 if _id was included by name, -1 if it was excluded.
	id  int
	out *Projection
}

func (p *projectionParser) field(e *rawbson.Elem, prefix string, depth int) error {
	if depth > maxDepth {
		return badValue("exceeded maximum depth of %d levels of a projection", maxDepth)
	}
	v := valueOf(e)
	path := prefix + e.Name()
	switch {
	case p.find && strings.HasSuffix(path, ".$"):
		return p.dollar(strings.TrimSuffix(path, ".$"), v)
	case p.find && (strings.Contains(path, ".$.") || path == "$"):
		return servererr.New(31394, "As of 4.4, it's illegal to specify positional operator in the middle of a path."+
			"Positional projection may only be used at the end, for example: a.b.$. "+
			"If the query previously used a form like a.b.$.d, remove the parts following the '$' and the results will be equivalent.")
	case prefix != "" && strings.Contains(e.Name(), "."):
		return notImplemented("the dotted field name '%s' in a sub-projection", e.Name())
	}
	if err := checkFieldPath(path); err != nil {
		return err
	}
	if v.t == bson.TypeEmbeddedDocument {
		list := elems(v.b)
		switch {
		case len(list) == 0:
			return servererr.New(51270, "An empty sub-projection is not a valid value. Found empty object at path %s", path)
		case strings.HasPrefix(list[0].Name(), "$"):
			return p.operator(path, v, list)
		}
		for _, f := range list {
			if err := p.field(&f, path+".", depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if v.t != bson.TypeBoolean && !v.number() {
		return p.expr(path, v)
	}
	if !v.truth() {
		return p.exclude(path)
	}
	if path == "_id" {
		p.id = 1
		return p.add(path, &projected{kind: included})
	}
	if err := p.include(path); err != nil {
		return err
	}
	return p.add(path, &projected{kind: included})
}

func (p *projectionParser) include(path string) error {
	if p.mode == exclusionMode {
		return servererr.New(31253, "Cannot do inclusion on field %s in exclusion projection", path)
	}
	p.mode = inclusionMode
	return nil
}

func (p *projectionParser) exclude(path string) error {
	if path == "_id" {
		p.id = -1
		return p.add(path, &projected{kind: excluded})
	}
	if p.mode == inclusionMode {
		return servererr.New(31254, "Cannot do exclusion on field %s in inclusion projection", path)
	}
	p.mode = exclusionMode
	return p.add(path, &projected{kind: excluded})
}

func (p *projectionParser) expr(path string, v val) error {
	if p.mode == exclusionMode {
		return servererr.New(31252, "Cannot use an expression other than $meta in exclusion projection")
	}
	if p.coll != nil && (v.t == bson.TypeEmbeddedDocument || v.t == bson.TypeArray) {
		return notImplemented("an expression under a collation")
	}
	p.mode = inclusionMode
	compiled, err := serverupdate.CompileExpr(v.raw())
	if err != nil {
		return refusal(err)
	}
	if path == "_id" {
		p.id = 1
	}
	return p.add(path, &projected{kind: computed, expr: compiled})
}

func (p *projectionParser) operator(path string, v val, list []rawbson.Elem) error {
	switch name := list[0].Name(); {
	case name == "$meta":
		return notImplemented("$meta in a projection")
	case len(list) > 1:
		return servererr.New(15983, "An object representing an expression must have exactly one field: %s", bsontext.Document(v.b))
	case p.find && name == "$elemMatch":
		return p.elemMatch(path, valueOf(&list[0]))
	case p.find && name == "$slice":
		args, ok, err := parseSlice(valueOf(&list[0]))
		if err != nil {
			return err
		}
		if ok {
			n := &projected{kind: sliced, slice: args, path: splitPath(path)}
			p.out.slices = append(p.out.slices, n)
			return p.add(path, n)
		}
	}
	return p.expr(path, v)
}

// parseSlice reads find's own form of $slice. It is false for the expression.
func parseSlice(v val) (args sliceArgs, ok bool, err error) {
	if v.number() {
		args.limit, _ = cutOff(v)
		return args, true, nil
	}
	if v.t != bson.TypeArray {
		return args, false, servererr.New(28667, "Invalid $slice syntax. The given syntax { $slice: %s } did not match the find() "+
			"syntax because :: $slice argument must be a number or an array", bsontext.Value(v.raw()))
	}
	list := elems(v.b)
	if len(list) != 2 || !valueOf(&list[0]).number() {
		return args, false, nil
	}
	second := valueOf(&list[1])
	if !second.number() {
		return args, false, nil
	}
	args.skip, _ = cutOff(valueOf(&list[0]))
	args.limit, _ = cutOff(second)
	args.hasSkip = true
	if args.limit <= 0 {
		return args, false, servererr.New(28724, "First argument to $slice must be an array, but is of type: int")
	}
	return args, true, nil
}

func (p *projectionParser) elemMatch(path string, v val) error {
	switch {
	case strings.Contains(path, "."):
		return servererr.New(31275, "Cannot use $elemMatch projection on a nested field")
	case p.mode == exclusionMode:
		return servererr.New(31252, "Cannot use an expression other than $meta in exclusion projection")
	case p.out.positional != nil:
		return servererr.New(31256, "Cannot specify positional operator and $elemMatch.")
	}
	p.mode = inclusionMode
	l, err := (&parser{coll: p.coll, nested: true}).elemMatch(v, 1)
	if err != nil {
		return err
	}
	return p.add(path, &projected{kind: matched, elemMatch: l})
}

func (p *projectionParser) dollar(path string, v val) error {
	if v.t != bson.TypeBoolean && !v.number() || !v.truth() {
		return servererr.New(31395, "positional projection cannot be used with exclusion")
	}
	if p.out.positional != nil {
		return servererr.New(31276, "Cannot specify more than one positional projection per query.")
	}
	for _, kid := range p.out.root.kids {
		if kid.kind == matched {
			return servererr.New(31256, "Cannot specify positional operator and $elemMatch.")
		}
	}
	if err := checkFieldPath(path); err != nil {
		return err
	}
	if err := p.include(path); err != nil {
		return err
	}
	p.out.positional = splitPath(path)
	return p.add(path, &projected{kind: included})
}

// add puts n at the path, where nothing may be yet.
func (p *projectionParser) add(path string, n *projected) error {
	at := p.out.root
	rest := path
	for {
		name, tail, deeper := strings.Cut(rest, ".")
		kid := at.kids[name]
		if !deeper {
			if kid != nil {
				return servererr.New(31250, "Path collision at %s", path)
			}
			at.kids[name] = n
			at.order = append(at.order, name)
			return nil
		}
		switch {
		case kid == nil:
			kid = newBranch()
			at.kids[name] = kid
			at.order = append(at.order, name)
		case kid.kind != branch:
			return servererr.New(31249, "Path collision at %s remaining portion %s", path, tail)
		}
		at, rest = kid, tail
	}
}

// finish decides what happens to _id and to fields that are not named.
func (p *projectionParser) finish() {
	p.out.exclusion = p.mode == exclusionMode
	if p.mode == unknownMode {
		// Only _id or slices: an included _id makes it an inclusion.
		p.out.exclusion = p.id <= 0
	}
	root := p.out.root
	switch _, named := root.kids["_id"]; {
	case p.out.exclusion && p.id == 1:
		delete(root.kids, "_id") // it would stay anyway
	case !p.out.exclusion && !named:
		root.kids["_id"] = &projected{kind: included}
	case !p.out.exclusion && p.id == -1:
		delete(root.kids, "_id")
	}
}

func (n *projected) markComputed() bool {
	n.computes = n.kind == computed || n.kind == matched
	for _, kid := range n.kids {
		if kid.markComputed() {
			n.computes = true
		}
	}
	return n.computes
}
