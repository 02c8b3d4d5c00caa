package cutover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// shownKeys is how many keys of one index are returned that violate it.
	shownKeys = 10
	// askFor is how long a server that refuses for a transient reason is asked again.
	askFor = 10 * time.Second
	// mostTooOld is how often a server may say that it has no history of the cut any more.
	mostTooOld = 3
)

// violations returns keys that several documents have in a unique index, as of a cluster time of
// the target, at most shownKeys. Nothing is returned for an index that no two documents violate.
//
// A document has the keys that the server's index has: one for each element of an array, those
// of elements with several indexed fields together, and null for a missing field. It differs
// from the server in two ways. An empty array counts like a missing field, which may find a
// violation that is none. Under a collation, _ids that it calls equal count as one document.
func violations(ctx context.Context, target mongo.Caller, spec *ddl.DeferredSpec, at bson.Timestamp) ([]Violation, error) {
	cmd, err := duplicates(spec, &at, false)
	if err != nil {
		return nil, err
	}
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("make the aggregation: %w", err)
	}
	var docs []bson.Raw
	tooOld := 0
	again := func(err error) bool {
		if servererr.IsSnapshotTooOld(err) {
			tooOld++ // the time does not come back; another member may have it after a failover
			return tooOld < mostTooOld
		}
		return passing(err) || mongo.PassesRead(err)
	}
	err = mongo.Retry{Again: again}.Last(ctx, func() error {
		docs, err = mongo.Retry{For: time.Nanosecond}.ReadAll(ctx, target, nil, spec.NS.DB(), body)
		if stuck, ok := errors.AsType[*mongo.StuckError](err); ok {
			return stuck.Err
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	found := make([]Violation, len(docs))
	for i, doc := range docs {
		found[i] = Violation{Namespace: string(spec.NS), Index: spec.Index}
		for j, name := range []string{"least", "most"} {
			e, _ := rawbson.Lookup(doc, name)
			found[i].IDs[j] = bsontext.Value(e.Raw())
		}
	}
	return found, nil
}

// duplicates returns the aggregation that finds them, or why there is none: as of a cluster time or, for nil, of
// what a majority has. With all it returns every key, each with all of its _ids.
func duplicates(spec *ddl.DeferredSpec, at *bson.Timestamp, all bool) (bson.D, error) {
	paths, err := keyPaths(spec.Spec)
	if err != nil {
		return nil, err
	}
	stages := bson.A{}
	if filter, ok := document(spec.Spec, "partialFilterExpression"); ok {
		stages = append(stages, bson.D{{Key: "$match", Value: filter}})
	}
	if truth(spec.Spec, "sparse") {
		there := bson.A{}
		for _, path := range paths {
			there = append(there, bson.D{{Key: path, Value: bson.D{{Key: "$exists", Value: true}}}})
		}
		stages = append(stages, bson.D{{Key: "$match", Value: bson.D{{Key: "$or", Value: there}}}})
	}
	for _, path := range prefixes(paths) {
		stages = append(stages, bson.D{{Key: "$unwind", Value: bson.D{{Key: "path", Value: "$" + path}, {Key: "preserveNullAndEmptyArrays", Value: true}}}})
	}
	key := bson.D{}
	for i, path := range paths {
		key = append(key, bson.E{Key: "k" + strconv.Itoa(i), Value: bson.D{{Key: "$ifNull", Value: bson.A{"$" + path, nil}}}})
	}
	group := bson.D{
		{Key: "_id", Value: key},
		{Key: "least", Value: bson.D{{Key: "$min", Value: "$_id"}}},
		{Key: "most", Value: bson.D{{Key: "$max", Value: "$_id"}}},
	}
	if all {
		group = append(group, bson.E{Key: "ids", Value: bson.D{{Key: "$addToSet", Value: "$_id"}}})
	}
	stages = append(stages,
		bson.D{{Key: "$group", Value: group}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "$expr", Value: bson.D{{Key: "$ne", Value: bson.A{"$least", "$most"}}}}}}},
	)
	if !all {
		stages = append(stages, bson.D{{Key: "$limit", Value: shownKeys}})
	}
	concern := bson.D{{Key: "level", Value: "majority"}}
	if at != nil {
		concern = bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: *at}}
	}
	cmd := bson.D{
		{Key: "aggregate", Value: spec.NS.Collection()},
		{Key: "pipeline", Value: stages},
		{Key: "cursor", Value: bson.D{}},
		{Key: "allowDiskUse", Value: true},
		{Key: "readConcern", Value: concern},
	}
	// An index without a collation has the simple one, whatever the collection's is.
	collation, ok := document(spec.Spec, "collation")
	if !ok {
		collation = bson.D{{Key: "locale", Value: "simple"}}
	}
	return append(cmd, bson.E{Key: "collation", Value: collation}), nil
}

// keyPaths returns the fields of an index, and an error for an index whose keys an aggregation
// cannot make.
func keyPaths(spec bson.Raw) ([]string, error) {
	e, _ := rawbson.Lookup(spec, "key")
	key, _ := e.Document()
	var paths []string
	for it := rawbson.NewIter(key); it.Next(); {
		if kind, special := it.Text(); special {
			return nil, fmt.Errorf("its keys are of kind %s", kind)
		}
		for part := range strings.SplitSeq(it.Name(), ".") {
			if part == "" || strings.HasPrefix(part, "$") || strings.Trim(part, "0123456789") == "" {
				return nil, fmt.Errorf("its field %q cannot be named in an aggregation", it.Name())
			}
		}
		paths = append(paths, strings.Clone(it.Name()))
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("its definition has no key: %s", spec)
	}
	return paths, nil
}

// prefixes returns the paths and all of their prefixes, each once, the shorter ones first: arrays
// are taken apart from the outside in.
func prefixes(paths []string) []string {
	var all []string
	for _, path := range paths {
		parts := strings.Split(path, ".")
		for i := range parts {
			all = append(all, strings.Join(parts[:i+1], "."))
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")), cmp.Compare(a, b))
	})
	return slices.Compact(all)
}

func truth(doc bson.Raw, name string) bool {
	e, _ := rawbson.Lookup(doc, name)
	return e.Truth()
}

func document(doc bson.Raw, name string) (any, bool) {
	e, ok := rawbson.Lookup(doc, name)
	if !ok {
		return nil, false
	}
	d, ok := e.Document()
	return d, ok
}
