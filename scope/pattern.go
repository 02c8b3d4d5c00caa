package scope

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/oplogrep/replicator/oplog"
)

// pattern is one element of --include or --exclude.
type pattern struct {
	// text is the normal form: equivalent wildcard patterns have the same one.
	text string
	// db and coll are parts with wildcards; they are unused if expr is set.
	db, coll string
	expr     *expression
}

// parsePattern parses a pattern.
func parsePattern(text string) (*pattern, error) {
	if strings.HasPrefix(text, "/") {
		if len(text) < len("/./") || !strings.HasSuffix(text, "/") {
			return nil, errors.New("write a regular expression between slashes, flags as in /(?i)shop\\..*/")
		}
		expr, err := parseExpression(text[1 : len(text)-1])
		if err != nil {
			return nil, err
		}
		return &pattern{text: text, expr: expr}, nil
	}
	db, coll, dotted := strings.Cut(text, ".")
	if !dotted {
		coll = "*"
	}
	// A wildcard stands for characters that a name may have, except for the length.
	if err := checkDB(wildcards.Replace(db)); err != nil {
		return nil, err
	}
	if coll == "" {
		return nil, errors.New("no collection after the dot")
	}
	if coll[0] == '.' || strings.Contains(coll, "\x00") {
		return nil, checkCollection(coll)
	}
	p := &pattern{db: simplify(db), coll: simplify(coll)}
	p.text = p.db + "." + p.coll
	return p, nil
}

var wildcards = strings.NewReplacer("*", "x", "?", "x")

func hasWildcard(s string) bool { return strings.ContainsAny(s, "*?") }

// simplify returns the normal form of a part with wildcards. A name is never empty.
func simplify(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '*' && s[i] != '?' {
			b.WriteByte(s[i])
			i++
			continue
		}
		run := s[i:]
		if end := strings.IndexFunc(run, func(r rune) bool { return r != '*' && r != '?' }); end >= 0 {
			run = run[:end]
		}
		i += len(run)
		b.WriteString(strings.Repeat("?", strings.Count(run, "?")))
		if strings.Contains(run, "*") {
			b.WriteByte('*')
		}
	}
	if b.String() == "?*" {
		return "*"
	}
	return b.String()
}

// names returns the names in a pattern for one collection, or for one database, with an
// empty coll. It returns false for other patterns.
func (p *pattern) names() (db, coll string, ok bool) {
	switch {
	case p.expr != nil || hasWildcard(p.db):
		return "", "", false
	case p.coll == "*":
		return p.db, "", true
	default:
		return p.db, p.coll, !hasWildcard(p.coll)
	}
}

func (p *pattern) all() bool { return p.expr == nil && p.db == "*" && p.coll == "*" }

// match reports whether the pattern matches a collection.
func (p *pattern) match(ns oplog.Namespace) bool {
	if p.expr != nil {
		return p.expr.match(string(ns))
	}
	return wild(p.db, ns.DB()) && wild(p.coll, ns.Collection())
}

// mayMatchIn reports whether the pattern can match a collection of db.
func (p *pattern) mayMatchIn(db string) bool {
	if p.expr != nil {
		return p.expr.mayMatchIn(db)
	}
	return wild(p.db, db)
}

// cover reports whether the pattern matches every collection of db. If that is
// undecided it returns false.
func (p *pattern) cover(db string) bool {
	if p.expr != nil {
		return p.expr.cover(db)
	}
	return p.coll == "*" && wild(p.db, db)
}

// wild reports whether a name matches a part with wildcards.
func wild(part, name string) bool {
	// Only the last star has to be retried: the part before it has the shortest match,
	// which leaves the most for the rest.
	star, again := -1, 0
	i, j := 0, 0
	for j < len(name) {
		switch {
		case i < len(part) && part[i] == '*':
			star, again = i, j
			i++
		case i < len(part) && part[i] == '?':
			_, size := utf8.DecodeRuneInString(name[j:])
			i++
			j += size
		case i < len(part) && part[i] == name[j]:
			i++
			j++
		case star >= 0:
			_, size := utf8.DecodeRuneInString(name[again:])
			again += size
			i, j = star+1, again
		default:
			return false
		}
	}
	return strings.Trim(part[i:], "*") == ""
}

// patterns is a list without redundant elements.
type patterns struct {
	exact map[oplog.Namespace]bool
	dbs   map[string]bool
	other []*pattern
	texts []string // all of them, in order
}

// parsePatterns parses the values of a flag. check returns an error for an invalid one.
func parsePatterns(flag string, values []string, check func(*pattern) error) (patterns, error) {
	var faults []error
	var list []*pattern
	for _, text := range values {
		p, err := parsePattern(text)
		if err == nil {
			err = check(p)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %q: %w", flag, text, err))
			continue
		}
		list = append(list, p)
	}
	return newPatterns(list), errors.Join(faults...)
}

func newPatterns(list []*pattern) patterns {
	byText := func(p, q *pattern) int { return strings.Compare(p.text, q.text) }
	slices.SortFunc(list, byText)
	list = slices.CompactFunc(list, func(p, q *pattern) bool { return p.text == q.text })
	l := patterns{exact: map[oplog.Namespace]bool{}, dbs: map[string]bool{}}
	for _, p := range list {
		if db, coll, ok := p.names(); !ok {
			l.other = append(l.other, p)
		} else if coll == "" {
			l.dbs[db] = true
		} else {
			l.exact[oplog.NewNamespace(db, coll)] = true
		}
	}
	covered := func(db string) bool {
		return slices.ContainsFunc(l.other, func(p *pattern) bool { return p.cover(db) })
	}
	for db := range l.dbs {
		if covered(db) {
			delete(l.dbs, db)
		}
	}
	for ns := range l.exact {
		if l.dbs[ns.DB()] || l.matchOther(ns) {
			delete(l.exact, ns)
		}
	}
	for _, p := range list {
		if db, coll, ok := p.names(); !ok || coll == "" && l.dbs[db] || coll != "" && l.exact[oplog.NewNamespace(db, coll)] {
			l.texts = append(l.texts, p.text)
		}
	}
	return l
}

func (l *patterns) empty() bool { return len(l.texts) == 0 }

func (l *patterns) all() bool { return slices.ContainsFunc(l.other, (*pattern).all) }

func (l *patterns) matchOther(ns oplog.Namespace) bool {
	return slices.ContainsFunc(l.other, func(p *pattern) bool { return p.match(ns) })
}

func (l *patterns) match(ns oplog.Namespace) bool {
	return l.exact[ns] || l.dbs[ns.DB()] || l.matchOther(ns)
}

// cover reports whether one of the patterns matches every collection of db.
func (l *patterns) cover(db string) bool {
	return l.dbs[db] || slices.ContainsFunc(l.other, func(p *pattern) bool { return p.cover(db) })
}

// mayMatchIn reports whether one can match a collection of db that is not excluded.
func (l *patterns) mayMatchIn(db string, excluded func(oplog.Namespace) bool) bool {
	if l.dbs[db] || slices.ContainsFunc(l.other, func(p *pattern) bool { return p.mayMatchIn(db) }) {
		return true
	}
	for ns := range l.exact {
		if ns.DB() == db && !excluded(ns) {
			return true
		}
	}
	return false
}
