package serverquery

import (
	"math"
	"math/big"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
)

// groupField is one accumulated field of $group.
type groupField struct {
	name, operator string
	expr           *serverupdate.Expr
}

// accumulator takes the values of one field of one group.
type accumulator interface {
	add(v val) error
	// result may be missing, which $group returns as null.
	result() val
}

func compileExpr(e *rawbson.Elem, o PipelineOptions) (*serverupdate.Expr, error) {
	if o.Collator != nil && (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) {
		return nil, notImplemented("an expression under a collation")
	}
	x, err := serverupdate.CompileExpr(e.Raw())
	return x, refusal(err)
}

func compileGroup(e *rawbson.Elem, o PipelineOptions) (stage, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, servererr.New(15947, "a group's fields must be specified in an object")
	}
	var id *serverupdate.Expr
	var fields []groupField
	for _, f := range elems(doc) {
		var err error
		if f.Is("_id") {
			if id != nil {
				return nil, servererr.New(15948, "a group's _id may only be specified once")
			}
			id, err = compileExpr(&f, o)
		} else {
			var field groupField
			field, err = compileAccumulator(&f, o)
			fields = append(fields, field)
		}
		if err != nil {
			return nil, err
		}
	}
	if id == nil {
		return nil, servererr.New(15955, "a group specification must include an _id")
	}
	return whole(func(docs []bson.Raw, yield func(bson.Raw) bool) error {
		g := grouping{id: id, fields: fields, keys: valueSet{coll: o.Collator}}
		for _, doc := range docs {
			if err := o.shared.look(); err != nil {
				return err
			}
			if err := g.add(doc); err != nil {
				return err
			}
		}
		for n, group := range g.groups {
			if !yield(groupResult(g.keys.order[n], fields, group)) {
				break
			}
		}
		return nil
	}), nil
}

// grouping is the groups of the documents so far, in the order of their keys' first
// appearance.
type grouping struct {
	id     *serverupdate.Expr
	fields []groupField
	keys   valueSet
	groups [][]accumulator
}

// add adds a document to its group.
func (g *grouping) add(doc bson.Raw) error {
	v, found, err := g.id.Eval(doc)
	if err != nil {
		return refusal(err)
	}
	key := fromRaw(v)
	if !found {
		key = val{t: bson.TypeNull}
	}
	n, isNew := g.keys.add(key)
	if isNew {
		g.groups = append(g.groups, newAccumulators(g.fields, g.keys.coll))
	}
	for i, f := range g.fields {
		v, found, err := f.expr.Eval(doc)
		if err != nil {
			return refusal(err)
		}
		operand := val{}
		if found {
			operand = fromRaw(v)
		}
		if err := g.groups[n][i].add(operand); err != nil {
			return err
		}
	}
	return nil
}

func groupResult(key val, fields []groupField, group []accumulator) bson.Raw {
	dst := append(bsoncore.AppendHeader(nil, bsoncore.Type(key.t), "_id"), key.b...)
	for i, f := range fields {
		v := group[i].result()
		if v.missing() {
			v = val{t: bson.TypeNull}
		}
		dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(v.t), f.name), v.b...)
	}
	return bsoncore.BuildDocument(nil, dst)
}

func compileAccumulator(f *rawbson.Elem, o PipelineOptions) (groupField, error) {
	name := f.Name()
	doc, ok := f.Document()
	list := elems(doc)
	switch {
	case strings.Contains(name, "."):
		return groupField{}, servererr.New(40235, "The field name '%s' cannot contain '.'", name)
	case strings.HasPrefix(name, "$"):
		return groupField{}, servererr.New(40236, "The field name '%s' cannot be an operator name", name)
	case !ok || len(list) == 0:
		return groupField{}, servererr.New(40234, "The field '%s' must be an accumulator object", name)
	case len(list) > 1:
		return groupField{}, servererr.New(40238, "The field '%s' must specify one accumulator", name)
	}
	operator := list[0].Name()
	switch operator {
	case "$sum", "$avg", "$min", "$max", "$addToSet":
		if list[0].Type == bson.TypeArray {
			return groupField{}, servererr.New(40237, "The %s accumulator is a unary operator", operator)
		}
	case "$count":
		if arg, isDoc := list[0].Document(); !isDoc || len(arg) != rawbson.MinSize {
			return groupField{}, servererr.New(servererr.TypeMismatch, "$count takes no arguments, i.e. $count:{}")
		}
		one := bsoncore.AppendInt32(nil, 1)
		x, err := serverupdate.CompileExpr(bson.RawValue{Type: bson.TypeInt32, Value: one})
		return groupField{name, "$sum", x}, refusal(err)
	case "$first", "$last", "$push", "$mergeObjects", "$stdDevPop", "$stdDevSamp", "$accumulator", "$_internalJsReduce":
		return groupField{}, notImplemented("the accumulator %s", operator)
	default:
		return groupField{}, servererr.New(15952, "unknown group operator '%s'", operator)
	}
	x, err := compileExpr(&list[0], o)
	return groupField{name, operator, x}, err
}

func newAccumulators(fields []groupField, coll *bsonorder.Collator) []accumulator {
	out := make([]accumulator, len(fields))
	for i, f := range fields {
		switch f.operator {
		case "$sum":
			out[i] = &sum{}
		case "$avg":
			out[i] = &average{}
		case "$addToSet":
			out[i] = &collected{valueSet{coll: coll}}
		case "$min":
			out[i] = &extreme{sign: -1, coll: coll}
		default:
			out[i] = &extreme{sign: 1, coll: coll}
		}
	}
	return out
}

// sum adds numbers and ignores other values. Integers are added exactly.
type sum struct {
	whole       big.Int
	double, low float64 // low is the rounding error of double
	long, float bool
}

func (s *sum) add(v val) error {
	switch v.t {
	case bson.TypeDecimal128:
		return notImplemented("the sum of decimals (%s)", bsontext.Value(v.raw()))
	case bson.TypeDouble:
		f := v.double()
		s.float = true
		s.addDouble(f)
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.whole()
		s.long = s.long || v.t == bson.TypeInt64
		s.whole.Add(&s.whole, big.NewInt(n))
	}
	return nil
}

// addDouble keeps the error of each addition, as the server does.
func (s *sum) addDouble(f float64) {
	total := s.double + f
	part := total - s.double
	s.low += (s.double - (total - part)) + (f - part)
	s.double = total
}

func (s *sum) total() float64 {
	n, _ := new(big.Float).SetInt(&s.whole).Float64()
	t := *s
	t.addDouble(n)
	if math.IsNaN(t.low) { // infinities leave it behind
		return t.double
	}
	return t.double + t.low
}

func (s *sum) result() val {
	if s.float || !s.whole.IsInt64() {
		return val{bson.TypeDouble, bsoncore.AppendDouble(nil, s.total())}
	}
	if s.long {
		return val{bson.TypeInt64, bsoncore.AppendInt64(nil, s.whole.Int64())}
	}
	return wholeNumber(s.whole.Int64())
}

type average struct {
	sum
	n float64
}

func (a *average) add(v val) error {
	if v.number() {
		a.n++
	}
	return a.sum.add(v)
}

func (a *average) result() val {
	if a.n == 0 {
		return val{}
	}
	return val{bson.TypeDouble, bsoncore.AppendDouble(nil, a.total()/a.n)}
}

// extreme is $max with sign 1 and $min with sign -1.
type extreme struct {
	sign int
	coll *bsonorder.Collator
	best val
}

func (x *extreme) add(v val) error {
	if !v.nullish() && (x.best.missing() || compareValues(v, x.best, x.coll)*x.sign > 0) {
		x.best = v
	}
	return nil
}

func (x *extreme) result() val { return x.best }

// collected is $addToSet: each value once, in the order of their first appearance, where a server has none.
type collected struct{ values valueSet }

func (c *collected) add(v val) error {
	if !v.missing() {
		c.values.add(v)
	}
	return nil
}

func (c *collected) result() val {
	array := bsoncore.NewArrayBuilder()
	for _, v := range c.values.order {
		array.AppendValue(bsoncore.Value{Type: bsoncore.Type(v.t), Data: v.b})
	}
	return val{bson.TypeArray, array.Build()}
}
