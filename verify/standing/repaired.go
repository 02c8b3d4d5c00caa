package standing

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/oplog"
)

// Repaired records that documents were found the same on both sides at a cut: their differences that
// are known from earlier cuts are gone. IDs are texts as of Found. Nothing is recorded of a collection that
// was never compared. Of many documents only those are recorded that are known to differ: all that are recorded are
// mostRepaired, and those of earlier repairs are among them.
func (s *Store) Repaired(ctx context.Context, sourceNS oplog.Namespace, ids []string, target bson.Timestamp) error {
	list := make([]Repaired, 0, len(ids))
	for _, id := range ids {
		if id = short(id); !IsCut(id) { // It may stand for another one.
			list = append(list, Repaired{ID: id, Target: target})
		}
	}
	if len(list) > MostFound {
		known, err := s.knownIn(ctx, sourceNS)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(r Repaired) bool { return !known[r.ID] })
	}
	if len(list) == 0 {
		return nil
	}
	doc, err := bson.Marshal(bson.D{{Key: "repaired", Value: bson.D{{Key: "$each", Value: list}, {Key: "$slice", Value: -mostRepaired}}}})
	if err != nil {
		return fmt.Errorf("store results of verifications: %w", err)
	}
	return s.write(ctx, metadata.Update(s.DB, metadata.Verified, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return metadata.AppendDoc(metadata.ByID(s.id(sourceNS))(dst), "is", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", true) })
		},
		Change: func(dst []byte) []byte { return bsoncore.AppendDocumentElement(dst, "$push", doc) },
	}))
}

// knownIn returns the texts of the _ids of documents of a collection that are known to differ.
func (s *Store) knownIn(ctx context.Context, sourceNS oplog.Namespace) (map[string]bool, error) {
	docs, err := s.find(ctx, metadata.ByID(s.id(sourceNS)), fields...)
	known := map[string]bool{}
	for _, raw := range docs {
		var d document
		if bson.Unmarshal(raw, &d) != nil {
			continue // It counts as one that was never compared.
		}
		if d.Is != nil {
			for _, f := range d.Is.Found {
				known[f.ID] = true
			}
		}
		if d.Pass != nil {
			for _, f := range d.Pass.all() {
				known[f.ID] = true
			}
		}
	}
	return known, err
}
