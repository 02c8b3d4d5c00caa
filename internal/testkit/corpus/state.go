package corpus

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// Before returns the data that the log has to be applied to: none where the
// recording has no folder before. Errors are [*FileError]s.
func (s *Scenario) Before() (memstore.State, error) {
	if !s.hasBefore() {
		return memstore.State{}, nil
	}
	dir := s.path("before")
	state, err := readState(dir)
	if err != nil {
		return state, err
	}
	for i := range state.Collections {
		if err := indexTwice(dir, &state.Collections[i]); err != nil {
			return state, err
		}
	}
	return state, nil
}

// hasBefore reports whether there is a folder before, if only with an empty
// catalog.
func (s *Scenario) hasBefore() bool {
	_, err := os.Stat(s.path("before"))
	return !errors.Is(err, fs.ErrNotExist)
}

// After returns the data that must result. Errors are [*FileError]s; one is that
// two documents of a collection have one _id, which may be in a copy that was
// taken while writes continued, but not in a result.
func (s *Scenario) After() (memstore.State, error) {
	dir := s.path("after")
	state, err := readState(dir)
	if err != nil {
		return state, err
	}
	for i := range state.Collections {
		c := &state.Collections[i]
		if err := cmp.Or(indexTwice(dir, c), documentTwice(dir, c)); err != nil {
			return state, err
		}
	}
	return state, nil
}

// indexTwice returns a fault if the collection has two indexes of one name.
func indexTwice(dir string, c *memstore.CollectionState) error {
	names := map[string]bool{}
	for _, spec := range c.Indexes {
		e, _ := rawbson.Lookup(spec, "name")
		name, _ := e.Text()
		if names[name] {
			return fileError(filepath.Join(dir, catalogFile), fmt.Errorf("%w: %s has two indexes %q", ErrMismatch, c.NS, name))
		}
		names[name] = true
	}
	return nil
}

// documentTwice returns a fault if the collection has two documents of one _id.
func documentTwice(dir string, c *memstore.CollectionState) error {
	type placedID struct {
		id     bson.RawValue
		offset int64
	}
	ids := make([]placedID, len(c.Documents))
	var offset int64
	for i, doc := range c.Documents {
		e, _ := rawbson.Lookup(doc, "_id")
		ids[i] = placedID{e.Raw(), offset}
		offset += int64(len(doc))
	}
	compare := func(a, b placedID) int { return bsonorder.Compare(a.id, b.id, nil) }
	slices.SortStableFunc(ids, compare)
	for i := 1; i < len(ids); i++ {
		if compare(ids[i-1], ids[i]) == 0 {
			err := fmt.Errorf("%w: two documents have the _id %s", ErrMismatch, ids[i].id)
			return &FileError{File: filepath.Join(dir, documentsFile(c.NS)), Offset: ids[i].offset, Err: err}
		}
	}
	return nil
}

func documentsFile(ns oplog.Namespace) string { return string(ns) + ".bson" }

const catalogFile = "catalog.json"

// readState reads a folder of data. A collection of the catalog must have a file,
// and a file must be in the catalog.
func readState(dir string) (memstore.State, error) {
	state, err := readCatalog(filepath.Join(dir, catalogFile))
	if err != nil {
		return state, err
	}
	known := map[string]bool{catalogFile: true}
	for i := range state.Collections {
		c := &state.Collections[i]
		if c.Type != memstore.TypeCollection {
			continue
		}
		name := documentsFile(c.NS)
		known[name] = true
		if c.Documents, err = readDocuments(filepath.Join(dir, name)); err != nil {
			return state, err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return state, fileError(dir, plain(err))
	}
	for _, e := range entries {
		if !known[e.Name()] {
			return state, fileError(filepath.Join(dir, e.Name()), fmt.Errorf("%w: it is not in %s", ErrMismatch, catalogFile))
		}
	}
	return state, nil
}

func readDocuments(file string) (docs []bson.Raw, err error) {
	r, err := newReader(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for {
		doc, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, err
		}
		if _, ok := rawbson.Lookup(doc, "_id"); !ok {
			return nil, r.corrupt(0, errors.New("a document without _id"))
		}
		docs = append(docs, doc)
	}
}

// readCatalog reads what listCollections and listIndexes showed.
func readCatalog(file string) (memstore.State, error) {
	var state memstore.State
	data, err := os.ReadFile(file)
	if err != nil {
		return state, fileError(file, plain(err))
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	fault := func(offset int64, err error) (memstore.State, error) {
		return state, &FileError{File: file, Offset: offset, Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return fault(0, errors.New("not an array in JSON"))
	}
	seen := map[oplog.Namespace]bool{}
	for dec.More() {
		offset := dec.InputOffset() // after the item before, a comma is to come
		rest := data[offset:]
		offset += int64(len(rest) - len(bytes.TrimLeft(rest, ", \t\r\n")))
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			return fault(max(jsonOffset(err), offset), err)
		}
		c, err := catalogItem(item)
		if err != nil {
			return fault(offset, fmt.Errorf("%s%w", whose(item), err))
		}
		if seen[c.NS] {
			return fault(offset, fmt.Errorf("%s is there twice", c.NS))
		}
		seen[c.NS] = true
		state.Collections = append(state.Collections, c)
	}
	slices.SortFunc(state.Collections, func(a, b memstore.CollectionState) int {
		return strings.Compare(string(a.NS), string(b.NS))
	})
	if _, err := dec.Token(); err != nil {
		return fault(dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault(dec.InputOffset(), errors.New("more after the array"))
	}
	return state, nil
}

// whose returns the beginning of a message about an item of a catalog: its name,
// as far as it can be read.
func whose(item []byte) string {
	var head struct {
		NS string `json:"ns"`
	}
	if err := json.Unmarshal(item, &head); err != nil || head.NS == "" {
		return ""
	}
	return head.NS + ": "
}

func catalogItem(item []byte) (memstore.CollectionState, error) {
	var c memstore.CollectionState
	doc, err := fromJSON(item)
	if err != nil {
		return c, err
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		var ok bool
		switch it.Name() {
		case "ns":
			var ns string
			ns, ok = it.Text()
			c.NS = oplog.Namespace(ns)
			// The name becomes that of a file.
			ok = ok && c.NS.IsCollection() && !strings.ContainsAny(ns, "/\x00") && filepath.IsLocal(documentsFile(c.NS))
		case "type":
			c.Type, ok = it.Text()
		case "options":
			c.Options, ok = it.Document()
		case "uuid":
			var subtype byte
			var id []byte
			subtype, id, ok = it.Binary()
			if ok = ok && subtype == bson.TypeBinaryUUID && len(id) == len(c.UUID); ok {
				c.UUID = oplog.UUID(id)
			}
		case "indexes":
			if it.Type == bson.TypeNull { // none to list
				continue
			}
			c.Indexes, ok = documents(&it.Elem)
		default:
			return c, fmt.Errorf("an unknown field %q", it.Name())
		}
		if !ok {
			return c, fmt.Errorf("%s: %s", it.Name(), it.Raw())
		}
	}
	switch c.Type {
	case memstore.TypeCollection, memstore.TypeView, memstore.TypeTimeseries:
	default:
		return c, fmt.Errorf("an unknown type %q", c.Type)
	}
	if c.NS == "" || c.Options == nil {
		return c, errors.New("no ns, or no options")
	}
	capped, _ := rawbson.Lookup(c.Options, "capped")
	c.Capped, _ = capped.Bool()
	return c, nil
}

func documents(f *rawbson.Elem) ([]bson.Raw, bool) {
	array, ok := f.Array()
	var docs []bson.Raw
	it := rawbson.NewIter(array)
	for ok && it.Next() {
		var doc bson.Raw
		doc, ok = it.Document()
		docs = append(docs, doc)
	}
	return docs, ok
}

// fromJSON turns canonical extended JSON into BSON, in order.
func fromJSON(text []byte) (bson.Raw, error) {
	var d bson.D
	if err := bson.UnmarshalExtJSON(text, true, &d); err != nil {
		return nil, err
	}
	return bson.Marshal(d)
}

// throughJSON turns BSON into extended JSON and back. A catalog came through
// JSON, which cannot tell some things apart, such as a regular expression and a
// $regex operator with $options.
func throughJSON(doc bson.Raw) bson.Raw {
	text, err := bson.MarshalExtJSON(doc, true, false)
	if err != nil {
		return doc
	}
	back, err := fromJSON(text)
	if err != nil {
		return doc
	}
	return back
}

// catalogThroughJSON does that to the catalog of a state.
func catalogThroughJSON(state memstore.State) memstore.State {
	same := memstore.State{Collections: make([]memstore.CollectionState, len(state.Collections))}
	for i, c := range state.Collections {
		c.Options = throughJSON(c.Options)
		specs := make([]bson.Raw, len(c.Indexes))
		for n, spec := range c.Indexes {
			specs[n] = throughJSON(spec)
		}
		c.Indexes = specs
		same.Collections[i] = c
	}
	return same
}
