package serverupdate

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Expr is an aggregation expression, compiled for use outside of updates. It is
// not safe for concurrent use: its constants cache the fields read.
type Expr struct{ parsed *expr }

// CompileExpr compiles an expression: "$field", an operator, or a constant. One
// that the server would refuse, or an operator that is not modelled, is an
// [*Error]. The value must stay unchanged.
func CompileExpr(v bson.RawValue) (*Expr, error) {
	if err := validateValue(v); err != nil {
		return nil, err
	}
	parsed, err := parseOperand(rawbson.Elem{Type: v.Type, Value: v.Value}, nil)
	if err != nil {
		return nil, err
	}
	return &Expr{parsed}, nil
}

func validateValue(v bson.RawValue) error {
	if v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
		return nil
	}
	if err := rawbson.Validate(v.Value); err != nil {
		return fmt.Errorf("serverupdate: read an expression: %w", err)
	}
	return nil
}

// Eval computes the expression on a stored document. The value may share memory
// with doc; found is false for the missing value.
func (x *Expr) Eval(doc bson.Raw) (v bson.RawValue, found bool, err error) {
	got, err := x.run(doc)
	if err != nil || got.missing() {
		return bson.RawValue{}, false, err
	}
	v, err = got.rawValue()
	return v, err == nil, err
}

// Test computes the expression and reports whether a condition would take its
// value for true: all values are but missing, null, undefined, false and zero.
func (x *Expr) Test(doc bson.Raw) (bool, error) {
	got, err := x.run(doc)
	return err == nil && got.truth(), err
}

func (x *Expr) run(doc bson.Raw) (value, error) {
	steps := maxSteps
	return x.parsed.eval(&evaluation{root: newDocument(doc), steps: &steps}, nil)
}

func (v value) rawValue() (bson.RawValue, error) {
	switch v.typ {
	case bson.TypeEmbeddedDocument:
		doc, err := v.doc.toBSON()
		return bson.RawValue{Type: v.typ, Value: doc}, err
	case bson.TypeArray:
		elem, err := v.appendTo(nil, "", 1)
		if err != nil {
			return bson.RawValue{}, err
		}
		return bson.RawValue{Type: v.typ, Value: elem[2:]}, nil // after type and empty name
	default:
		return bson.RawValue{Type: v.typ, Value: v.raw}, nil
	}
}

// Transform is a sequence of stages that transform one document: $set,
// $addFields, $unset, $replaceRoot and $replaceWith. It is not safe for
// concurrent use.
type Transform struct{ stages []stage }

// IsTransform reports whether a Transform can have a stage of this name.
func IsTransform(name string) bool {
	switch name {
	case "$set", "$addFields", "$unset", "$replaceRoot", "$replaceWith":
		return true
	default:
		return false
	}
}

// CompileTransform compiles stages that follow each other. Stages that the
// server would refuse are an [*Error].
func CompileTransform(stages []bson.Raw) (*Transform, error) {
	t := &Transform{}
	for _, spec := range stages {
		if err := rawbson.Validate(spec); err != nil {
			return nil, fmt.Errorf("serverupdate: read a stage: %w", err)
		}
		s, err := parseStage(rawbson.Elem{Type: bson.TypeEmbeddedDocument, Value: spec}, nil)
		if err != nil {
			return nil, err
		}
		t.stages = append(t.stages, s)
	}
	return t, nil
}

// Run returns the result of the stages on doc, which must be valid. The result
// may share memory with it.
func (t *Transform) Run(doc bson.Raw) (bson.Raw, error) {
	steps := maxSteps
	d := newDocument(doc)
	for _, s := range t.stages {
		var err error
		if d, err = s(d, &steps); err != nil {
			return nil, err
		}
	}
	return d.toBSON()
}
