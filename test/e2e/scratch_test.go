package e2e_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
)

// The number of random cases, for each property and server version, where the
// command line does not say -rapid.checks.
const (
	checks      = 500
	checksShort = 50
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		n := checks
		if testing.Short() {
			n = checksShort
		}
		if err := flag.Set("rapid.checks", strconv.Itoa(n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}

// scratch is a collection that holds one document at a time. Commands are
// built as bytes, so that the server gets the documents exactly as they are.
type scratch struct {
	ctx  context.Context
	db   *mongo.Database
	name string
}

func newScratch(t *testing.T, rs *mongotest.ReplicaSet) *scratch {
	t.Helper()
	s := &scratch{ctx: t.Context(), db: rs.Client(t).Database("e2e"), name: "scratch"}
	// applyOps does not create what it updates.
	if err := s.db.CreateCollection(s.ctx, s.name); err != nil {
		t.Fatalf("create %s: %v", s.namespace(), err)
	}
	return s
}

func (s *scratch) namespace() string { return s.db.Name() + "." + s.name }

// run sends a command made of these elements.
func (s *scratch) run(db *mongo.Database, elems ...[]byte) (bson.Raw, error) {
	return db.RunCommand(s.ctx, bson.Raw(bsoncore.BuildDocument(nil, elems...))).Raw()
}

// write sends a write command with one statement and checks that it met as many
// documents as it was to.
func (s *scratch) write(name, list string, statement []byte, want int64) (bson.Raw, error) {
	reply, err := s.run(
		s.db,
		bsoncore.AppendStringElement(nil, name, s.name),
		bsoncore.BuildArrayElement(nil, list, bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: statement}),
	)
	if err != nil {
		return nil, err
	}
	if n, ok := number(reply, "n"); !ok || want >= 0 && n != want {
		return nil, fmt.Errorf("%s met other than %d documents: %s", name, want, reply)
	}
	return reply, nil
}

// put makes doc the only document, and returns the reply to its insert.
func (s *scratch) put(doc bson.Raw) (bson.Raw, error) {
	all := bsoncore.BuildDocument(
		nil,
		bsoncore.AppendDocumentElement(nil, "q", emptyDocument),
		bsoncore.AppendInt32Element(nil, "limit", 0),
	)
	if _, err := s.write("delete", "deletes", all, -1); err != nil {
		return nil, fmt.Errorf("empty the collection: %w", err)
	}
	reply, err := s.write("insert", "documents", doc, 1)
	if err != nil {
		return nil, &refusedError{err}
	}
	stored, err := s.get()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(stored, doc) {
		return nil, fmt.Errorf("the server stored something else than it was given: %s", compare(stored, doc))
	}
	return reply, nil
}

// refusedError is a document that the server does not store.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// get returns the only document.
func (s *scratch) get() (bson.Raw, error) {
	return s.db.Collection(s.name).FindOne(s.ctx, bson.D{}).Raw()
}

// update sends an update command for the only document.
func (s *scratch) update(u bson.RawValue) (bson.Raw, error) {
	statement := bsoncore.BuildDocument(
		nil,
		bsoncore.AppendDocumentElement(nil, "q", emptyDocument),
		bsoncore.AppendValueElement(nil, "u", bsoncore.Value{Type: bsoncore.Type(u.Type), Data: u.Value}),
	)
	return s.write("update", "updates", statement, 1)
}

// applyOps has the server apply o as the update entry of the document with this
// _id, the way that it applies its own oplog.
func (s *scratch) applyOps(id rawbson.Elem, o bson.Raw) error {
	entry := bsoncore.BuildDocument(
		nil,
		bsoncore.AppendStringElement(nil, "op", "u"),
		bsoncore.AppendStringElement(nil, "ns", s.namespace()),
		bsoncore.AppendDocumentElement(nil, "o", o),
		bsoncore.AppendDocumentElement(nil, "o2", bsoncore.BuildDocument(
			nil,
			bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value}),
		)),
	)
	_, err := s.run(
		s.db.Client().Database("admin"),
		bsoncore.BuildArrayElement(nil, "applyOps", bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: entry}),
		// The atomic form takes a global lock, and an upsert would hide a
		// document that was not found.
		bsoncore.AppendBooleanElement(nil, "allowAtomic", false),
		bsoncore.AppendBooleanElement(nil, "alwaysUpsert", false),
	)
	return err
}

// entriesAfter returns the o fields of all update entries of the collection
// that are later than the reply's operationTime.
func (s *scratch) entriesAfter(reply bson.Raw) ([]bson.Raw, error) {
	since, ok := rawbson.Lookup(reply, "operationTime")
	if !ok {
		return nil, fmt.Errorf("no operationTime in %s", reply)
	}
	filter := bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: since.Raw()}}},
		{Key: "ns", Value: s.namespace()},
		{Key: "op", Value: "u"},
	}
	cursor, err := s.db.Client().Database("local").Collection("oplog.rs").Find(s.ctx, filter)
	if err != nil {
		return nil, err
	}
	var entries []bson.Raw
	if err := cursor.All(s.ctx, &entries); err != nil {
		return nil, err
	}
	for i, entry := range entries {
		o, ok := rawbson.Lookup(entry, "o")
		if !ok {
			return nil, fmt.Errorf("no o in %s", entry)
		}
		entries[i], _ = o.Document()
	}
	return entries, nil
}

var emptyDocument = bsoncore.BuildDocument(nil)

// pipeline returns an update pipeline of one stage.
func pipeline(stage string, body bson.Raw) bson.RawValue {
	array := bsoncore.BuildArray(nil, bsoncore.Value{
		Type: bsoncore.TypeEmbeddedDocument,
		Data: bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, stage, body)),
	})
	return bson.RawValue{Type: bson.TypeArray, Value: array}
}

// literal returns an expression whose value is doc, whatever is in it.
func literal(doc bson.Raw) bson.Raw {
	return bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$literal", doc))
}

// entry returns the o field of an update entry with this delta.
func entry(diff bson.Raw) bson.Raw {
	return bsoncore.BuildDocument(
		nil,
		bsoncore.AppendInt32Element(nil, "$v", 2),
		bsoncore.AppendDocumentElement(nil, "diff", diff),
	)
}

// storable returns doc with the zero timestamps of its first level changed: an
// insert command replaces them by the present time.
func storable(doc bson.Raw) bson.Raw {
	doc = slices.Clone(doc)
	it := rawbson.NewIter(doc)
	for it.Next() {
		ts, ok := it.Timestamp()
		if ok && ts.IsZero() && !it.Is("_id") {
			it.Value[0] = 1 // a view into doc
		}
	}
	return doc
}

func number(doc bson.Raw, name string) (int64, bool) {
	e, ok := rawbson.Lookup(doc, name)
	if !ok {
		return 0, false
	}
	return e.Int64()
}

// compare shows two documents, with their bytes because different BSON may look
// the same.
func compare(got, want bson.Raw) string {
	return fmt.Sprintf("\n got %s\nwant %s\n got %x\nwant %x", got, want, []byte(got), []byte(want))
}

// tally counts the cases that a property could not put to the server. A few are
// expected, many mean that the property shows nothing.
type tally struct {
	cases  int
	left   int
	reason error // of the last one left out
}

func (c *tally) leaveOut(reason error) {
	c.left++
	c.reason = reason
}

// check fails t if more than a share of the cases, in percent, was left out.
func (c *tally) check(t *testing.T, what string, share int) {
	t.Helper()
	t.Logf("%s: %d of %d cases left out, the last one for: %v", what, c.left, c.cases, c.reason)
	if c.left*100 > c.cases*share {
		t.Errorf("%s: more than %d %% of the cases were left out", what, share)
	}
}
