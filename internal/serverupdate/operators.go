package serverupdate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

type operator int

const (
	opSet operator = iota
	opSetOnInsert
	opUnset
	opInc
	opMul
	opMin
	opMax
	opBit
	opCurrentDate
	opRename
	opRenameSource // takes the place of a $rename's source, so that others conflict
	opPush
	opAddToSet
	opPop
	opPull
	opPullAll
)

var operators = map[string]operator{
	"$set": opSet, "$setOnInsert": opSetOnInsert, "$unset": opUnset, "$inc": opInc, "$mul": opMul, "$min": opMin, "$max": opMax,
	"$bit": opBit, "$currentDate": opCurrentDate, "$rename": opRename, "$push": opPush, "$addToSet": opAddToSet, "$pop": opPop,
	"$pull": opPull, "$pullAll": opPullAll,
}

// leaf is one operator on one path, with its argument taken apart.
type leaf struct {
	op  operator
	arg rawbson.Elem // for $rename the target's path, named by the source's
	// values are those to push, to add or to pull.
	values []rawbson.Elem
	push   *pushSpec // nil without $each
	match  func(*node) (bool, error)
	bits   []bitOperation
	number number
	path   []string // of a $rename's source
	front  bool     // for $pop
	date   bool     // for $currentDate
}

// creates reports whether the operator makes a field that is not there.
func (l *leaf) creates() bool {
	switch l.op {
	case opUnset, opPop, opPull, opPullAll, opRenameSource:
		return false
	default:
		return true
	}
}

func (l *leaf) parse(o *Options, path []string) error {
	f := &l.arg
	switch l.op {
	case opInc, opMul:
		return l.parseNumber()
	case opBit:
		return l.parseBits()
	case opCurrentDate:
		return l.parseDate(o)
	case opRename:
		return l.parseRename(path)
	case opPush:
		return l.parsePush()
	case opAddToSet:
		return l.parseAddToSet(o.Collator)
	case opPop:
		n, err := integer(f)
		if err != nil {
			return err
		}
		if n != 1 && n != -1 {
			return refuse(codeFailedToParse, "$pop expects 1 or -1, found: %d", n)
		}
		l.front = n < 0
	case opPull:
		return l.parsePull(o)
	case opPullAll:
		list, ok := f.Array()
		if !ok {
			return refuse(codeBadValue, "$pullAll requires an array argument but was given a %s", bsontext.TypeName(f.Type))
		}
		l.values = elems(list)
		l.match = func(n *node) (bool, error) { return contains(l.values, n.value(), o.Collator), nil }
	default: // any argument will do
	}
	return nil
}

func (l *leaf) parseNumber() error {
	if v := (value{typ: l.arg.Type}); !v.numeric() {
		verb := "increment"
		if l.op == opMul {
			verb = "multiply"
		}
		return refuse(codeTypeMismatch, "Cannot %s with non-numeric argument: %s", verb, bsontext.Braced(l.arg.Name(), l.arg.Raw()))
	}
	if l.arg.Type == bson.TypeDecimal128 {
		return decimals("$inc and $mul")
	}
	l.number = numberOf(l.arg.Type, l.arg.Value)
	return nil
}

func decimals(op string) error {
	return refuse(codeNotImplemented, "the arithmetic of decimals (%s) is not implemented", op)
}

type bitOperation struct {
	name    byte // the first letter of and, or, xor
	operand number
}

func (l *leaf) parseBits() error {
	const form = "{$bit: {field: {and/or/xor: #}}"
	doc, ok := l.arg.Document()
	if !ok {
		return refuse(codeBadValue, "The $bit modifier is not compatible with a %s. You must pass in an embedded document: %s",
			bsontext.TypeName(l.arg.Type), form)
	}
	for f := rawbson.NewIter(doc); f.Next(); {
		switch f.Name() {
		case "and", "or", "xor":
		default:
			return refuse(codeBadValue, "The $bit modifier only supports 'and', 'or', and 'xor', not '%s' which is an unknown operator: %s",
				f.Name(), bsontext.Braced(f.Name(), f.Raw()))
		}
		if f.Type != bson.TypeInt32 && f.Type != bson.TypeInt64 {
			return refuse(codeBadValue, "The $bit modifier field must be an Integer(32/64 bit); a '%s' is not supported here: %s",
				bsontext.TypeName(f.Type), bsontext.Braced(f.Name(), f.Raw()))
		}
		l.bits = append(l.bits, bitOperation{f.Name()[0], numberOf(f.Type, f.Value)})
	}
	if l.bits == nil {
		return refuse(codeBadValue, "You must pass in at least one bitwise operation. The format is: %s", form)
	}
	return nil
}

func (l *leaf) parseDate(o *Options) error {
	if l.arg.Type == bson.TypeBoolean {
		l.date = true
	} else {
		doc, ok := l.arg.Document()
		if !ok {
			return refuse(codeBadValue, "%s is not valid type for $currentDate. Please use a boolean ('true') or a $type expression "+
				"({$type: 'timestamp/date'}).", bsontext.TypeName(l.arg.Type))
		}
		found := false
		for f := rawbson.NewIter(doc); f.Next(); {
			if !f.Is("$type") {
				return refuse(codeBadValue, "Unrecognized $currentDate option: %s", f.Name())
			}
			switch text, _ := f.Text(); text {
			case "date":
				l.date, found = true, true
			case "timestamp":
				l.date, found = false, true
			}
		}
		if !found {
			return refuse(codeBadValue, "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : {$type: 'date'}}}")
		}
	}
	if l.date && o.Clock == nil || !l.date && o.Tick == nil {
		return refuse(codeNotImplemented, "$currentDate: no clock is there")
	}
	return nil
}

func (l *leaf) parseRename(to []string) error {
	f := &l.arg
	from, err := updatePath(f.Name())
	if err != nil {
		return err
	}
	l.path = from
	target, _ := f.Text()
	field := bsontext.Element(f.Name(), f.Raw())
	common := 0
	for common < len(from) && common < len(to) && from[common] == to[common] {
		common++
	}
	switch {
	case strings.IndexByte(target, 0) >= 0:
		return refuse(codeBadValue, "The 'to' field for $rename cannot contain an embedded null byte")
	case common == len(from) && common == len(to):
		return refuse(codeBadValue, "The source and target field for $rename must differ: %s", field)
	case common == len(from) || common == len(to):
		return refuse(codeBadValue, "The source and target field for $rename must not be on the same path: %s", field)
	case dynamic(from):
		return refuse(codeBadValue, "The source field for $rename may not be dynamic: %s", f.Name())
	case dynamic(to):
		return refuse(codeBadValue, "The destination field for $rename may not be dynamic: %s", target)
	}
	return nil
}

// pushSpec is the modifiers of $each.
type pushSpec struct {
	slice    int64
	position int64
	sort     []sortField // empty for no sorting
}

// sortField is a path to order by, nil for the whole element.
type sortField struct {
	path    []string
	descend bool
}

func (l *leaf) parsePush() error {
	doc, ok := l.arg.Document()
	if ok {
		_, ok = rawbson.Lookup(doc, "$each")
	}
	if !ok {
		l.values = []rawbson.Elem{l.arg}
		return nil
	}
	l.push = &pushSpec{slice: math.MaxInt64, position: math.MaxInt64}
	clauses := make(map[string]rawbson.Elem)
	for f := rawbson.NewIter(doc); f.Next(); {
		switch name := f.Name(); name {
		case "$each", "$slice", "$sort", "$position":
			if _, ok := clauses[name]; ok {
				return refuse(codeBadValue, "Only one %s is supported.", name)
			}
			clauses[name] = f.Elem
		default:
			return refuse(codeBadValue, "Unrecognized clause in $push: %s", name)
		}
	}
	each := clauses["$each"]
	list, ok := each.Array()
	if !ok {
		return refuse(codeBadValue, "The argument to $each in $push must be an array but it was of type: %s", bsontext.TypeName(each.Type))
	}
	l.values = elems(list)
	var err error
	if f, ok := clauses["$slice"]; ok {
		if l.push.slice, err = integer(&f); err != nil {
			return refuse(codeBadValue, "The value for $slice must be an integer value but was given type: %s", bsontext.TypeName(f.Type))
		}
	}
	if f, ok := clauses["$sort"]; ok {
		if l.push.sort, err = parsePushSort(f); err != nil {
			return err
		}
	}
	if f, ok := clauses["$position"]; ok {
		if l.push.position, err = integer(&f); err != nil {
			return refuse(codeBadValue, "The value for $position must be an integer value, not of type: %s", bsontext.TypeName(f.Type))
		}
	}
	return nil
}

func parsePushSort(f rawbson.Elem) ([]sortField, error) {
	direction := func(e *rawbson.Elem) (bool, error) {
		n, _ := integer(e)
		if n != 1 && n != -1 {
			return false, refuse(codeBadValue, "The $sort element value must be either 1 or -1")
		}
		return n < 0, nil
	}
	doc, ok := f.Document()
	if !ok {
		if v := (value{typ: f.Type}); !v.numeric() {
			return nil, refuse(codeBadValue,
				"The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields")
		}
		descend, err := direction(&f)
		return []sortField{{descend: descend}}, err
	}
	var fields []sortField
	for it := rawbson.NewIter(doc); it.Next(); {
		descend, err := direction(&it.Elem)
		if err != nil {
			return nil, err
		}
		if len(it.Key) == 0 {
			return nil, refuse(codeBadValue, "The $sort field cannot be empty")
		}
		path := strings.Split(it.Name(), ".")
		if slices.Contains(path, "") {
			return nil, refuse(codeBadValue, "The $sort field is a dotted field but has an empty part: %s", it.Name())
		}
		fields = append(fields, sortField{path, descend})
	}
	if fields == nil {
		return nil, refuse(codeBadValue, "The $sort pattern is empty when it should be a set of fields.")
	}
	return fields, nil
}

func (l *leaf) parseAddToSet(coll *bsonorder.Collator) error {
	given := []rawbson.Elem{l.arg}
	if doc, ok := l.arg.Document(); ok {
		fields := elems(doc)
		if len(fields) > 0 && fields[0].Is("$each") {
			list, ok := fields[0].Array()
			if !ok {
				return refuse(codeTypeMismatch, "The argument to $each in $addToSet must be an array but it was of type %s", bsontext.TypeName(fields[0].Type))
			}
			if len(fields) > 1 {
				return refuse(codeBadValue, "Found unexpected fields after $each in $addToSet: %s", bsontext.Document(doc))
			}
			given = elems(list)
		}
	}
	for _, v := range given {
		if !contains(l.values, v.Raw(), coll) {
			l.values = append(l.values, v)
		}
	}
	return nil
}

func contains(list []rawbson.Elem, v bson.RawValue, coll *bsonorder.Collator) bool {
	for i := range list {
		if bsonorder.Compare(list[i].Raw(), v, coll) == 0 {
			return true
		}
	}
	return false
}

// parsePull tells apart the three kinds of conditions: a query on elements that
// are objects, a predicate on any element, and a value to be equal to.
func (l *leaf) parsePull(o *Options) error {
	doc, object := l.arg.Document()
	if object {
		it := rawbson.NewIter(doc)
		if !it.Next() || !predicates[it.Name()] {
			match, err := o.match("$pull", l.arg.Raw())
			if err != nil {
				return err
			}
			l.match = func(n *node) (bool, error) {
				if n.typ != bson.TypeEmbeddedDocument {
					return false, nil
				}
				return match(n.value())
			}
			return nil
		}
	}
	if object || l.arg.Type == bson.TypeRegex {
		match, err := o.match("$pull", wrap(l.arg.Raw()))
		if err != nil {
			return err
		}
		l.match = func(n *node) (bool, error) { return match(wrap(n.value())) }
		return nil
	}
	v, coll := l.arg.Raw(), o.Collator
	l.match = func(n *node) (bool, error) { return bsonorder.Compare(n.value(), v, coll) == 0, nil }
	return nil
}

// predicates are the operators that stand on a value, not at the top of a query.
var predicates = map[string]bool{
	"$eq": true, "$gt": true, "$gte": true, "$lt": true, "$lte": true, "$ne": true, "$in": true, "$nin": true, "$size": true,
	"$all": true, "$exists": true, "$mod": true, "$type": true, "$regex": true, "$options": true, "$elemMatch": true,
	"$bitsAllSet": true, "$bitsAllClear": true, "$bitsAnySet": true, "$bitsAnyClear": true,
	"$geoWithin": true, "$within": true, "$near": true, "$nearSphere": true, "$geoIntersects": true,
}

// wrap makes a document of one value, so that a query can name it.
func wrap(v bson.RawValue) bson.RawValue { return wrapAs("v", v) }

func wrapAs(name string, v bson.RawValue) bson.RawValue {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(v.Value)+len(name)+8))
	dst = appendRaw(dst, v.Type, name, v.Value)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: dst}
}

// integer reads a whole number of any type.
func integer(e *rawbson.Elem) (int64, error) {
	v := value{typ: e.Type, raw: e.Value}
	if !v.numeric() {
		return 0, refuse(codeFailedToParse, "Expected a number in: %s", bsontext.Element(e.Name(), e.Raw()))
	}
	r, finite := v.rational()
	switch {
	case !finite || !r.IsInt():
		return 0, refuse(codeFailedToParse, "Expected an integer: %s", bsontext.Element(e.Name(), e.Raw()))
	case !r.Num().IsInt64():
		return 0, refuse(codeFailedToParse, "Cannot represent as a 64-bit integer: %s", bsontext.Element(e.Name(), e.Raw()))
	}
	return r.Num().Int64(), nil
}

// within adds the place to a refusal. Other errors stay as they are.
func within(context string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Within(context)
	}
	return fmt.Errorf("serverupdate: %s: %w", strings.ToLower(context), err)
}

func validateFilters(filters bson.Raw) error {
	if err := rawbson.Validate(filters); err != nil {
		return fmt.Errorf("serverupdate: read the array filters: %w", err)
	}
	return nil
}
