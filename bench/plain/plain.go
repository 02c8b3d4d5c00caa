package plain

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Client is a driver's client, with its defaults but for write concern 1 and as many
// connections as goroutines ask for.
type Client struct{ client *mongo.Client }

// Connect connects. It returns an error if no server answers; the driver alone would
// return one from the first write.
func Connect(ctx context.Context, uri string) (*Client, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).
		SetAppName("replicator-bench").SetWriteConcern(writeconcern.W1()).SetMaxPoolSize(0))
	if err != nil {
		return nil, fmt.Errorf("connect a plain client: %w", err)
	}
	c := &Client{client}
	if err := client.Ping(ctx, nil); err != nil {
		c.Close(ctx)
		return nil, fmt.Errorf("connect a plain client: %w", err)
	}
	return c, nil
}

// closeTime is how long disconnecting may take: it tells servers that sessions have
// ended, and waits for one if there is none.
const closeTime = 5 * time.Second

// Close disconnects.
func (c *Client) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	// Its error does not matter to callers that have finished.
	_ = c.client.Disconnect(ctx)
}
