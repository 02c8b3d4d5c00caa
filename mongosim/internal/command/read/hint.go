package read

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

// Hint is the argument hint.
type Hint struct {
	Name    string
	Key     bson.Raw
	Natural int
}

// Given reports whether there is an index hint.
func (h *Hint) Given() bool { return h.Name != "" || h.Key != nil }

// ParseHint reads the argument hint.
func ParseHint(e *rawbson.Elem) (Hint, error) {
	if name, ok := e.Text(); ok {
		return Hint{Name: strings.Clone(name)}, nil
	}
	key, ok := e.Document()
	if !ok {
		return Hint{}, servererr.New(servererr.FailedToParse, "Hint must be a string or an object")
	}
	if len(key) <= rawbson.MinSize {
		return Hint{}, nil
	}
	natural, ok := rawbson.Lookup(key, "$natural")
	if !ok {
		return Hint{Key: key}, nil
	}
	n, number := dispatch.NumberArg(&natural)
	if !number || n != 1 && n != -1 {
		return Hint{}, servererr.New(servererr.BadValue, "$natural hint cannot be set to a value other than -1 or 1.")
	}
	return Hint{Natural: int(n)}, nil
}

// DebugQuery prints a query the way the server does in faults of its planner. Of
// the filter, conditions other than plain comparisons are printed as they were
// sent.
func DebugQuery(ns oplog.Namespace, a *FindArgs) string {
	var s strings.Builder
	s.WriteString("ns=" + string(ns))
	if a.BatchSize >= 0 {
		s.WriteString(" batchSize=" + formatInt(a.BatchSize))
	}
	if a.limit > 0 {
		s.WriteString(" limit=" + formatInt(a.limit))
	}
	if a.skip > 0 {
		s.WriteString(" skip=" + formatInt(a.skip))
	}
	s.WriteString("Tree: " + debugFilter(a.Filter))
	s.WriteString("Sort: " + bsontext.Document(orEmpty(a.Sort)) + "\n")
	s.WriteString("Proj: " + bsontext.Document(orEmpty(a.projection)) + "\n")
	if len(a.Collation) > rawbson.MinSize {
		s.WriteString("Collation: " + bsontext.Document(a.Collation) + "\n")
	}
	return s.String()
}

func debugFilter(filter bson.Raw) string {
	var lines []string
	it := rawbson.NewIter(filter)
	for it.Next() {
		lines = append(lines, debugCondition(&it.Elem))
	}
	if len(lines) == 1 {
		return lines[0] + "\n"
	}
	lines = append([]string{"$and"}, lines...)
	return strings.Join(lines, "\n    ") + "\n"
}

func debugCondition(e *rawbson.Elem) string {
	if doc, ok := e.Document(); ok {
		first := dispatch.FirstElem(doc)
		if key := string(first.Key); strings.HasPrefix(key, "$") {
			return e.Name() + " " + key + " " + bsontext.Value(first.Raw())
		}
	}
	return e.Name() + " $eq " + bsontext.Value(e.Raw())
}

func orEmpty(doc bson.Raw) bson.Raw {
	if doc == nil {
		return dispatch.EmptyDocument
	}
	return doc
}
