package ends

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
)

// lanesCollection has the positions of links' lanes. An applier reads its own there
// before a transaction over several lanes, and before a command.
const lanesCollection = "lanes"

// lanes are the documents of lanesCollection, the only ones that an armed null
// server stores. Transactions take effect at once there, and filters count by _id.
type lanes struct {
	mu   sync.Mutex // guards docs
	docs map[string]bson.Raw
}

// load reads them from the backend.
func (l *lanes) load(ctx context.Context, backend *End) error {
	reply, err := backend.run(ctx, MetaDB, bson.D{
		{Key: "find", Value: lanesCollection}, {Key: "batchSize", Value: 100_000}, {Key: "singleBatch", Value: true},
	})
	if err != nil {
		return fmt.Errorf("read the lanes: %w", err)
	}
	found, err := mongo.ReadBatch(reply)
	if err != nil {
		return fmt.Errorf("read the lanes: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.docs = map[string]bson.Raw{}
	for _, doc := range found.Docs {
		l.docs[idOf(doc)] = doc
	}
	return nil
}

func idOf(doc bson.Raw) string {
	e, _ := rawbson.Lookup(doc, "_id")
	id, _ := e.Text()
	return id
}

// update executes an update command and returns the number of documents
// matched.
func (l *lanes) update(msg *wire.Message) int {
	statements, outside := msg.Sequence("updates")
	if !outside {
		e, _ := rawbson.Lookup(msg.Body, "updates")
		list, _ := e.Array()
		for each := rawbson.NewIter(list); each.Next(); {
			if doc, ok := each.Document(); ok {
				statements = append(statements, doc)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, s := range statements {
		filter, _ := rawbson.Lookup(s, "q")
		change, _ := rawbson.Lookup(s, "u")
		q, _ := filter.Document()
		u, _ := change.Document()
		id := idOf(q)
		if doc, ok := l.docs[id]; ok {
			l.docs[id] = changed(doc, u)
			n++
		}
	}
	return n
}

// changed returns a document after $set and $unset of top-level fields.
func changed(doc, change bson.Raw) bson.Raw {
	part := func(name string) bson.Raw {
		e, _ := rawbson.Lookup(change, name)
		fields, _ := e.Document()
		return fields
	}
	set, unset := part("$set"), part("$unset")
	var body []byte
	for it := rawbson.NewIter(doc); it.Next(); {
		_, isSet := rawbson.Lookup(set, it.Name())
		_, isUnset := rawbson.Lookup(unset, it.Name())
		if !isSet && !isUnset {
			body = appendElem(body, &it.Elem)
		}
	}
	for it := rawbson.NewIter(set); it.Next(); {
		body = appendElem(body, &it.Elem)
	}
	return bsoncore.BuildDocument(nil, body)
}

func appendElem(dst []byte, e *rawbson.Elem) []byte {
	dst = append(append(append(dst, byte(e.Type)), e.Key...), 0)
	return append(dst, e.Value...)
}

// find answers a find by _id, of one document or of several.
func (l *lanes) find(cmd bson.Raw) bson.Raw {
	e, _ := rawbson.Lookup(cmd, "filter")
	filter, _ := e.Document()
	id, _ := rawbson.Lookup(filter, "_id")
	var ids []string
	if one, ok := id.Text(); ok {
		ids = append(ids, one)
	} else if in, ok := id.Document(); ok {
		list, _ := rawbson.Lookup(in, "$in")
		several, _ := list.Array()
		for it := rawbson.NewIter(several); it.Next(); {
			one, _ := it.Text()
			ids = append(ids, one)
		}
	}
	slices.Sort(ids)
	l.mu.Lock()
	defer l.mu.Unlock()
	var docs []bson.Raw
	for _, id := range slices.Compact(ids) {
		if doc, ok := l.docs[id]; ok {
			docs = append(docs, doc)
		}
	}
	return foundReply(MetaDB+"."+lanesCollection, docs)
}

// foundReply is the reply to a find whose cursor is exhausted.
func foundReply(ns string, docs []bson.Raw) bson.Raw {
	var list []byte
	for i, doc := range docs {
		list = bsoncore.AppendDocumentElement(list, strconv.Itoa(i), doc)
	}
	cursor := bsoncore.AppendInt64Element(nil, "id", 0)
	cursor = bsoncore.AppendStringElement(cursor, "ns", ns)
	cursor = bsoncore.AppendArrayElement(cursor, "firstBatch", bsoncore.BuildDocument(nil, list))
	body := bsoncore.AppendDocumentElement(nil, "cursor", bsoncore.BuildDocument(nil, cursor))
	return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(body, "ok", 1))
}
