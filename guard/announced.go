package guard

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Fields of a document of commands.
const (
	fieldLink    = "link"
	fieldNumber  = "n"
	fieldCommand = "command"
	fieldNS      = "ns"
	fieldTo      = "to"
	fieldAt      = "at"
)

// readAnnounced reads a document of commands, false for one of another link.
func readAnnounced(doc bson.Raw, link string) (Announced, bool) {
	id, _ := rawbson.Lookup(doc, "_id")
	key, ok := id.Document()
	if !ok {
		return Announced{}, false
	}
	if of := metadata.NewReader(key); of.Text(fieldLink) != link || of.Err() != nil {
		return Announced{}, false
	}
	r := metadata.NewReader(doc)
	a := Announced{
		ID:      bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)},
		Command: r.Text(fieldCommand), NS: oplog.Namespace(r.Text(fieldNS)), To: oplog.Namespace(r.Text(fieldTo)),
	}
	return a, r.Err() == nil
}

// logs are the commands that log an entry: for each name of an entry's command, or kind of an
// entry of a document, those that a client sends. A time series is a view and its buckets.
var logs = map[string][]string{
	"create":           {"create", "createIndexes"},
	"drop":             {"drop"},
	"renameCollection": {"renameCollection"},
	"collMod":          {"collMod"},
	"createIndexes":    {"createIndexes", "create"},
	"startIndexBuild":  {"createIndexes", "create"},
	"commitIndexBuild": {"createIndexes", "create"},
	// These commands abort a build of the collection.
	"abortIndexBuild": {"createIndexes", "dropIndexes", "drop", "renameCollection", "collMod"},
	"dropIndexes":     {"dropIndexes"},
	"deleteIndexes":   {"dropIndexes"},
	"emptycapped":     {"emptycapped"},
	"insert":          {"insert", "create"},
	"update":          {"update", "collMod"},
	"delete":          {"delete", "drop"},
}

// announced reports whether the link has announced a command that logs an entry of that name for
// a collection of the target.
func (w *Watch) announced(name string, ns, to oplog.Namespace) bool {
	by := logs[name]
	return slices.ContainsFunc(w.state.Open, func(a Announced) bool {
		return slices.Contains(by, a.Command) && a.NS.Series() == ns.Series() && (to == "" || a.To.Series() == to.Series())
	})
}
