package oplog

import (
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// The payloads of commands. Names and documents in them are views into the entry,
// unless they are noted to be copies; namespaces joined from a database and a
// collection are copies.

// Create creates a collection.
type Create struct {
	NS Namespace
	// Options are the collection's options as in listCollections, without its UUID: a
	// copy, not a view.
	Options bson.Raw
	// IDIndex is the spec of the index on _id, nil if the entry has none.
	IDIndex bson.Raw
}

// CreateIndexes creates one index on a collection, at once.
type CreateIndexes struct {
	NS Namespace
	// Spec is the index as in listIndexes: a copy.
	Spec bson.Raw
}

// IndexBuild starts, commits or aborts an index build. The indexes take effect with
// the commit.
type IndexBuild struct {
	NS Namespace
	// Build identifies the build in its start, commit and abort.
	Build UUID
	// Specs are the indexes as in listIndexes.
	Specs []bson.Raw
	// Cause says why a build was aborted, nil for the other commands.
	Cause bson.Raw
}

// DropIndexes removes one index.
type DropIndexes struct {
	NS Namespace
	// Name is the index's name.
	Name string
}

// CollMod changes options of a collection or of one of its indexes.
type CollMod struct {
	NS Namespace
	// Changes are the options as given, with "index" for the change of an index,
	// which is identified by its "name": a copy.
	Changes bson.Raw
}

// Drop removes a collection.
type Drop struct {
	NS Namespace
}

// RenameCollection renames a collection within its database.
type RenameCollection struct {
	From, To Namespace
	// StayTemp keeps a temporary collection temporary.
	StayTemp bool
	// DropTarget is the collection of the new name that is dropped, zero if there was
	// none.
	DropTarget UUID
}

// payload reads a command's o. The first field has the command's name and its
// target; take is called for each other field.
func (o *Op) payload(want Command, target func(f *rawbson.Elem) bool, take func(f *rawbson.Elem) error) error {
	if o.Command != want {
		return o.bad("o", "the operation is %s, not %s", o.what(), want)
	}
	if name, twice := repeated(o.O); twice {
		return o.bad("o."+name, "it is there twice")
	}
	it := rawbson.NewIter(o.O)
	if it.Next() && !target(&it.Elem) {
		return o.bad("o."+it.Name(), "it is %s", describe(&it.Elem))
	}
	for it.Next() {
		if err := take(&it.Elem); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return o.corrupt("o", err)
	}
	return nil
}

// repeated returns a field name that occurs twice in a document. The server writes
// each field of a command once, so such a command is refused.
func repeated(doc []byte) (name string, twice bool) {
	const few = 16
	n := 0
	var seen map[string]bool
	for it := rawbson.NewIter(doc); it.Next(); n++ {
		if n == few {
			seen = make(map[string]bool)
			before := rawbson.NewIter(doc)
			for range few {
				before.Next()
				seen[before.Name()] = true
			}
		}
		if seen != nil {
			if seen[it.Name()] {
				return string(it.Key), true
			}
			seen[it.Name()] = true
			continue
		}
		before := rawbson.NewIter(doc)
		for range n {
			before.Next()
			if string(before.Key) == string(it.Key) {
				return string(it.Key), true
			}
		}
	}
	return "", false
}

func (o *Op) what() string {
	if o.Kind == KindCommand {
		return o.Command.String()
	}
	return o.Kind.String()
}

// collection returns a target reader for a collection's name.
func (o *Op) collection(ns *Namespace) func(f *rawbson.Elem) bool {
	return func(f *rawbson.Elem) bool {
		coll, ok := f.Text()
		*ns = NewNamespace(o.NS.DB(), coll)
		return ok && coll != ""
	}
}

func nothing(*rawbson.Elem) error { return nil }

// splitter copies the fields that are not the command's own into a document.
type splitter struct{ doc []byte }

func newSplitter() splitter { return splitter{doc: make([]byte, 4, 64)} }

func (s *splitter) add(f *rawbson.Elem) {
	s.doc = bsoncore.AppendHeader(s.doc, bsoncore.Type(f.Type), f.Name())
	s.doc = append(s.doc, f.Value...)
}

func (s *splitter) document() bson.Raw {
	s.doc = append(s.doc, 0)
	return bson.Raw(bsoncore.UpdateLength(s.doc, 0, int32(len(s.doc))))
}

// Create reads a create command.
func (o *Op) Create() (Create, error) {
	c := Create{}
	options := newSplitter()
	err := o.payload(CommandCreate, o.collection(&c.NS), func(f *rawbson.Elem) error {
		switch f.Name() {
		case "idIndex":
			return o.document(f, &c.IDIndex)
		case "uuid":
			return nil
		default:
			options.add(f)
			return nil
		}
	})
	c.Options = options.document()
	return c, err
}

// CreateIndexes reads a createIndexes command.
func (o *Op) CreateIndexes() (CreateIndexes, error) {
	c := CreateIndexes{}
	spec := newSplitter()
	err := o.payload(CommandCreateIndexes, o.collection(&c.NS), func(f *rawbson.Elem) error {
		spec.add(f)
		return nil
	})
	c.Spec = spec.document()
	if err == nil {
		err = o.checkIndex("o", c.Spec)
	}
	return c, err
}

// checkIndex checks that an index has the fields that all indexes have.
func (o *Op) checkIndex(field string, spec bson.Raw) error {
	key, ok := rawbson.Lookup(spec, "key")
	if _, isDoc := key.Document(); !isDoc {
		if !ok {
			return o.missing(field + ".key")
		}
		return o.bad(field+".key", "it is %s", describe(&key))
	}
	name, ok := rawbson.Lookup(spec, "name")
	if text, _ := name.Text(); text == "" {
		if !ok {
			return o.missing(field + ".name")
		}
		return o.bad(field+".name", "it is %s", describe(&name))
	}
	return nil
}

// IndexBuild reads a startIndexBuild, commitIndexBuild or abortIndexBuild command.
func (o *Op) IndexBuild() (IndexBuild, error) {
	b := IndexBuild{}
	switch o.Command {
	case CommandStartIndexBuild, CommandCommitIndexBuild, CommandAbortIndexBuild:
	default:
		return b, o.bad("o", "the operation is %s, not an index build", o.what())
	}
	var hasUUID, hasSpecs bool
	err := o.payload(o.Command, o.collection(&b.NS), func(f *rawbson.Elem) error {
		switch f.Name() {
		case "indexBuildUUID":
			if b.Build, hasUUID = uuidOf(f); !hasUUID {
				return o.bad("o.indexBuildUUID", "it is %s", describe(f))
			}
		case "indexes":
			hasSpecs = true
			return o.documents(f, &b.Specs)
		case "cause":
			return o.document(f, &b.Cause)
		}
		return nil
	})
	switch {
	case err != nil:
		return b, err
	case !hasUUID:
		return b, o.missing("o.indexBuildUUID")
	case !hasSpecs || len(b.Specs) == 0:
		return b, o.missing("o.indexes")
	}
	for i, spec := range b.Specs {
		if err := o.checkIndex("o.indexes."+strconv.Itoa(i), spec); err != nil {
			return b, err
		}
	}
	return b, nil
}

// DropIndexes reads a dropIndexes command.
func (o *Op) DropIndexes() (DropIndexes, error) {
	d := DropIndexes{}
	err := o.payload(CommandDropIndexes, o.collection(&d.NS), func(f *rawbson.Elem) error {
		if !f.Is("index") {
			return nil
		}
		var ok bool
		if d.Name, ok = f.Text(); !ok {
			return o.bad("o.index", "it is %s", describe(f))
		}
		return nil
	})
	if err == nil && d.Name == "" {
		err = o.missing("o.index")
	}
	return d, err
}

// CollMod reads a collMod command.
func (o *Op) CollMod() (CollMod, error) {
	c := CollMod{}
	changes := newSplitter()
	err := o.payload(CommandCollMod, o.collection(&c.NS), func(f *rawbson.Elem) error {
		changes.add(f)
		return nil
	})
	c.Changes = changes.document()
	return c, err
}

// Drop reads a drop command.
func (o *Op) Drop() (Drop, error) {
	d := Drop{}
	return d, o.payload(CommandDrop, o.collection(&d.NS), nothing)
}

// Target returns the collection that the operation affects; for a rename that is
// the old name, and to is the new one. For a dropDatabase it is the database's name
// alone; no-ops and groups of operations have none.
func (o *Op) Target() (ns, to Namespace, err error) {
	switch {
	case o.Kind.IsCRUD():
		return o.NS, "", nil
	case o.Kind != KindCommand:
		return "", "", nil
	}
	switch o.Command {
	case CommandApplyOps, CommandCommitTransaction, CommandAbortTransaction:
		return "", "", nil
	case CommandDropDatabase:
		return Namespace(o.NS.DB()), "", nil
	case CommandRenameCollection:
		r, err := o.RenameCollection()
		return r.From, r.To, err
	case CommandDBCheck, CommandImportCollection:
		err = o.payload(o.Command, func(f *rawbson.Elem) bool {
			full, ok := f.Text()
			ns = Namespace(full)
			return ok && ns.IsCollection()
		}, nothing)
		if ns.IsCommand() { // the start or the end of a dbCheck
			ns = ""
		}
		return ns, "", err
	default:
		err = o.payload(o.Command, o.collection(&ns), nothing)
		return ns, "", err
	}
}

// EmptyCapped reads an emptycapped command and returns the collection that it
// empties.
func (o *Op) EmptyCapped() (Namespace, error) {
	var ns Namespace
	err := o.payload(CommandEmptyCapped, o.collection(&ns), nothing)
	return ns, err
}

// RenameCollection reads a renameCollection command.
func (o *Op) RenameCollection() (RenameCollection, error) {
	r := RenameCollection{}
	from := func(f *rawbson.Elem) bool {
		ns, ok := f.Text()
		r.From = Namespace(ns)
		return ok && r.From.IsCollection()
	}
	err := o.payload(CommandRenameCollection, from, func(f *rawbson.Elem) error {
		ok := true
		switch f.Name() {
		case "to":
			var ns string
			ns, ok = f.Text()
			r.To = Namespace(ns)
			ok = ok && r.To.IsCollection()
		case "stayTemp":
			r.StayTemp, ok = f.Bool()
		case "dropTarget":
			// Before 3.6 a boolean; newer servers always name the dropped target by UUID.
			if drop, isBool := f.Bool(); isBool && !drop {
				return nil
			}
			r.DropTarget, ok = uuidOf(f)
		}
		if !ok {
			return o.bad("o."+f.Name(), "it is %s", describe(f))
		}
		return nil
	})
	switch {
	case err != nil:
		return r, err
	case r.To == "":
		return r, o.missing("o.to")
	case r.From.DB() != o.NS.DB():
		return r, o.bad("o.renameCollection", "%s is in another database than %s", quoted(string(r.From)), quoted(string(o.NS)))
	case r.From.DB() != r.To.DB():
		return r, o.Fault("o.to", fmt.Errorf("%w: a rename from %s to %s, another database",
			ErrUnsupported, quoted(string(r.From)), quoted(string(r.To))))
	}
	return r, nil
}

func (o *Op) document(f *rawbson.Elem, into *bson.Raw) error {
	doc, ok := f.Document()
	if !ok {
		return o.bad("o."+f.Name(), "it is %s", describe(f))
	}
	*into = doc
	return nil
}

func (o *Op) documents(f *rawbson.Elem, into *[]bson.Raw) error {
	array, ok := f.Array()
	if !ok {
		return o.bad("o."+f.Name(), "it is %s", describe(f))
	}
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return o.bad("o."+f.Name()+"."+it.Name(), "it is %s", describe(&it.Elem))
		}
		*into = append(*into, doc)
	}
	if err := it.Err(); err != nil {
		return o.corrupt("o."+f.Name(), err)
	}
	return nil
}
