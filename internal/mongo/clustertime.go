package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

var errNoOperationTime = errors.New("its reply to a ping has no operationTime")

// OperationTime asks a replica set for its operationTime. Everything that the member that
// answers has committed before the call is at or before it.
func OperationTime(ctx context.Context, c Caller) (bson.Timestamp, error) {
	ping := Command{DB: "admin", Body: bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "ping", 1))}
	reply, err := c.Call(ctx, ping)
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("ask for the cluster time: %w", err)
	}
	e, _ := rawbson.Lookup(reply, "operationTime")
	ts, ok := e.Timestamp()
	if !ok {
		return bson.Timestamp{}, fmt.Errorf("ask for the cluster time: %w", errNoOperationTime)
	}
	return ts, nil
}
