package plain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const (
	// ProbeDB is the database that probes are written to. It has to be mirrored.
	ProbeDB = "bench_probe"
	// ProbeCollection is their collection.
	ProbeCollection = "probes"
)

// Probe writes a document to source every interval until ctx is done, with write concern
// majority: a link applies only committed entries. After the acknowledgement it polls
// target for the document without a pause. It calls seen for each, with the times of
// sending, of acknowledgement, and of the first read from the target. One that arrives
// after the next is due delays that. It returns nil when ctx is done; a probe that has
// not arrived by then is not reported.
func Probe(ctx context.Context, source, target *Client, every time.Duration, seen func(sent, acked, seen time.Time)) error {
	from := source.client.Database(ProbeDB).Collection(ProbeCollection,
		options.Collection().SetWriteConcern(writeconcern.Majority()))
	to := target.client.Database(ProbeDB).Collection(ProbeCollection)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		id := bson.NewObjectID()
		sent := time.Now()
		_, err := from.InsertOne(ctx, byID(id))
		acked := time.Now()
		if err == nil {
			err = await(ctx, to, id)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		seen(sent, acked, time.Now())
	}
}

// await polls until a document is there.
func await(ctx context.Context, in *mongo.Collection, id bson.ObjectID) error {
	for {
		err := in.FindOne(ctx, byID(id)).Err()
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
	}
}

// WriteProbe inserts a document with write concern majority, returns when that was acknowledged, and
// deletes the document again.
func (c *Client) WriteProbe(ctx context.Context) (acked time.Time, err error) {
	in := c.client.Database(ProbeDB).Collection(ProbeCollection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	id := bson.NewObjectID()
	if _, err = in.InsertOne(ctx, byID(id)); err != nil {
		return time.Time{}, fmt.Errorf("write a probe: %w", err)
	}
	acked = time.Now()
	if _, err = in.DeleteOne(ctx, byID(id)); err != nil {
		return time.Time{}, fmt.Errorf("delete a probe: %w", err)
	}
	return acked, nil
}
