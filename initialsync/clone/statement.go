package clone

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// maxCommandDocs and maxCommandBytes limit one command: a message has at most 48
	// MB, some of which the command's own fields need.
	maxCommandDocs  = 100_000
	maxCommandBytes = 47_000_000 - 64<<10
)

// command is one write command: inserts, updates that are upserts, or deletes that
// precede those.
type command struct {
	mongo.Command
	// docs[i] is the document of Docs[i].
	docs []*document
}

// commands builds the commands that write documents, in order if ordered is set. A
// document that an insert would not store unchanged is upserted, as are all of them if
// upsert is set.
func commands(to oplog.Namespace, docs []*document, upsert, ordered bool) []command {
	var list []command
	size := 0
	var current string
	add := func(name, sequence string, d *document, raw bson.Raw) {
		n := len(list)
		if name != current || len(list[n-1].Docs) >= maxCommandDocs || size+len(raw) > maxCommandBytes {
			list = append(list, command{Command: mongo.Command{DB: to.DB(), Body: writeBody(name, to, ordered), Sequence: sequence}})
			n, size, current = n+1, 0, name
		}
		size += len(raw)
		c := &list[n-1]
		c.Docs = append(c.Docs, raw)
		c.docs = append(c.docs, d)
	}
	var special []*document
	for _, d := range docs {
		switch {
		case d.insert && !upsert:
			add("insert", "documents", d, d.raw)
		case ordered:
			add("update", "updates", d, upsertOf(d))
		default:
			special = append(special, d)
		}
	}
	for _, d := range special {
		if d.deleteFirst {
			add("delete", "deletes", d, deleteOf(d))
		}
		if d.deleteFirst && d.insert {
			add("insert", "documents", d, d.raw)
			continue
		}
		add("update", "updates", d, upsertOf(d))
	}
	return list
}

func writeBody(name string, to oplog.Namespace, ordered bool) bson.Raw {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 160))
	body = bsoncore.AppendStringElement(body, name, to.Collection())
	body = bsoncore.AppendBooleanElement(body, "ordered", ordered)
	if name != "delete" {
		body = bsoncore.AppendBooleanElement(body, "bypassDocumentValidation", true)
	}
	return closeDocument(body, start)
}

// upsertOf builds the statement that makes the document with this _id exactly as given,
// whatever its field names and timestamps.
func upsertOf(d *document) bson.Raw {
	id := d.id()
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(d.raw)+len(id.Value)+128))
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	i, dst := bsoncore.AppendDocumentElementStart(dst, idField)
	dst = closeDocument(closeDocument(bsoncore.AppendValueElement(dst, "$eq", coreValue(id)), i), q)
	if d.replace {
		dst = bsoncore.AppendDocumentElement(dst, "u", bsoncore.Document(d.raw))
	} else {
		u, b := bsoncore.AppendArrayElementStart(dst, "u")
		stage, b := bsoncore.AppendDocumentElementStart(b, "0")
		with, b := bsoncore.AppendDocumentElementStart(b, "$replaceWith")
		b = bsoncore.AppendDocumentElement(b, "$literal", bsoncore.Document(d.raw))
		dst = closeArray(closeDocument(closeDocument(b, with), stage), u)
	}
	return closeDocument(bsoncore.AppendBooleanElement(dst, "upsert", true), start)
}

// deleteOf builds the statement that deletes the target's document with a document's
// _id.
func deleteOf(d *document) bson.Raw {
	id := d.id()
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(id.Value)+64))
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	i, dst := bsoncore.AppendDocumentElementStart(dst, idField)
	dst = closeDocument(closeDocument(bsoncore.AppendValueElement(dst, "$eq", coreValue(id)), i), q)
	return closeDocument(bsoncore.AppendInt32Element(dst, "limit", 1), start)
}

// refusals returns the refused statements of a reply, with all details of the first
// one.
func refusals(reply bson.Raw) ([]mongo.WriteError, error) {
	refused, err := mongo.WriteErrors(reply)
	if err != nil || len(refused) == 0 {
		return nil, err
	}
	list, _ := rawbson.Lookup(reply, "writeErrors")
	array, _ := list.Array()
	it := rawbson.NewIter(array)
	for n := 0; it.Next() && n < len(refused); n++ {
		if doc, ok := it.Document(); ok {
			refused[n].Info = doc
		}
	}
	return refused, nil
}

// wrote checks that a command wrote all of its documents.
func wrote(reply bson.Raw, c *command, to oplog.Namespace) error {
	e, _ := rawbson.Lookup(reply, "n")
	n, ok := e.Int64()
	if !ok {
		return errors.New("read the reply to a write: it has no n")
	}
	if n != int64(len(c.Docs)) && c.Sequence != "deletes" {
		return fmt.Errorf("write %d documents to %s: %d were", len(c.Docs), to, n)
	}
	return nil
}
