package ddl

import "strings"

// badRange reports whether a class of characters in the pattern has a range that begins or ends with a set of characters, as in [\w-.] or
// [+-\d]. In PCRE, which servers used before 6.1, the hyphen stood for itself; in PCRE2 it is an error, unless it is the last character of
// the class (parse_regex in pcre2_compile.c). Comments of (?x) count as patterns.
func badRange(pattern string) bool {
	for rest := unquoted(pattern); rest != ""; {
		bad := false
		switch {
		case strings.HasPrefix(rest, "(?#"):
			_, rest, _ = strings.Cut(rest, ")")
		case rest[0] == '[':
			rest, bad = class(rest[1:])
		default:
			rest, _ = character(rest)
		}
		if bad {
			return true
		}
	}
	return false
}

// unquoted returns the pattern with a letter for each character between \Q and \E.
func unquoted(pattern string) string {
	var b strings.Builder
	for pattern != "" {
		if quoted, ok := strings.CutPrefix(pattern, `\Q`); ok {
			quoted, pattern, _ = strings.Cut(quoted, `\E`)
			b.WriteString(strings.Repeat("q", len(quoted)))
			continue
		}
		rest, _ := character(pattern)
		b.WriteString(pattern[:len(pattern)-len(rest)])
		pattern = rest
	}
	return b.String()
}

// character reads one character or escape. Set reports that it stands for a set of characters.
func character(pattern string) (rest string, set bool) {
	if len(pattern) < 2 || pattern[0] != '\\' {
		return pattern[1:], false
	}
	c, rest := pattern[1], pattern[2:]
	switch c {
	case 'p', 'P':
		if _, after, ok := strings.Cut(rest, "}"); ok && rest[0] == '{' {
			return after, true
		}
		return rest[min(1, len(rest)):], true
	case 'c': // a control character, as in \c]
		return rest[min(1, len(rest)):], false
	}
	return rest, strings.IndexByte("dDwWsSvVhH", c) >= 0
}

// member reads one member of a class: a class like [:alpha:], a character or an escape.
func member(pattern string) (rest string, set bool) {
	if name, ok := strings.CutPrefix(pattern, "[:"); ok {
		if name, rest, ok = strings.Cut(name, ":]"); ok && !strings.ContainsAny(name, `]\`) {
			return rest, true
		}
	}
	return character(pattern)
}

// class reads a class of characters after its bracket, and reports whether it has a range of a set.
func class(pattern string) (rest string, bad bool) {
	rest = strings.TrimPrefix(pattern, "^")
	for first := true; rest != "" && (first || rest[0] != ']'); first = false {
		var begins, ends bool
		rest, begins = member(rest)
		if len(rest) < 2 || rest[0] != '-' || rest[1] == ']' {
			continue
		}
		if rest, ends = member(rest[1:]); begins || ends {
			return "", true
		}
		rest = strings.TrimPrefix(rest, "-") // after a range it stands for itself
	}
	return strings.TrimPrefix(rest, "]"), false
}
