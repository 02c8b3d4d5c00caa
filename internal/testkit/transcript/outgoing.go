package transcript

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
)

// outgoing returns a recorded command as it is sent: with what belongs to the
// recorded server in terms of ours, and with the statements of a write in a
// document sequence if the driver had them there. It puts those after $db.
func (p *player) outgoing(cmd bson.Raw) (wire.Request, error) {
	var req wire.Request
	at, b := bsoncore.AppendDocumentStart(nil)
	first, behindDB := true, false
	it := rawbson.NewIter(cmd)
	for it.Next() {
		e := it.Elem
		switch name := e.Name(); {
		case name == "$clusterTime":
			if p.clusterTime != nil {
				b = bsoncore.AppendDocumentElement(b, name, p.clusterTime)
			}
		case name == "readConcern":
			b = p.appendReadConcern(b, e)
		case name == "commitTimestamp":
			b = p.appendPaired(b, e.Key, e, kindStamp)
		case first && name == "getMore":
			b = p.appendPaired(b, e.Key, e, kindCursor)
		case name == "cursors":
			b = p.appendCursors(b, e)
		case behindDB && (name == "documents" || name == "updates" || name == "deletes"):
			docs, ok := statements(&e)
			if !ok {
				return req, fmt.Errorf("%s is no array of documents", name)
			}
			req.Sequences = append(req.Sequences, wire.Sequence{Name: name, Docs: docs})
		default:
			b = appendElem(b, e.Key, e)
		}
		first = false
		behindDB = behindDB || e.Is("$db")
	}
	b, err := bsoncore.AppendDocumentEnd(b, at)
	if err != nil {
		return req, err
	}
	req.Body = b
	return req, it.Err()
}

func appendElem(b []byte, key []byte, e rawbson.Elem) []byte {
	return bsoncore.AppendValueElement(b, string(key), bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
}

// appendPaired appends what a recorded value stands for, or the value itself.
func (p *player) appendPaired(b []byte, key []byte, e rawbson.Elem, k kind) []byte {
	if ours, ok := p.pairs.lookup(k, string(e.Value)); ok {
		e.Value = []byte(ours)
	}
	return appendElem(b, key, e)
}

func (p *player) appendReadConcern(b []byte, concern rawbson.Elem) []byte {
	doc, ok := concern.Document()
	if !ok {
		return appendElem(b, concern.Key, concern)
	}
	at, b := bsoncore.AppendDocumentElementStart(b, concern.Name())
	it := rawbson.NewIter(doc)
	for it.Next() {
		if it.Is("afterClusterTime") {
			b = bsoncore.AppendTimestampElement(b, it.Name(), p.operationTime.T, p.operationTime.I)
			continue
		}
		b = appendElem(b, it.Key, it.Elem)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return b
}

func (p *player) appendCursors(b []byte, cursors rawbson.Elem) []byte {
	array, ok := cursors.Array()
	if !ok {
		return appendElem(b, cursors.Key, cursors)
	}
	at, b := bsoncore.AppendArrayElementStart(b, cursors.Name())
	it := rawbson.NewIter(array)
	for it.Next() {
		b = p.appendPaired(b, it.Key, it.Elem, kindCursor)
	}
	b, _ = bsoncore.AppendArrayEnd(b, at)
	return b
}

func statements(e *rawbson.Elem) (docs []bson.Raw, ok bool) {
	array, ok := e.Array()
	it := rawbson.NewIter(array)
	for ok && it.Next() {
		var doc bson.Raw
		doc, ok = it.Document()
		docs = append(docs, doc)
	}
	return docs, ok
}
