package main

import (
	"fmt"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// kinds are the letters that --op takes.
var kinds = map[string]oplog.Kind{
	"i": oplog.KindInsert, "u": oplog.KindUpdate, "d": oplog.KindDelete, "c": oplog.KindCommand, "n": oplog.KindNoop,
}

// chooser selects the entries to print.
type chooser struct {
	since, until bson.Timestamp // zero: any
	kinds        map[oplog.Kind]bool
	names        []*regexp.Regexp
}

// when reports whether an entry's time is selected.
func (c *chooser) when(ts bson.Timestamp) bool {
	return oplog.CompareTimestamps(ts, c.since) >= 0 && !c.over(ts)
}

// over reports whether no later entry is selected.
func (c *chooser) over(ts bson.Timestamp) bool {
	return c.until.T != 0 && oplog.CompareTimestamps(ts, c.until) > 0
}

// what reports whether an operation is selected. A command belongs to the
// collection that it names.
func (c *chooser) what(op *oplog.Op) bool {
	if len(c.kinds) > 0 && !c.kinds[op.Kind] {
		return false
	}
	if len(c.names) == 0 {
		return true
	}
	names := []oplog.Namespace{op.NS}
	if op.Kind == oplog.KindCommand {
		if ns, to, err := op.Target(); err == nil {
			names = []oplog.Namespace{ns, to}
		}
	}
	for _, ns := range names {
		for _, p := range c.names {
			if ns != "" && p.MatchString(string(ns)) {
				return true
			}
		}
	}
	return false
}

// parsePattern reads a pattern for namespaces: a database, a collection, with *
// and ? as wildcards, or a regular expression between slashes. The first dot
// separates database and collection.
func parsePattern(text string) (*regexp.Regexp, error) {
	if expression, ok := strings.CutPrefix(text, "/"); ok {
		if expression, ok = strings.CutSuffix(expression, "/"); !ok || expression == "" {
			return nil, fmt.Errorf("%q does not end with a slash, as a regular expression must", text)
		}
		re, err := regexp.Compile("^(?:" + expression + ")$")
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		return re, nil
	}
	db, coll, dotted := strings.Cut(text, ".")
	if db == "" || dotted && coll == "" {
		return nil, fmt.Errorf("%q is not a namespace", text)
	}
	wild := func(s, one string) string {
		return strings.NewReplacer(`\*`, one+"*", `\?`, one).Replace(regexp.QuoteMeta(s))
	}
	expression := "(?s)^" + wild(db, `[^.]`)
	if dotted {
		expression += `\.` + wild(coll, ".")
	} else {
		expression += `(\..*)?`
	}
	return regexp.Compile(expression + "$")
}
