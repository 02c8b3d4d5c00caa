package serverquery

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// pattern is $regex: it finds strings that it matches, and itself.
type pattern struct {
	re *regexp.Regexp
	// self is the value that is equal to the expression.
	source, options string
	// beforeNewline is whether a dollar may also stand before a last line break,
	// which RE2 does not know.
	beforeNewline bool
}

// codes of the server's single assertions.
const (
	codeInvalidRegex       = servererr.Code(51091)
	codeInvalidRegexOption = servererr.Code(51108)
	codeTwoRegexOptions    = servererr.Code(51075)
)

func newPattern(source, options string) (*pattern, error) {
	flags := syntax.Perl
	for _, c := range options {
		switch c {
		case 'i', 'm', 's':
		case 'u': // strings are UTF-8 anyway
		case 'x':
			return nil, notImplemented("the option x of regular expressions")
		default:
			return nil, servererr.New(codeInvalidRegexOption, "invalid flag in regex options: %c", c)
		}
	}
	text := source
	if set := strings.ReplaceAll(options, "u", ""); set != "" {
		text = "(?" + set + ")" + source
	}
	tree, err := syntax.Parse(text, flags)
	if err != nil {
		return nil, regexFault(err, source)
	}
	if strings.Contains(source, `\v`) {
		return nil, notImplemented(`\v in a regular expression`)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, regexFault(err, source)
	}
	dollar, end := endings(tree)
	if dollar && end {
		return nil, notImplemented(`a regular expression with both $ and \z`)
	}
	return &pattern{re: re, source: source, options: options, beforeNewline: dollar}, nil
}

// regexFault distinguishes invalid expressions from those that RE2 does not
// support.
func regexFault(err error, source string) error {
	if e, ok := errors.AsType[*syntax.Error](err); ok {
		switch e.Code {
		case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingRepeatArgument,
			syntax.ErrTrailingBackslash, syntax.ErrInvalidCharRange, syntax.ErrInvalidUTF8:
			// The Perl syntax for groups that look around ends up as a missing argument.
			if !strings.Contains(source, "(?") {
				return servererr.New(codeInvalidRegex, "Regular expression is invalid: %s", e.Code)
			}
		default:
		}
	}
	return notImplemented("the regular expression /%s/, which needs more than RE2 (%s),", source, err)
}

func endings(tree *syntax.Regexp) (dollar, end bool) {
	if tree.Op == syntax.OpEndText {
		if tree.Flags&syntax.WasDollar != 0 {
			return true, false
		}
		return false, true
	}
	for _, sub := range tree.Sub {
		d, e := endings(sub)
		dollar, end = dollar || d, end || e
	}
	return dollar, end
}

func (p *pattern) test(v val) (bool, int) {
	switch v.t {
	case bson.TypeString, bson.TypeSymbol:
		return p.matches(v.b[4 : len(v.b)-1]), 0
	case bson.TypeRegex:
		source, options := regexParts(v.b)
		return source == p.source && options == p.options, 0
	default:
		return false, 0
	}
}

func (p *pattern) matches(text []byte) bool {
	if p.re.Match(text) {
		return true
	}
	return p.beforeNewline && bytes.HasSuffix(text, []byte{'\n'}) && p.re.Match(text[:len(text)-1])
}

// regexParts takes a regular expression value apart.
func regexParts(b []byte) (source, options string) {
	source, rest, _ := strings.Cut(rawbson.View(b), "\x00")
	return source, strings.TrimSuffix(rest, "\x00")
}
