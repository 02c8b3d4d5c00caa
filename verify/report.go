package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// Kind is the kind of a difference.
type Kind string

// The kinds. The first four are of documents.
const (
	// Missing: the source has the document, the target does not.
	Missing Kind = "missing"
	// Extra: the target has the document, the source does not.
	Extra Kind = "extra"
	// Differs: both have it, with other bytes.
	Differs Kind = "differs"
	// Order: both have it, the target at another place among the others (capped collections).
	Order Kind = "order"
	// OfCollection: a collection is missing or extra, or of another type.
	OfCollection Kind = "collection"
	// OfOption: an option of a collection differs.
	OfOption Kind = "option"
	// OfIndex: an index is missing or extra, or differs.
	OfIndex Kind = "index"
	// OfView: the definition of a view differs.
	OfView Kind = "view"
)

// Difference is one difference: a line of the report. Its fields in JSON are stable.
type Difference struct {
	Kind Kind `json:"kind"`
	// NS is the target's name, SourceNS the source's.
	NS       oplog.Namespace `json:"namespace"`
	SourceNS oplog.Namespace `json:"sourceNamespace"`
	// ID is a document's _id as extended JSON, to read; IDBSON is the document {_id: …}, exact.
	ID     json.RawMessage `json:"_id,omitempty"`
	IDBSON []byte          `json:"idBSON,omitempty"`
	// Name is that of the index or option. What, unless the difference is one of documents, is
	// "missing" or "extra" on the target, "differs" or "type".
	Name string `json:"name,omitempty"`
	What string `json:"what,omitempty"`
	// Paths are the first few fields that differ.
	Paths []Path `json:"paths,omitempty"`
	// MorePaths reports that there are more.
	MorePaths bool `json:"morePaths,omitempty"`
	// Cut is the cut at which both were read; nil without one.
	Cut *CutTimes `json:"cut,omitempty"`

	// size is how many bytes the larger one of the documents had.
	size int
}

func isOfDocument(k Kind) bool {
	switch k {
	case Missing, Extra, Differs, Order:
		return true
	default:
		return false
	}
}

// Path is a place within a document.
type Path struct {
	// Path has field names and indexes of arrays, with dots. It is empty for the document as
	// a whole.
	Path string `json:"path"`
	// Occurrence counts fields of the same name in one document; it is 0 for the first one.
	Occurrence int `json:"occurrence,omitempty"`
	// What says how they differ: "missing" or "extra" (a field that only one side has), "type",
	// "value", "bytes" (the values are equal to the server, but their bytes differ) or "order".
	What string `json:"what"`
	// Source and Target are the types, empty for none.
	Source string `json:"source,omitempty"`
	Target string `json:"target,omitempty"`
	// SourceValue and TargetValue are extended JSON, with Config.ShowValues.
	SourceValue json.RawMessage `json:"sourceValue,omitempty"`
	TargetValue json.RawMessage `json:"targetValue,omitempty"`
}

// CutTimes are the times of a cut.
type CutTimes struct {
	Source ClusterTime `json:"source"`
	Target ClusterTime `json:"target"`
}

// ClusterTime is a cluster time of one side.
type ClusterTime struct {
	T uint32 `json:"t"`
	I uint32 `json:"i"`
}

// Times returns the times of a cut, nil for none.
func (c *Cut) Times() *CutTimes {
	if c == nil {
		return nil
	}
	return &CutTimes{Source: ClusterTime(c.Source), Target: ClusterTime(c.Target)}
}

// Collection is the result for a collection or view.
type Collection struct {
	NS       oplog.Namespace `json:"namespace"`
	SourceNS oplog.Namespace `json:"sourceNamespace"`
	// Type is collection, view or timeseries.
	Type string `json:"type"`
	// How says how the documents were read and compared, empty if they were not.
	How string `json:"how,omitempty"`
	// Catalog counts the differences of existence, options and indexes.
	Catalog int `json:"catalog"`
	Tally
	// Restarts counts how often it began again, because it was dropped, made or renamed
	// meanwhile.
	Restarts int `json:"restarts,omitempty"`
	// Fault says why it could not be compared, or not all of it; empty if it was.
	Fault string `json:"fault,omitempty"`
	// First and Last are the cuts between which it was read.
	First *CutTimes `json:"firstCut,omitempty"`
	Last  *CutTimes `json:"lastCut,omitempty"`
	// used are those.
	used span
}

// Equal reports whether no difference was found.
func (c *Collection) equal() bool { return c.Catalog == 0 && c.Differences() == 0 }

// Tally counts documents.
type Tally = standing.Tally

// count adds a difference to a tally.
func count(t *Tally, k Kind) {
	switch k {
	case Missing:
		t.Missing++
	case Extra:
		t.Extra++
	case Differs:
		t.Differs++
	case Order:
		t.Order++
	default:
	}
}

// Summary is the result of a verification.
type Summary struct {
	// Collections are in the order of their names.
	Collections []Collection
	// InvalidViews are the source's definitions that its own server does not accept.
	InvalidViews []string
	// First and Last are the oldest and the newest cut at which anything was read: everything
	// holds as of some cut between them. Nil without cuts.
	First, Last *Cut
	// Sample is the part of the documents that was compared, 0 for all.
	Sample float64
	Took   time.Duration
}

// Equal reports whether no difference was found.
func (s *Summary) Equal() bool {
	for i := range s.Collections {
		if !s.Collections[i].equal() {
			return false
		}
	}
	return true
}

// Unchecked returns how many collections could not be compared as a whole.
func (s *Summary) Unchecked() int {
	n := 0
	for i := range s.Collections {
		if s.Collections[i].Fault != "" {
			n++
		}
	}
	return n
}

// Total adds the tallies up, and the differences of catalogs.
func (s *Summary) Total() (t Tally, catalog int) {
	for i := range s.Collections {
		t.Add(&s.Collections[i].Tally)
		catalog += s.Collections[i].Catalog
	}
	return t, catalog
}

// ofDocument returns the difference of a document with the given _id.
func ofDocument(p *pair, kind Kind, id bson.RawValue) Difference {
	d := Difference{Kind: kind, NS: p.ns, SourceNS: p.sourceNS}
	if id.Type != 0 {
		d.ID = valueJSON(id, 0)
		d.IDBSON = bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id", coreValue(id)))
	}
	return d
}

// IDText returns an _id as the text of standing.Found: as extended JSON, marked as cut if that is not
// exactly the _id.
func IDText(id bson.RawValue) string {
	text := string(valueJSON(id, 0))
	if read, err := ReadIDText(text); err != nil || read.Type != id.Type || !bytes.Equal(read.Value, id.Value) {
		return text + standing.CutMark
	}
	return text
}

// ReadIDText reads the text of an _id that is not cut.
func ReadIDText(text string) (bson.RawValue, error) {
	var doc bson.Raw
	if standing.IsCut(text) {
		return bson.RawValue{}, errors.New("the text is cut")
	}
	if err := bson.UnmarshalExtJSON([]byte(`{"_id":`+text+`}`), true, &doc); err != nil {
		return bson.RawValue{}, fmt.Errorf("read an _id: %w", err)
	}
	return doc.Lookup("_id"), nil
}

// id returns the _id of a difference of a document.
func (d *Difference) id() bson.RawValue { return bson.Raw(d.IDBSON).Lookup("_id") }

func coreValue(v bson.RawValue) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}
}

// valueJSON returns a value as extended JSON; as a text, cut, if that is longer than limit, if
// not 0, or if it has no such form.
func valueJSON(v bson.RawValue, limit int) json.RawMessage {
	doc := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "v", coreValue(v))))
	var text string
	if b, err := bson.MarshalExtJSON(doc, true, false); err == nil && json.Valid(b) {
		var outer struct{ V json.RawMessage }
		if json.Unmarshal(b, &outer) == nil && (limit == 0 || len(outer.V) <= limit) {
			return outer.V
		}
		text = string(outer.V)
	}
	if limit > 0 && len(text) > limit {
		text = text[:limit] + "…"
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return nil
	}
	return quoted
}
