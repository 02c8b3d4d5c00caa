package serverupdate

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Options are the server's surroundings that an update can show.
type Options struct {
	// Now is the cluster time just before the update. The server writes the times
	// after it in place of zero timestamps at the top level of a replacement. Zero
	// leaves such timestamps as they are, as when the server is told to keep them.
	Now bson.Timestamp
}

// Apply runs the update statement's argument u on the stored document doc with
// the zero [Options]. See [Options.Apply].
func Apply(doc bson.Raw, u bson.RawValue) (bson.Raw, error) { return Options{}.Apply(doc, u) }

// Apply returns the document that a server stores after an update of doc by u:
// a pipeline (array), modifiers or a replacement (documents). The result may
// share memory with the arguments, which are not changed.
//
// A refusal is an [*Error]. Arguments that are not BSON are another error, which
// wraps a [*rawbson.CorruptError].
func (o Options) Apply(doc bson.Raw, u bson.RawValue) (bson.Raw, error) {
	if err := rawbson.Validate(doc); err != nil {
		return nil, fmt.Errorf("serverupdate: read the document: %w", err)
	}
	if err := validateStatement(u); err != nil {
		return nil, err
	}
	if u.Type == bson.TypeArray {
		result, err := runPipeline(doc, u.Value)
		if err != nil {
			return nil, err
		}
		if len(result) > MaxStatementSize {
			return nil, refuse(codeBSONObjectTooLarge, "store the result: %d bytes, at most %d", len(result), MaxStatementSize)
		}
		return replace(doc, result, true)
	}
	first := elems(u.Value)
	if len(first) == 0 || !strings.HasPrefix(first[0].Name(), "$") {
		return replace(doc, o.stamp(u.Value), false)
	}
	result, err := runModifiers(doc, u.Value)
	if err != nil {
		return nil, err
	}
	return finish(doc, result)
}

func validateStatement(u bson.RawValue) error {
	if u.Type != bson.TypeArray && u.Type != bson.TypeEmbeddedDocument {
		return refuse(codeFailedToParse, "read the statement: it is of type %s, neither object nor array", typeName(u.Type))
	}
	if err := rawbson.Validate(u.Value); err != nil {
		return fmt.Errorf("serverupdate: read the statement: %w", err)
	}
	return nil
}

// stamp replaces the zero timestamps at the top level of a replacement, but for
// _id.
func (o Options) stamp(replacement []byte) bson.Raw {
	if o.Now == (bson.Timestamp{}) {
		return replacement
	}
	now := o.Now
	start, dst := bsoncore.AppendDocumentStart(nil)
	for _, e := range elems(replacement) {
		if ts, ok := e.Timestamp(); ok && ts == (bson.Timestamp{}) && !e.Is("_id") {
			now.I++
			dst = bsoncore.AppendTimestampElement(dst, e.Name(), now.T, now.I)
			continue
		}
		dst = appendRaw(dst, e.Type, e.Name(), e.Value)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// replace puts result in the place of doc: the end of pipelines and replacements.
func replace(doc, result bson.Raw, dollars bool) (bson.Raw, error) {
	if string(doc) == string(result) {
		return doc, nil
	}
	if _, ok := rawbson.Lookup(result, "_id"); !ok {
		result = withIDs(doc, result)
	}
	if err := checkDocument(result, dollars); err != nil {
		return nil, err
	}
	if err := checkID(doc, result); err != nil {
		return nil, err
	}
	return finish(doc, result)
}

// withIDs puts the fields named _id of doc before those of result.
func withIDs(doc, result bson.Raw) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	for _, e := range elems(doc) {
		if e.Is("_id") {
			dst = appendRaw(dst, e.Type, e.Name(), e.Value)
		}
	}
	dst = append(dst, result[4:len(result)-1]...)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// checkID refuses an _id that differs from the stored one. Numbers of different
// types may be equal; then the new form is stored.
func checkID(doc, result bson.Raw) error {
	before, had := rawbson.Lookup(doc, "_id")
	after, has := rawbson.Lookup(result, "_id")
	if !had || !has {
		return nil
	}
	if after.Type == bson.TypeArray {
		return refuse(codeNotSingleValueField, "store the result: _id is an array")
	}
	steps := maxSteps
	ev := &evaluation{steps: &steps}
	c, err := ev.compare(fromRaw(before.Type, before.Value), fromRaw(after.Type, after.Value))
	if err != nil {
		return err
	}
	if c != 0 {
		return refuse(codeImmutableField, "store the result: _id differs from the stored one")
	}
	return nil
}

// finish does what the server does before it writes any update that changed
// something: _id first, size checked.
func finish(doc, result bson.Raw) (bson.Raw, error) {
	if string(doc) == string(result) {
		return doc, nil
	}
	result = idFirst(result)
	if len(result) > MaxDocumentSize {
		return nil, refuse(17419, "store the result: %d bytes, at most %d", len(result), MaxDocumentSize)
	}
	return result, nil
}

func idFirst(doc bson.Raw) bson.Raw {
	list := elems(doc)
	at := -1
	for i, e := range list {
		if e.Is("_id") {
			at = i
			break
		}
	}
	if at <= 0 {
		return doc
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = appendRaw(dst, list[at].Type, "_id", list[at].Value)
	for i, e := range list {
		if i != at {
			dst = appendRaw(dst, e.Type, e.Name(), e.Value)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}
