package serverupdate

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// part is a node of the tree of a statement's paths: a leaf, or a branch. Its name
// is that of a field or an index, in a branch for arrays that of an array filter.
type part struct {
	name   string
	leaf   *leaf
	branch *branch
}

// branch is an inner node. In one for arrays the empty name means all elements.
type branch struct {
	array bool
	// parts are in the order in which the server applies them.
	parts []part
	// positional is the child named $, which has no place among the others until
	// it is resolved.
	positional *part
}

func (b *branch) child(name string) *part {
	if name == "$" && !b.array {
		return b.positional
	}
	if i, ok := b.search(name); ok {
		return &b.parts[i]
	}
	return nil
}

func (b *branch) search(name string) (int, bool) {
	return slices.BinarySearchFunc(b.parts, name, func(p part, name string) int { return comparePathParts(p.name, name) })
}

func (b *branch) put(p part) {
	if p.name == "$" && !b.array {
		b.positional = &p
		return
	}
	i, _ := b.search(p.name)
	b.parts = slices.Insert(b.parts, i, p)
}

// parseModifiers reads all operators into one tree. Two paths of which one is
// the other or a prefix of it conflict, whatever their operators.
func (s *Statement) parseModifiers(u []byte) error {
	if err := s.parseFilters(); err != nil {
		return err
	}
	s.tree = &branch{}
	for op := rawbson.NewIter(u); op.Next(); {
		kind, ok := operators[op.Name()]
		if !ok {
			return refuse(codeFailedToParse,
				"Unknown modifier: %s. Expected a valid update modifier or pipeline-style update specified as an array", op.Name())
		}
		doc, ok := op.Document()
		if !ok {
			return refuse(codeFailedToParse,
				"Modifiers operate on fields but we found type %s instead. For example: {$mod: {<field>: ...}} not %s",
				bsontext.TypeName(op.Type), bsontext.Braced(op.Name(), op.Raw()))
		}
		for f := rawbson.NewIter(doc); f.Next(); {
			if err := s.parseField(kind, f.Elem); err != nil {
				return err
			}
		}
	}
	for name, f := range s.filters {
		if !f.used {
			return refuse(codeFailedToParse, "The array filter for identifier '%s' was not used in the update %s", name, bsontext.Document(u))
		}
	}
	return nil
}

// parseField reads one operator on one field. A $rename takes a place at both of
// its paths.
func (s *Statement) parseField(op operator, f rawbson.Elem) error {
	target := f.Name()
	if op == opRename {
		if err := s.insert(f.Name(), &leaf{op: opRenameSource}); err != nil {
			return err
		}
		to, ok := f.Text()
		if !ok {
			return refuse(codeBadValue, "The 'to' field for $rename must be a string: %s", bsontext.Element(f.Name(), f.Raw()))
		}
		target = to
	}
	path, err := updatePath(target)
	if err != nil {
		return err
	}
	l := &leaf{op: op, arg: f}
	if err := l.parse(&s.opts, path); err != nil {
		return err
	}
	return s.insertPath(path, target, l)
}

func (s *Statement) insert(target string, l *leaf) error {
	path, err := updatePath(target)
	if err != nil {
		return err
	}
	return s.insertPath(path, target, l)
}

func (s *Statement) insertPath(path []string, target string, l *leaf) error {
	at := s.tree
	for i, name := range path {
		if name == "$" {
			s.positional = true
		}
		if id, ok := filterName(name); ok {
			if err := s.useFilter(id, i, target); err != nil {
				return err
			}
			name = id
		}
		child := at.child(name)
		if i == len(path)-1 {
			if child != nil {
				return conflict(target, path)
			}
			at.put(part{name: name, leaf: l})
			return nil
		}
		_, array := filterName(path[i+1])
		if child == nil {
			at.put(part{name: name, branch: &branch{array: array}})
			child = at.child(name)
		} else if child.branch == nil || child.branch.array != array {
			return conflict(target, path[:i+1])
		}
		at = child.branch
	}
	return nil
}

func conflict(target string, at []string) error {
	return refuse(codeConflictingUpdateOperators, "Updating the path '%s' would create a conflict at '%s'", target, strings.Join(at, "."))
}

// arrayFilter is a compiled array filter.
type arrayFilter struct {
	match Matcher
	used  bool
}

func (s *Statement) useFilter(name string, at int, target string) error {
	if at == 0 {
		return refuse(codeBadValue, "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '%s'", target)
	}
	if name == "" {
		return nil
	}
	f, ok := s.filters[name]
	if !ok {
		return refuse(codeBadValue, "No array filter found for identifier '%s' in path '%s'", name, target)
	}
	f.used = true
	s.filters[name] = f
	return nil
}

func (s *Statement) parseFilters() error {
	if s.opts.ArrayFilters == nil {
		return nil
	}
	if err := validateFilters(s.opts.ArrayFilters); err != nil {
		return err
	}
	s.filters = make(map[string]arrayFilter)
	for f := rawbson.NewIter(s.opts.ArrayFilters); f.Next(); {
		filter, ok := f.Document()
		if !ok {
			return refuse(codeTypeMismatch, "BSON field 'update.updates.arrayFilters.%s' is the wrong type '%s', expected type 'object'",
				f.Name(), bsontext.TypeName(f.Type))
		}
		match, err := s.opts.match("arrayFilters", f.Raw())
		if err != nil {
			return within("Error parsing array filter", err)
		}
		name, err := filterField(filter, "")
		if err != nil {
			return within("Error parsing array filter", err)
		}
		if name == "" {
			return refuse(codeFailedToParse, "Cannot use an expression without a top-level field name in arrayFilters")
		}
		if _, ok := s.filters[name]; ok {
			return refuse(codeFailedToParse, "Found multiple array filters with the same top-level field name %s", name)
		}
		s.filters[name] = arrayFilter{match: match}
	}
	return nil
}

// filterField returns the one name that all paths of a filter start with.
func filterField(filter bson.Raw, found string) (string, error) {
	for f := rawbson.NewIter(filter); f.Next(); {
		name, _, _ := strings.Cut(f.Name(), ".")
		switch name {
		case "$and", "$or", "$nor":
			list, _ := f.Array()
			for inner := rawbson.NewIter(list); list != nil && inner.Next(); {
				doc, ok := inner.Document()
				if !ok {
					continue
				}
				var err error
				if found, err = filterField(doc, found); err != nil {
					return "", err
				}
			}
			continue
		}
		switch {
		case strings.HasPrefix(name, "$"):
			continue
		case found != "" && found != name:
			return "", refuse(codeFailedToParse, "Expected a single top-level field name, found '%s' and '%s'", found, name)
		case !isIdentifier(name):
			return "", refuse(codeBadValue,
				"The top-level field name must be an alphanumeric string beginning with a lowercase letter, found '%s'", name)
		}
		found = name
	}
	return found, nil
}

func isIdentifier(name string) bool {
	for i := range len(name) {
		c := name[i]
		lower, other := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !lower && (i == 0 || !other) {
			return false
		}
	}
	return name != ""
}

// match compiles a filter for the clause of that name.
func (o *Options) match(clause string, filter bson.RawValue) (Matcher, error) {
	if o.Match == nil {
		return nil, refuse(codeNotImplemented, "%s with a query: no matcher is there", clause)
	}
	return o.Match(filter)
}
