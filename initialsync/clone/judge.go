package clone

import (
	"errors"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// verdict is the reaction to an error of a flush.
type verdict uint8

const (
	end         verdict = iota // of the attempt
	again                      // the same flush, later
	smaller                    // less at once
	upserts                    // the same flush, as upserts: a document exists already
	deleteFirst                // the same flush, with a document deleted before it is written
)

// errThere reports a document that the target already has.
var errThere = errors.New("the target has a document of that _id already")

// spelledError reports that no update makes the target's document the one of the source, but a delete and an insert do: it has
// another spelling of its _id, which is equal by the collection's collation; or names below the top level start with a dollar,
// which a server before 5.0 accepts in inserts only.
type spelledError struct {
	doc *document
	err error
}

func (e *spelledError) Error() string {
	return "the target's document of that _id has to be deleted first: " + e.err.Error()
}

// mark marks the document of the refusal; if it is about names with a dollar, all that have one, so that a flush is refused
// once.
func (e *spelledError) mark(docs []*document) {
	e.doc.deleteFirst = true
	for _, d := range docs {
		if d.insert && servererr.IsDollarName(e.err) && update.IsInsertOnly(d.raw) {
			d.deleteFirst = true
		}
	}
}

func (e *spelledError) Unwrap() error { return e.err }

// judge returns the reaction to an error of a flush, including its commit.
func judge(err error) verdict {
	if errors.Is(err, lease.ErrFenced) || errors.Is(err, lease.ErrRewound) {
		return end
	}
	if errors.Is(err, errThere) {
		return upserts
	}
	if _, spelled := errors.AsType[*spelledError](err); spelled {
		return deleteFirst
	}
	if _, crowded := errors.AsType[*crowdedError](err); crowded {
		return smaller
	}
	switch mongo.DispositionOf(err) {
	case mongo.Again:
		return again
	case mongo.Smaller:
		return smaller
	default:
		// No search by single documents is needed: the error names the document.
		return end
	}
}

// refusal classifies a refused statement: errThere, a *spelledError, a *UniqueError, or
// an error that judge knows.
func refusal(ns oplog.Namespace, e *mongo.WriteError, doc *document) error {
	if doc != nil && !doc.deleteFirst && (servererr.IsImmutableField(&e.Error) || servererr.IsDollarName(&e.Error) && doc.insert) {
		return &spelledError{doc, &e.Error}
	}
	if !servererr.IsDuplicateKey(&e.Error) {
		if doc != nil && servererr.IsTooLargeForCache(&e.Error) {
			return tooLarge(ns, doc, 0, &e.Error)
		}
		if mongo.DispositionOf(&e.Error) != mongo.Other {
			return &e.Error // about the server, not the document
		}
		r := &RefusedError{NS: ns, Err: &e.Error}
		if doc != nil {
			r.ID = doc.id()
			r.ID.Value = slices.Clone(r.ID.Value)
		}
		return r
	}
	index := indexOf(e.Message)
	if index == "_id_" {
		return errThere
	}
	pattern, _ := rawbson.Lookup(e.Info, "keyPattern")
	if fields, ok := pattern.Document(); ok {
		it := rawbson.NewIter(fields)
		if it.Next() && it.Is(idField) && !it.Next() {
			return errThere
		}
	}
	key, _ := rawbson.Lookup(e.Info, "keyValue")
	value, _ := key.Document()
	return &UniqueError{NS: ns, Index: index, Key: slices.Clone(value), Err: &e.Error}
}

// indexOf returns the name of the index in the message of a duplicate key error.
func indexOf(message string) string {
	_, rest, ok := strings.Cut(message, " index: ")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, " dup key")
	return name
}
