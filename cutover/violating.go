package cutover

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// violating is a line of ListViolations: a key that several documents have. Values are canonical extended JSON.
type violating struct {
	Namespace string `json:"namespace"`
	Index     string `json:"index"`
	// Key has the value of each field of the index, in its order.
	Key []json.RawMessage `json:"key"`
	// IDs are the _ids of all documents that have it.
	IDs []json.RawMessage `json:"ids"`
}

// ListViolations writes every key that several documents of the target have in one of the unique indexes of specs,
// with the _ids of all of them: a line of JSON for each key. They are read as of a cut or, for nil, as a majority
// has them now. It returns the number of keys. It keeps one reply of the server in memory; the server groups
// on its disk, and refuses a key with more than 16 MB of _ids. An index whose keys an aggregation cannot make
// is an error, after the others are listed: see violations.
func ListViolations(ctx context.Context, target mongo.Caller, specs ddl.Specs, cut *checkpoint.Cut, w io.Writer) (keys int, err error) {
	l := &listing{w: json.NewEncoder(w)}
	var unlisted error
	for i := range specs {
		if spec := &specs[i]; spec.Index != "" && truth(spec.Spec, "unique") {
			if err := l.one(ctx, target, spec, cut); err != nil {
				unlisted = fmt.Errorf("list the documents that violate index %s of %s: %w", spec.Index, spec.NS, err)
			}
			if ctx.Err() != nil || l.failed != nil {
				return l.keys, unlisted
			}
		}
	}
	return l.keys, unlisted
}

// listing writes violations.
type listing struct {
	w    *json.Encoder
	keys int
	// failed is why nothing more can be written.
	failed error
}

// one lists those of one index.
func (l *listing) one(ctx context.Context, target mongo.Caller, spec *ddl.DeferredSpec, cut *checkpoint.Cut) error {
	var at *bson.Timestamp
	if cut != nil {
		at = &cut.Target
	}
	cmd, err := duplicates(spec, at, true)
	if err != nil {
		return err
	}
	body, err := bson.Marshal(cmd)
	if err != nil {
		return fmt.Errorf("make the aggregation: %w", err)
	}
	return mongo.Retry{For: askFor}.ReadEach(ctx, target, spec.NS.DB(), body, func(docs []bson.Raw) error {
		for _, doc := range docs {
			if err := l.line(spec, doc); err != nil {
				return err
			}
		}
		return nil
	})
}

// line writes one key.
func (l *listing) line(spec *ddl.DeferredSpec, doc bson.Raw) error {
	v := violating{Namespace: string(spec.NS), Index: spec.Index}
	key, _ := rawbson.Lookup(doc, "_id")
	fields, _ := key.Document()
	ids, _ := rawbson.Lookup(doc, "ids")
	list, _ := ids.Array()
	for _, part := range []struct {
		from []byte
		to   *[]json.RawMessage
	}{{fields, &v.Key}, {list, &v.IDs}} {
		for it := rawbson.NewIter(part.from); it.Next(); {
			text, err := canonical(it.Raw())
			if err != nil {
				return err
			}
			*part.to = append(*part.to, text)
		}
	}
	l.keys++
	if l.failed = l.w.Encode(v); l.failed != nil {
		return fmt.Errorf("write them: %w", l.failed)
	}
	return nil
}

// canonical returns a value as canonical extended JSON.
func canonical(v bson.RawValue) (json.RawMessage, error) {
	const name = "v"
	text, err := bson.MarshalExtJSON(bson.D{{Key: name, Value: v}}, true, false)
	if err != nil {
		return nil, fmt.Errorf("write a value as JSON: %w", err)
	}
	return json.RawMessage(text[len(`{"v":`) : len(text)-1]), nil
}
