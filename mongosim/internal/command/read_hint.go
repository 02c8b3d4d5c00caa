package command

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// hint is the argument hint.
type hint struct {
	name    string
	key     bson.Raw
	natural int
}

// given tells whether there is a hint at an index.
func (h *hint) given() bool { return h.name != "" || h.key != nil }

func parseHint(e *rawbson.Elem) (hint, error) {
	if name, ok := e.Text(); ok {
		return hint{name: strings.Clone(name)}, nil
	}
	key, ok := e.Document()
	if !ok {
		return hint{}, servererr.New(servererr.FailedToParse, "Hint must be a string or an object")
	}
	if len(key) <= rawbson.MinSize {
		return hint{}, nil
	}
	natural, ok := rawbson.Lookup(key, "$natural")
	if !ok {
		return hint{key: key}, nil
	}
	n, number := numberArg(&natural)
	if !number || n != 1 && n != -1 {
		return hint{}, servererr.New(servererr.BadValue, "$natural hint cannot be set to a value other than -1 or 1.")
	}
	return hint{natural: int(n)}, nil
}

// debugQuery prints a query the way the server does in faults of its planner. Of
// the filter, conditions other than plain comparisons are printed as they were
// sent.
func debugQuery(ns oplog.Namespace, a *findArgs) string {
	var s strings.Builder
	s.WriteString("ns=" + string(ns))
	if a.batchSize >= 0 {
		s.WriteString(" batchSize=" + formatInt(a.batchSize))
	}
	if a.limit > 0 {
		s.WriteString(" limit=" + formatInt(a.limit))
	}
	if a.skip > 0 {
		s.WriteString(" skip=" + formatInt(a.skip))
	}
	s.WriteString("Tree: " + debugFilter(a.filter))
	s.WriteString("Sort: " + bsontext.Document(orEmpty(a.sort)) + "\n")
	s.WriteString("Proj: " + bsontext.Document(orEmpty(a.projection)) + "\n")
	if len(a.collation) > rawbson.MinSize {
		s.WriteString("Collation: " + bsontext.Document(a.collation) + "\n")
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
		first := firstElem(doc)
		if key := string(first.Key); strings.HasPrefix(key, "$") {
			return e.Name() + " " + key + " " + bsontext.Value(first.Raw())
		}
	}
	return e.Name() + " $eq " + bsontext.Value(e.Raw())
}

func orEmpty(doc bson.Raw) bson.Raw {
	if doc == nil {
		return emptyDocument
	}
	return doc
}
