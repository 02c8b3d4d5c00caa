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
}

// projected is one level of the paths that a projection names.
type projected struct {
	kind  projectedKind
	order []string
	kids  map[string]*projected

	expr     *serverupdate.Expr
	computes bool // there is an expression here or below
}

type projectedKind int

const (
	branch projectedKind = iota
	included
	excluded
	computed
)

// CompileProjection compiles the projection of a find. A nil or empty spec
// returns documents as they are. The server's refusals are [*servererr.Error]s.
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
// was named.
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
		return notImplemented("the positional operator in a projection")
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
	case p.find && (name == "$elemMatch" || name == "$slice"):
		return notImplemented("%s in a projection", name)
	}
	return p.expr(path, v)
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
		// Only _id: included, it makes it an inclusion.
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
	n.computes = n.kind == computed
	for _, kid := range n.kids {
		if kid.markComputed() {
			n.computes = true
		}
	}
	return n.computes
}
