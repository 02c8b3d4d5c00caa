package serverquery

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
)

// parser compiles one filter.
type parser struct {
	coll *bsonorder.Collator
	// notes says that the filter is a validator, which has to explain itself.
	notes bool
	// nested says that this is not the top level, where $expr may stand.
	nested bool
}

// filter compiles a document of conditions.
func (p *parser) filter(doc []byte, depth int) (node, error) {
	if depth > maxDepth {
		return nil, badValue("exceeded maximum query tree depth of %d", maxDepth)
	}
	var parts []node
	it := rawbson.NewIter(doc)
	for it.Next() {
		var more []node
		var err error
		if e := &it.Elem; len(e.Key) > 0 && e.Key[0] == '$' {
			more, err = p.pathless(e, depth)
		} else {
			more, err = p.condition(e.Name(), valueOf(e), depth)
		}
		if err != nil {
			return nil, err
		}
		parts = append(parts, more...)
	}
	return p.all(parts), nil
}

// all joins conditions that were written side by side.
func (p *parser) all(parts []node) node {
	if len(parts) == 1 {
		return parts[0]
	}
	return &allNode{parts}
}

func (p *parser) pathless(e *rawbson.Elem, depth int) ([]node, error) {
	switch name := e.Name(); name {
	case "$and", "$or", "$nor":
		n, err := p.list(e, depth)
		return []node{n}, err
	case "$comment":
		return nil, nil
	case "$alwaysTrue", "$alwaysFalse":
		if n, ok := valueOf(e).whole(); !ok || n != 1 {
			return nil, failedToParse("%s must be an integer value of 1", name)
		}
		return []node{&constNode{name == "$alwaysTrue"}}, nil
	case "$expr":
		n, err := p.expr(e)
		return []node{n}, err
	case "$jsonSchema":
		n, err := p.schema(e)
		return []node{n}, err
	case "$text", "$where", "$sampleRate", "$_internalBucketGeoWithin":
		return nil, notImplemented("%s", name)
	default:
		return nil, badValue("unknown top level operator: %s. If you have a field name that starts with a "+
			"'$' symbol, consider using $getField or $setField.", name)
	}
}

func (p *parser) list(e *rawbson.Elem, depth int) (node, error) {
	array, ok := e.Array()
	if !ok {
		return nil, badValue("%s must be an array", e.Name())
	}
	var parts []node
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, badValue("$or/$and/$nor entries need to be full objects")
		}
		n, err := p.filter(doc, depth+2)
		if err != nil {
			return nil, err
		}
		parts = append(parts, n)
	}
	if len(parts) == 0 {
		return nil, badValue("$and/$or/$nor must be a nonempty array")
	}
	if e.Is("$and") {
		return &allNode{parts}, nil
	}
	return &anyNode{parts: parts, nor: e.Is("$nor")}, nil
}

func (p *parser) expr(e *rawbson.Elem) (node, error) {
	switch {
	case p.nested:
		return nil, badValue("$expr can only be applied to the top-level document")
	case p.coll != nil:
		return nil, notImplemented("$expr under a collation")
	}
	compiled, err := serverupdate.CompileExpr(e.Raw())
	if err != nil {
		return nil, refusal(err)
	}
	return &exprNode{compiled}, nil
}

func (p *parser) schema(e *rawbson.Elem) (node, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, servererr.New(servererr.TypeMismatch, "$jsonSchema must be an object")
	}
	s, err := parseSchema(doc, 1)
	if err != nil {
		return nil, err
	}
	return &schemaNode{s}, nil
}

// note remembers an operator at a path, for validators.
func (p *parser) note(operator, path string, e *rawbson.Elem) note {
	if !p.notes {
		return note{}
	}
	spec := bsoncore.BuildDocument(nil, appendElem(nil, e))
	if strings.HasPrefix(e.Name(), "$") {
		spec = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, path, spec))
	}
	return note{operator, bson.Raw(spec)}
}

func appendElem(dst []byte, e *rawbson.Elem) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(e.Type), e.Name())
	return append(dst, e.Value...)
}

// condition compiles the condition after the name of a field.
func (p *parser) condition(path string, v val, depth int) ([]node, error) {
	self := &rawbson.Elem{Type: v.t, Key: []byte(path), Value: v.b}
	switch {
	case isOperators(v):
		return p.operators(path, v.b, depth+1)
	case v.t == bson.TypeRegex:
		source, options := regexParts(v.b)
		re, err := newPattern(source, options)
		if err != nil {
			return nil, err
		}
		return []node{p.at(path, re, p.note("$regex", path, self))}, nil
	case v.t == bson.TypeUndefined:
		return nil, badValue("cannot compare to undefined")
	default:
		return []node{p.at(path, newComparison(opEq, v, p.coll), p.note("$eq", path, self))}, nil
	}
}

// isOperators tells a document of operators from one that is a value. A
// reference to a document is a value.
func isOperators(v val) bool {
	if v.t != bson.TypeEmbeddedDocument {
		return false
	}
	it := rawbson.NewIter(v.b)
	if !it.Next() || len(it.Key) == 0 || it.Key[0] != '$' {
		return false
	}
	switch it.Name() {
	case "$ref", "$id", "$db":
		return false
	default:
		return true
	}
}

func (p *parser) at(path string, l leaf, n note) *pathNode {
	return &pathNode{name: path, path: splitPath(path), leaf: l, note: n}
}

func splitPath(path string) []string {
	if strings.IndexByte(path, '.') < 0 {
		return []string{path}
	}
	return strings.Split(path, ".")
}

func (p *parser) operators(path string, doc []byte, depth int) ([]node, error) {
	if depth > maxDepth {
		return nil, badValue("exceeded maximum query tree depth of %d", maxDepth)
	}
	var parts []node
	it := rawbson.NewIter(doc)
	for it.Next() {
		n, err := p.operator(path, &it.Elem, doc, depth)
		if err != nil {
			return nil, err
		}
		if n != nil {
			parts = append(parts, n)
		}
	}
	return parts, nil
}

// comparisons are the operators that compare, by name.
var comparisons = map[string]operator{"$eq": opEq, "$lt": opLt, "$lte": opLte, "$gt": opGt, "$gte": opGte}

// operator compiles one operator; doc is the document that contains it.
func (p *parser) operator(path string, e *rawbson.Elem, doc []byte, depth int) (node, error) {
	v := valueOf(e)
	name := e.Name()
	one := func(l leaf, err error) (node, error) {
		if err != nil {
			return nil, err
		}
		return p.at(path, l, p.note(name, path, e)), nil
	}
	inverted := func(n node, err error) (node, error) {
		if err != nil {
			return nil, err
		}
		return &notNode{n}, nil
	}
	onArray := func(l leaf, err error) (node, error) {
		if err != nil {
			return nil, err
		}
		return &pathNode{path: splitPath(path), name: path, leaf: l, end: arrayOnly, note: p.note(name, path, e)}, nil
	}
	switch name {
	case "$eq", "$lt", "$lte", "$gt", "$gte":
		return one(p.compare(path, comparisons[name], v))
	case "$ne":
		if v.t == bson.TypeRegex {
			return nil, badValue("Can't have regex as arg to $ne.")
		}
		return inverted(one(p.compare(path, opEq, v)))
	case "$in":
		return one(p.in(name, v))
	case "$nin":
		return inverted(one(p.in(name, v)))
	case "$not":
		return p.not(path, v, depth)
	case "$exists":
		if v.truth() {
			return one(existence{}, nil)
		}
		return inverted(one(existence{}, nil))
	case "$type":
		return one(parseTypes(name, v))
	case "$regex", "$options":
		return p.regex(path, e, doc)
	case "$mod":
		return one(parseModulus(v))
	case "$size":
		return onArray(parseSize(e))
	case "$elemMatch":
		return onArray(p.elemMatch(v, depth))
	case "$all":
		return p.allOf(path, e, depth)
	case "$comment":
		return nil, nil
	default:
		return nil, unknownOperator(name)
	}
}

// unknownOperator is the error of an operator that there is not here, or not at all.
func unknownOperator(name string) error {
	switch name {
	case "$near", "$nearSphere", "$geoNear", "$geoWithin", "$within", "$geoIntersects", "$maxDistance", "$minDistance",
		"$_internalExprEq", "$_internalSchemaType", "$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear":
		return notImplemented("%s", name)
	}
	return badValue("unknown operator: %s", name)
}

func (p *parser) compare(path string, op operator, v val) (leaf, error) {
	switch {
	case v.t == bson.TypeUndefined:
		return nil, badValue("cannot compare to undefined")
	case v.t == bson.TypeRegex && op != opEq:
		return nil, badValue("Can't have RegEx as arg to predicate over field '%s'.", path)
	}
	return newComparison(op, v, p.coll), nil
}

func (p *parser) in(name string, v val) (leaf, error) {
	if v.t != bson.TypeArray {
		return nil, badValue("%s needs an array", name)
	}
	m := &membership{coll: p.coll}
	it := rawbson.NewIter(v.b)
	for it.Next() {
		elem := valueOf(&it.Elem)
		switch {
		case isOperators(elem):
			return nil, badValue("cannot nest $ under %s", name)
		case elem.t == bson.TypeUndefined:
			return nil, badValue("InMatchExpression equality cannot be undefined")
		case elem.t == bson.TypeRegex:
			source, options := regexParts(elem.b)
			re, err := newPattern(source, options)
			if err != nil {
				return nil, err
			}
			m.regexes = append(m.regexes, re)
		default:
			m.null = m.null || elem.t == bson.TypeNull
			m.values = append(m.values, elem)
		}
	}
	slices.SortStableFunc(m.values, func(a, b val) int { return compareValues(a, b, p.coll) })
	m.values = slices.CompactFunc(m.values, func(a, b val) bool { return compareValues(a, b, p.coll) == 0 })
	return m, nil
}

func (p *parser) not(path string, v val, depth int) (node, error) {
	if v.t == bson.TypeRegex {
		parts, err := p.condition(path, v, depth)
		if err != nil {
			return nil, err
		}
		return &notNode{parts[0]}, nil
	}
	if v.t != bson.TypeEmbeddedDocument {
		return nil, badValue("$not needs a regex or a document")
	}
	if len(v.b) <= rawbson.MinSize {
		return nil, badValue("$not cannot be empty")
	}
	parts, err := p.operators(path, v.b, depth+1)
	if err != nil {
		return nil, err
	}
	return &notNode{p.all(parts)}, nil
}

// regex compiles $regex together with $options, whichever comes first.
func (p *parser) regex(path string, e *rawbson.Elem, doc []byte) (node, error) {
	first, hasPattern := rawbson.Lookup(doc, "$regex")
	second, hasOptions := rawbson.Lookup(doc, "$options")
	switch {
	case !hasPattern:
		return nil, badValue("$options needs a $regex")
	case e.Is("$options"):
		if _, ok := e.Text(); !ok {
			return nil, badValue("$options has to be a string")
		}
		return nil, nil // it was read, or will be, with $regex
	}
	var source, options string
	switch first.Type {
	case bson.TypeString:
		source, _ = first.Text()
	case bson.TypeRegex:
		source, options = regexParts(first.Value)
	default:
		return nil, badValue("$regex has to be a string")
	}
	if hasOptions {
		text, ok := second.Text()
		if !ok {
			return nil, badValue("$options has to be a string")
		}
		if options != "" {
			return nil, servererr.New(codeTwoRegexOptions, "options set in both $regex and $options")
		}
		options = text
	}
	re, err := newPattern(source, options)
	if err != nil {
		return nil, err
	}
	n := note{}
	if p.notes {
		spec := appendElem(nil, &first)
		if hasOptions {
			spec = appendElem(spec, &second)
		}
		n = note{"$regex", bsoncore.BuildDocument(nil,
			bsoncore.AppendDocumentElement(nil, path, bsoncore.BuildDocument(nil, spec)))}
	}
	return p.at(path, re, n), nil
}

func (p *parser) elemMatch(v val, depth int) (leaf, error) {
	if v.t != bson.TypeEmbeddedDocument {
		return nil, badValue("$elemMatch needs an Object")
	}
	inner := *p
	inner.nested, inner.notes = true, false
	it := rawbson.NewIter(v.b)
	onValues := it.Next() && len(it.Key) > 0 && it.Key[0] == '$'
	if onValues {
		switch it.Name() {
		case "$and", "$or", "$nor", "$where", "$expr", "$jsonSchema", "$alwaysTrue", "$alwaysFalse", "$ref", "$id", "$db":
			onValues = false
		}
	}
	if onValues {
		parts, err := inner.operators("", v.b, depth+1)
		if err != nil {
			return nil, err
		}
		return &elemMatchValue{inner.all(parts)}, nil
	}
	sub, err := inner.filter(v.b, depth+1)
	if err != nil {
		return nil, err
	}
	return &elemMatchObject{sub}, nil
}

func (p *parser) allOf(path string, e *rawbson.Elem, depth int) (node, error) {
	array, ok := e.Array()
	if !ok {
		return nil, badValue("$all needs an array")
	}
	list := elems(array)
	if len(list) == 0 {
		return &constNode{}, nil
	}
	isElemMatch := func(v val) bool {
		if v.t != bson.TypeEmbeddedDocument {
			return false
		}
		it := rawbson.NewIter(v.b)
		return it.Next() && it.Is("$elemMatch")
	}
	want := isElemMatch(valueOf(&list[0]))
	n := &allNode{}
	for i := range list {
		v := valueOf(&list[i])
		switch {
		case want && !isElemMatch(v):
			return nil, badValue("$all/$elemMatch has to be consistent")
		case !want && isOperators(v):
			return nil, badValue("no $ expressions in $all")
		}
		part, err := p.condition(path, v, depth+1)
		if err != nil {
			return nil, err
		}
		n.parts = append(n.parts, part...)
	}
	return n, nil
}
