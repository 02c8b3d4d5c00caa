package plain

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/bench/workload"
)

// Client is a driver's client.
type Client struct{}

// Connect connects.
func Connect(ctx context.Context, uri string) (*Client, error) { panic("not written yet") }

// Close disconnects.
func (c *Client) Close(ctx context.Context) { panic("not written yet") }

// Work is a workload divided over writers, by document, ready to be written.
type Work struct {
	// Ops is how many operations it has, Bytes the size of their documents.
	Ops   int
	Bytes int64
}

// Prepare divides a workload over writers. Transactions are taken apart: each
// operation is written by itself. A workload with commands is refused.
func Prepare(w workload.Workload, writers int) (*Work, error) { panic("not written yet") }

// Write writes all of it: a goroutine for each writer, bulk writes of batch
// operations with the driver's defaults and write concern 1, unordered where a batch
// meets no document twice.
func (c *Client) Write(ctx context.Context, w *Work, batch int) error { panic("not written yet") }

// Pace writes the workload's operations one by one at rate per second, by as many
// goroutines as it takes, and tells acked of each: when it was sent and
// acknowledged. A transaction is written as one.
func (c *Client) Pace(ctx context.Context, w workload.Workload, rate float64, acked func(sent, acked time.Time)) error {
	panic("not written yet")
}

// Probe writes a document to source every interval until ctx is done, and looks for
// it in target without a pause. It tells seen of each: when its write was sent and
// acknowledged, and when it was first read from the target.
func Probe(ctx context.Context, source, target *Client, every time.Duration, seen func(sent, acked, seen time.Time)) error {
	panic("not written yet")
}
