package replay

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// optionNames are the options of a collection, in the order in which the server
// stores them whatever order they were given in.
var optionNames = []string{
	"capped", "size", "max", "autoIndexId", "temp", "recordPreImages", "changeStreamPreAndPostImages",
	"storageEngine", "indexOptionDefaults", "validator", "validationLevel", "validationAction", "collation",
	"clusteredIndex", "expireAfterSeconds", "timeseries", "encryptedFields", "recordIdsReplicated",
}

// fields is a document that is taken apart, by views.
type fields []rawbson.Elem

func newFields(doc bson.Raw) fields {
	var all fields
	it := rawbson.NewIter(doc)
	for it.Next() {
		all = append(all, it.Elem)
	}
	return all
}

func (f fields) document() bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	for i := range f {
		doc = appendElem(doc, &f[i])
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

func appendElem(dst []byte, e *rawbson.Elem) []byte {
	return append(bsoncore.AppendHeader(dst, bsoncore.Type(e.Type), e.Name()), e.Value...)
}

func (f fields) unset(name string) fields {
	return slices.DeleteFunc(f, func(e rawbson.Elem) bool { return e.Is(name) })
}

// set replaces a field where it stands, or appends it.
func (f fields) set(e rawbson.Elem) fields {
	for i := range f {
		if f[i].Is(e.Name()) {
			f[i] = e
			return f
		}
	}
	return append(f, e)
}

func (f fields) has(name string) bool {
	return slices.ContainsFunc(f, func(e rawbson.Elem) bool { return e.Is(name) })
}

// arranged puts options in the server's order.
func (f fields) arranged() fields {
	slices.SortStableFunc(f, func(a, b rawbson.Elem) int { return place(a.Name()) - place(b.Name()) })
	return f
}

func place(name string) int {
	if i := slices.Index(optionNames, name); i >= 0 {
		return i
	}
	return len(optionNames)
}

func element(name string, v bson.RawValue) rawbson.Elem {
	return rawbson.Elem{Type: v.Type, Key: []byte(name), Value: v.Value}
}

func text(name, s string) rawbson.Elem {
	return rawbson.Elem{Type: bson.TypeString, Key: []byte(name), Value: bsoncore.AppendString(nil, s)}
}

func number(name string, n int64) rawbson.Elem {
	if int64(int32(n)) == n {
		return rawbson.Elem{Type: bson.TypeInt32, Key: []byte(name), Value: bsoncore.AppendInt32(nil, int32(n))}
	}
	return rawbson.Elem{Type: bson.TypeInt64, Key: []byte(name), Value: bsoncore.AppendInt64(nil, n)}
}

func long(name string, n int64) rawbson.Elem {
	return rawbson.Elem{Type: bson.TypeInt64, Key: []byte(name), Value: bsoncore.AppendInt64(nil, n)}
}

func boolean(name string, on bool) rawbson.Elem {
	return rawbson.Elem{Type: bson.TypeBoolean, Key: []byte(name), Value: bsoncore.AppendBoolean(nil, on)}
}

// enabled reads {enabled: true}.
func enabled(e *rawbson.Elem) bool {
	doc, _ := e.Document()
	on, ok := rawbson.Lookup(doc, "enabled")
	return ok && on.Truth()
}

// storedOptions returns the options of a create entry as the server stores them.
// An option that is not known is an error.
func storedOptions(given bson.Raw) (bson.Raw, error) {
	all := newFields(given)
	capped := slices.ContainsFunc(all, func(e rawbson.Elem) bool { return e.Is("capped") && e.Truth() })
	var kept fields
	for _, e := range all {
		switch e.Name() {
		case "flags":
			continue // of the storage engine before 4.2
		case "capped", "temp", "recordPreImages":
			if !e.Truth() {
				continue
			}
		case "size", "max":
			if !capped {
				continue
			}
		case "changeStreamPreAndPostImages":
			if !enabled(&e) {
				continue
			}
		case "expireAfterSeconds":
			if n, ok := e.Int64(); ok {
				e = long("expireAfterSeconds", n)
			}
		default:
			if place(e.Name()) == len(optionNames) {
				return nil, fmt.Errorf("unknown collection option %q", e.Name())
			}
		}
		kept = append(kept, e)
	}
	return kept.arranged().document(), nil
}
