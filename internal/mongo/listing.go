package mongo

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// If a database's system.views has an invalid definition, a server answers every
// listCollections of that database with InvalidViewDefinition, whatever the filter. The
// exception is the filter that its own initial sync uses: for it, views are not read.

// InvalidView is a document of system.views that servers do not accept as a view.
type InvalidView struct {
	// ID is the view's name, "db.view", or the _id as text if it is not a name.
	ID string
	// Nameless reports that the _id is not a name.
	Nameless bool
	Why      string
	// DB is the database whose system.views it is in, Def the document.
	DB  string
	Def bson.Raw
}

func (v *InvalidView) Error() string {
	return fmt.Sprintf("its definition in system.views is invalid: %s; remove or correct it there", v.Why)
}

// InvalidViews reports whether listCollections failed because the database has an
// invalid view.
func InvalidViews(err error) bool { return servererr.IsInvalidView(err) }

// ListDespite lists a database that has an invalid view: it returns documents like those
// of listCollections, and the invalid views. Run runs a command that returns a cursor in
// the database, and returns all of its documents. If system.views cannot be read,
// unreadable is the reason, and only collections and time series are listed.
func ListDespite(db string, run func(*bsoncore.DocumentBuilder) ([]bson.Raw, error)) (docs []bson.Raw, invalid []InvalidView, unreadable, err error) {
	docs, err = run(bsoncore.NewDocumentBuilder().AppendInt32("listCollections", 1).AppendDocument("filter", onlyCollections()).
		AppendDocument("cursor", bsoncore.NewDocumentBuilder().Build()))
	if err != nil {
		return nil, nil, nil, err
	}
	buckets := map[string]bson.Raw{}
	for _, doc := range docs {
		if of, ok := strings.CutPrefix(text(doc, "name"), bucketsPrefix); ok {
			options, _ := rawbson.Lookup(doc, "options")
			buckets[of], _ = options.Document()
		}
	}
	defs, err := run(bsoncore.NewDocumentBuilder().AppendString("find", "system.views"))
	switch {
	case servererr.IsDenied(err):
		for name, options := range buckets {
			docs = append(docs, shownView(name, "timeseries", seriesOptions(options)))
		}
		return docs, nil, err, nil
	case err != nil:
		return nil, nil, nil, fmt.Errorf("read the definitions of views: %w", err)
	}
	for _, def := range defs {
		if bad := judgeView(db, def); bad != nil {
			invalid = append(invalid, *bad)
			continue
		}
		name := strings.TrimPrefix(text(def, "_id"), db+".")
		options, series := buckets[name]
		if series && text(def, "viewOn") == bucketsPrefix+name {
			docs = append(docs, shownView(name, "timeseries", seriesOptions(options)))
		} else {
			docs = append(docs, shownView(name, "view", without(def, "_id", "timeseries")))
		}
	}
	return docs, invalid, nil, nil
}

const bucketsPrefix = "system.buckets."

// onlyCollections returns exactly the filter of the server's own cloner.
func onlyCollections() bsoncore.Document {
	missing := bsoncore.NewDocumentBuilder().AppendBoolean("$exists", false).Build()
	return bsoncore.NewDocumentBuilder().AppendArray("$or", bsoncore.NewArrayBuilder().
		AppendDocument(bsoncore.NewDocumentBuilder().AppendString("type", "collection").Build()).
		AppendDocument(bsoncore.NewDocumentBuilder().AppendDocument("type", missing).Build()).Build()).Build()
}

// IsView reports whether a server accepts a document of a database's system.views as a
// view.
func IsView(db string, def bson.Raw) bool { return judgeView(db, def) == nil }

// judgeView returns the fault of a definition, nil if a server accepts it.
func judgeView(db string, def bson.Raw) *InvalidView {
	id, _ := rawbson.Lookup(def, "_id")
	name, isText := id.Text()
	bad := &InvalidView{ID: strings.Clone(name), DB: db, Def: bytes.Clone(def)}
	if !isText {
		bad.ID = db + ".system.views " + id.Raw().String()
	}
	if coll, of := strings.CutPrefix(name, db+"."); !of || !validName(coll) {
		bad.Nameless = true
		bad.Why = "its _id is not the name of a view of " + db
		return bad
	}
	if bad.Why = FaultOfView(def); bad.Why == "" {
		return nil
	}
	return bad
}

// FaultOfView returns the fault of a definition other than its _id, "" if a server
// accepts it.
func FaultOfView(def bson.Raw) string {
	hasOn, hasPipeline := false, false
	it := rawbson.NewIter(def)
	for it.Next() {
		switch it.Name() {
		case "_id", "timeseries": // 4.9 wrote timeseries
		case "viewOn":
			if on, isText := it.Text(); !isText || !validName(on) {
				return "its viewOn is not the name of a collection"
			}
			hasOn = true
		case "pipeline":
			if !stages(&it.Elem) {
				return "its pipeline is not an array of documents"
			}
			hasPipeline = true
		case "collation":
			if _, isDoc := it.Document(); !isDoc {
				return "its collation is not a document"
			}
		default:
			return fmt.Sprintf("it has a field %q", it.Name())
		}
	}
	switch {
	case it.Err() != nil:
		return it.Err().Error()
	case !hasOn:
		return "it has no viewOn"
	case !hasPipeline:
		return "it has no pipeline"
	}
	return ""
}

// stages reports whether an element is an array of documents.
func stages(e *rawbson.Elem) bool {
	array, ok := e.Array()
	for it := rawbson.NewIter(array); ok && it.Next(); {
		_, ok = it.Document()
	}
	return ok
}

func validName(name string) bool {
	return name != "" && name[0] != '.' && !strings.Contains(name, "\x00")
}

// seriesOptions returns the options with which a time series is listed: those of its
// buckets without the ones that only buckets have.
func seriesOptions(buckets bson.Raw) bsoncore.Document {
	return without(buckets, "validator", "validationLevel", "validationAction", "clusteredIndex")
}

func without(doc bson.Raw, names ...string) bsoncore.Document {
	b := bsoncore.NewDocumentBuilder()
	for it := rawbson.NewIter(doc); it.Next(); {
		if slices.ContainsFunc(names, it.Is) {
			continue
		}
		b.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	return b.Build()
}

func shownView(name, kind string, options bsoncore.Document) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendString("name", name).AppendString("type", kind).
		AppendDocument("options", options).
		AppendDocument("info", bsoncore.NewDocumentBuilder().AppendBoolean("readOnly", kind == "view").Build()).Build())
}

func text(doc bson.Raw, name string) string {
	e, _ := rawbson.Lookup(doc, name)
	s, _ := e.Text()
	return s
}
