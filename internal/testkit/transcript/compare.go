package transcript

import (
	"bytes"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// comparer compares a recorded document with ours, field by field. Where there is
// a rule for a path, it decides; else values have to be equal, and fields to be
// in the same order.
type comparer struct {
	rules map[string]rule
	pairs *pairs
	part  Part
	at    int
	// clock reports whether a time may be what the recorded server's clock, and ours,
	// showed when the document was written; nil where that cannot be.
	clock func(want, got bson.RawValue) bool

	found []Difference
}

func (c *comparer) differ(path, format string, args ...any) {
	c.found = append(c.found, Difference{Part: c.part, At: c.at, Path: path, What: fmt.Sprintf(format, args...)})
}

// document compares all fields. path is "" for the whole, else it ends in a dot.
func (c *comparer) document(path string, want, got bson.Raw) {
	w, g := rawbson.NewIter(want), rawbson.NewIter(got)
	more, has := w.Next(), g.Next()
	for more && has {
		switch {
		case w.Is(g.Name()):
			c.value(path+w.Name(), w.Raw(), g.Raw())
			more, has = w.Next(), g.Next()
		case !contains(g, w.Name()):
			c.differ(path+w.Name(), "missing, want %s", show(w.Raw()))
			more = w.Next()
		case !contains(w, g.Name()):
			c.differ(path+g.Name(), "%s, want no such field", show(g.Raw()))
			has = g.Next()
		default:
			c.differ(path+w.Name(), "out of order: the field there is %s", g.Name())
			return
		}
	}
	for ; more; more = w.Next() {
		c.differ(path+w.Name(), "missing, want %s", show(w.Raw()))
	}
	for ; has; has = g.Next() {
		c.differ(path+g.Name(), "%s, want no such field", show(g.Raw()))
	}
}

// unordered compares all fields, in whatever order they are.
func (c *comparer) unordered(path string, want, got bson.Raw) {
	for w := rawbson.NewIter(want); w.Next(); {
		if g, ok := rawbson.Lookup(got, w.Name()); ok {
			c.value(path+w.Name(), w.Raw(), g.Raw())
		} else {
			c.differ(path+w.Name(), "missing, want %s", show(w.Raw()))
		}
	}
	for g := rawbson.NewIter(got); g.Next(); {
		if _, ok := rawbson.Lookup(want, g.Name()); !ok {
			c.differ(path+g.Name(), "%s, want no such field", show(g.Raw()))
		}
	}
}

// contains reports whether a field is among those still to come.
func contains(it rawbson.Iter, name string) bool {
	for it.Next() {
		if it.Is(name) {
			return true
		}
	}
	return false
}

func (c *comparer) value(path string, want, got bson.RawValue) {
	if r, ok := c.rules[pattern(path)]; ok {
		if !r.same(c, path, want, got) {
			c.differ(path, "%s, want %s, by the rule %q", show(got), show(want), r.name)
		}
		return
	}
	same := want.Type == got.Type && bytes.Equal(want.Value, got.Value)
	if same || want.Type == got.Type && c.sameInside(path, want, got) {
		return
	}
	c.differ(path, "%s, want %s", show(got), show(want))
}

// sameInside reports whether two different values of one type may stand for each
// other. It goes through documents and arrays.
func (c *comparer) sameInside(path string, want, got bson.RawValue) bool {
	switch want.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		c.document(path+".", want.Value, got.Value)
		return true
	case bson.TypeObjectID:
		return c.generated(want, got)
	case bson.TypeDateTime, bson.TypeTimestamp:
		return c.clock != nil && c.clock(want, got) && c.pairs.match(kindClock, string(want.Value), string(got.Value))
	default:
		return false
	}
}

// generated reports whether two ObjectIDs may stand for each other: those that the
// server makes are random.
func (c *comparer) generated(want, got bson.RawValue) bool {
	return !c.pairs.sent[string(want.Value)] && c.pairs.match(kindID, string(want.Value), string(got.Value))
}

// pattern is a path with * for the numbers of array elements.
func pattern(path string) string {
	if strings.IndexByte(path, '.') < 0 {
		return path
	}
	parts := strings.Split(path, ".")
	for i, part := range parts {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// longest is how much of a value is shown, in bytes of Extended JSON.
const longest = 300

func show(v bson.RawValue) string {
	text := v.String()
	if text == "" {
		text = fmt.Sprintf("%s %x", v.Type, v.Value)
	}
	if len(text) <= longest {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes of BSON)", text[:longest], len(v.Value))
}
