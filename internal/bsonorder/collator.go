package bsonorder

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/text/collate"
	"golang.org/x/text/language"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// errCollation is what every [*CollationError] is, for errors.Is.
var errCollation = errors.New("collation not supported")

// CollationError reports an unsupported collation.
type CollationError struct {
	// Spec is the collation.
	Spec bson.Raw
	// Field is the option in question.
	Field string
	// What says why.
	What string
}

func (e *CollationError) Error() string {
	return fmt.Sprintf("collation %s: %s: %s", e.Spec, e.Field, e.What)
}

// Is makes the error an errCollation.
func (e *CollationError) Is(target error) bool { return target == errCollation }

// Collator compares strings by a collation. The nil Collator compares bytes. It
// is safe for concurrent use.
type Collator struct {
	mu      sync.Mutex // guards the rest: even comparing needs room
	collate *collate.Collator
	buffer  collate.Buffer
}

// NewCollator returns the collator for a collation as the server stores it. It
// is nil, for comparison by bytes, if spec is empty or its locale is "simple".
// Strengths 1 to 3 and numericOrdering are supported; any other option has to
// have the value that does nothing, or there is a [*CollationError]. The version
// of the server's tables is ignored.
func NewCollator(spec bson.Raw) (*Collator, error) {
	if len(spec) == 0 {
		return nil, nil
	}
	var locale string
	var options []collate.Option
	it := rawbson.NewIter(spec)
	for it.Next() {
		option, what := collationOption(&it.Elem, &locale)
		if what != "" {
			return nil, &CollationError{spec, string(it.Key), what}
		}
		options = append(options, option...)
	}
	if err := it.Err(); err != nil {
		return nil, &CollationError{spec, "locale", err.Error()}
	}
	if locale == "simple" {
		return nil, nil
	}
	tag, err := language.Parse(locale)
	if err != nil {
		return nil, &CollationError{spec, "locale", err.Error()}
	}
	return &Collator{collate: collate.New(tag, options...)}, nil
}

// collationOption reads one field of a collation, or returns its error as text.
func collationOption(f *rawbson.Elem, locale *string) (options []collate.Option, what string) {
	const other = "a value other than the one that does nothing"
	text, _ := f.Text()
	flag, _ := f.Bool()
	switch f.Name() {
	case "locale":
		*locale = string([]byte(text))
	case "strength":
		switch n, _ := f.Int64(); n {
		case 1:
			return []collate.Option{collate.IgnoreCase, collate.IgnoreDiacritics}, ""
		case 2:
			return []collate.Option{collate.IgnoreCase}, ""
		case 3:
		default:
			return nil, "a strength other than 1, 2 and 3"
		}
	case "numericOrdering":
		if flag {
			return []collate.Option{collate.Numeric}, ""
		}
	case "caseLevel", "backwards":
		if flag {
			return nil, other
		}
	case "caseFirst":
		if text != "off" {
			return nil, other
		}
	case "alternate":
		if text != "non-ignorable" {
			return nil, other
		}
	case "normalization", "maxVariable", "version":
		// Strings are always normalised here, the same values come out; and
		// maxVariable means something with another alternate only.
	default:
		return nil, "an unknown option"
	}
	return nil, ""
}

// compare goes by collation keys: unlike comparing character by character, that
// is a total order whatever the strings are.
func (c *Collator) compare(a, b []byte) int {
	if c == nil || bytes.Equal(a, b) {
		return bytes.Compare(a, b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buffer.Reset()
	aKey := c.collate.Key(&c.buffer, a)
	bKey := c.collate.Key(&c.buffer, b)
	return bytes.Compare(aKey, bKey)
}

// key returns the collation key of a string: its bytes for the nil Collator.
func (c *Collator) key(s []byte) []byte {
	if c == nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buffer.Reset()
	return bytes.Clone(c.collate.Key(&c.buffer, s))
}

// Key returns the collation key of a string, which compares by its bytes as the
// string does by the collation. It is not the key that a server would show: that
// depends on its tables.
func (c *Collator) Key(s string) []byte { return c.key([]byte(s)) }
