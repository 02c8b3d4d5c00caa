package write

import (
	"bytes"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog/update"
)

// applyStage is the stage by which mongos and mongod from 6.0 on have an update
// entry of an oplog applied as it is.
const applyStage = "$_internalApplyOplogUpdate"

var emptyPipeline = []byte{rawbson.MinSize, 0, 0, 0, 0}

// entryToApply returns the update entry's o of [{applyStage: {oplogUpdate: o}}], nil
// for any other modification. The stage together with others is not implemented.
func entryToApply(u bson.RawValue) (bson.Raw, error) {
	if u.Type != bson.TypeArray {
		return nil, nil
	}
	var entry bson.Raw
	stages := 0
	it := rawbson.NewIter(u.Value)
	for ; it.Next(); stages++ {
		stage, ok := it.Document()
		if !ok {
			continue
		}
		inner := rawbson.NewIter(stage)
		if !inner.Next() || !inner.Is(applyStage) {
			continue
		}
		spec, ok := inner.Document()
		if !ok || inner.Next() {
			return nil, servererr.New(servererr.FailedToParse, "Argument to %s stage must be an object", applyStage)
		}
		fields := rawbson.NewIter(spec)
		if !fields.Next() || !fields.Is("oplogUpdate") {
			return nil, servererr.New(servererr.FailedToParse, "%s needs oplogUpdate", applyStage)
		}
		if entry, ok = fields.Document(); !ok || fields.Next() {
			return nil, servererr.New(servererr.FailedToParse, "%s takes the document oplogUpdate alone", applyStage)
		}
	}
	if entry != nil && stages > 1 {
		return nil, servererr.New(servererr.NotImplemented, "%s together with other stages is not implemented here", applyStage)
	}
	return entry, checkForm(entry)
}

// checkForm refuses update entries of the older form, {$v: 1, $set: …}. Servers that have the stage apply deltas and
// replacements only.
func checkForm(entry bson.Raw) error {
	if entry == nil {
		return nil
	}
	if _, err := entry.LookupErr("_id"); err == nil {
		return nil
	}
	v := entry.Lookup("$v")
	if n, ok := v.AsInt64OK(); ok && n == 2 {
		return nil
	}
	return servererr.New(4772600, "Expected _id field or $v:2, but got: %s", v)
}

// apply makes the new document of an update.
func (s *updateStatement) apply(doc bson.Raw, matched int) (serverupdate.Result, error) {
	if s.entry == nil {
		return s.compiled.Apply(doc, matched)
	}
	post, err := applyEntry(doc, s.entry)
	return serverupdate.Result{Doc: post, NoOp: bytes.Equal(doc, post), Kind: serverupdate.Pipeline}, err
}

func applyEntry(doc, entry bson.Raw) (bson.Raw, error) {
	post, err := update.Apply(doc, entry)
	switch {
	case errors.Is(err, update.ErrIDChanged):
		return nil, servererr.New(servererr.ImmutableField, "%s: %v", applyStage, err)
	case err != nil:
		return nil, servererr.New(servererr.FailedToParse, "%s: %v", applyStage, err)
	case len(post) > serverupdate.MaxDocumentSize:
		return nil, servererr.New(17419, "Resulting document after update is larger than %d", serverupdate.MaxDocumentSize)
	}
	return post, nil
}
