package serverupdate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// maxFieldPath is how many parts the server's expressions accept in a path.
const maxFieldPath = 200

// fieldPath splits a dotted path by the rules of the server's pipelines: no
// empty part, no part that starts with a dollar, no zero byte.
func fieldPath(path string) ([]string, error) {
	switch {
	case path == "":
		return nil, refuse(40352, "parse a field path: it is empty")
	case strings.HasSuffix(path, "."):
		return nil, refuse(40353, "parse field path %q: it ends with a dot", path)
	}
	parts := strings.Split(path, ".")
	if len(parts) > maxFieldPath {
		return nil, refuse(codeOverflow, "parse a field path of %d parts: at most %d", len(parts), maxFieldPath)
	}
	for _, part := range parts {
		if err := checkFieldName(part); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// checkFieldName checks one part of a path, and the names in object expressions.
func checkFieldName(name string) error {
	switch {
	case name == "":
		return refuse(15998, "parse a field path: a part is empty")
	case name[0] == '$' && !dollarNames[name]:
		return refuse(16410, "parse field name %q: it starts with a dollar", name)
	case strings.IndexByte(name, 0) >= 0:
		return refuse(16411, "parse field name %q: it contains a zero byte", name)
	case strings.Contains(name, "."):
		return refuse(16412, "parse field name %q: it contains a dot", name)
	}
	return nil
}

// dollarNames are the names with a dollar that the server's pipelines accept:
// those of a DBRef and some of its own metadata.
var dollarNames = map[string]bool{
	"$id": true, "$ref": true, "$db": true, "$sortKey": true,
	"$recordId": true, "$searchSortValues": true, "$searchScore": true,
}

// maxUpdatePath is how many parts the server accepts in a modifier's path.
const maxUpdatePath = 255

// updatePath splits a dotted path by the rules of the server's modifiers, which
// allow dollars: $ names the element that the query matched, $[] all elements and
// $[name] those that an array filter chooses.
func updatePath(path string) ([]string, error) {
	if path == "" {
		return nil, refuse(codeEmptyFieldName, "An empty update path is not valid.")
	}
	if strings.IndexByte(path, '.') < 0 {
		return []string{path}, checkPositional([]string{path}, path)
	}
	parts := strings.Split(path, ".")
	if len(parts) > maxUpdatePath {
		return nil, refuse(codeOverflow, "Field name path length has exceeded the limit of %d", maxUpdatePath)
	}
	if slices.Contains(parts, "") {
		return nil, refuse(codeEmptyFieldName, "The update path '%s' contains an empty field name, which is not allowed.", path)
	}
	return parts, checkPositional(parts, path)
}

func checkPositional(parts []string, path string) error {
	first, count := -1, 0
	for i, part := range parts {
		if part == "$" {
			if count++; count == 1 {
				first = i
			}
		}
	}
	switch {
	case count > 1:
		return refuse(codeBadValue, "Too many positional (i.e. '$') elements found in path '%s'", path)
	case first == 0:
		return refuse(codeBadValue, "Cannot have positional (i.e. '$') element in the first position in path '%s'", path)
	}
	return nil
}

// filterName returns the name in the brackets of $[name].
func filterName(part string) (string, bool) {
	if len(part) >= 3 && part[0] == '$' && part[1] == '[' && part[len(part)-1] == ']' {
		return part[2 : len(part)-1], true
	}
	return "", false
}

// dynamic reports whether a path has a part that only a document can fill in.
func dynamic(parts []string) bool {
	for _, part := range parts {
		if _, ok := filterName(part); ok || part == "$" {
			return true
		}
	}
	return false
}

// arrayIndex reads a part of a path as the server does on an array: decimal
// digits only, leading zeros allowed.
func arrayIndex(part string) (int, bool) {
	if part == "" {
		return 0, false
	}
	for i := range len(part) {
		if part[i] < '0' || part[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.Atoi(part)
	return n, err == nil
}

// comparePathParts is the order in which the server applies the modifiers of one
// object, and so creates its fields: by bytes, but of two names that both start
// with a digit and have no leading zero the shorter one comes first.
func comparePathParts(a, b string) int {
	if numberLike(a) && numberLike(b) && len(a) != len(b) {
		return cmp.Compare(len(a), len(b))
	}
	return strings.Compare(a, b)
}

func numberLike(s string) bool {
	return s != "" && s[0] >= '0' && s[0] <= '9' && (s[0] != '0' || len(s) == 1)
}
