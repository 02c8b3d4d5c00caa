package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// AllowMixedBuckets makes a server accept buckets of a time series that have values of several
// types in one field, after it has refused one (servererr.IsMixedBucket). Servers before 5.2 make
// such buckets. It changes no document, and is idempotent.
func AllowMixedBuckets(ctx context.Context, c Caller, db, series string) error {
	body := bsoncore.NewDocumentBuilder().AppendString("collMod", series).
		AppendBoolean("timeseriesBucketsMayHaveMixedSchemaData", true).Build()
	_, err := Twice(c).Call(ctx, Command{DB: db, Body: WithMajority(bson.Raw(body))})
	if err != nil {
		return fmt.Errorf("allow buckets of %s.%s that have several types in a field: %w", db, series, err)
	}
	return nil
}
