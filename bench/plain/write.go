package plain

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/oplog"
)

// errMissed is a bulk write that did not find or make what it should have.
var errMissed = errors.New("not all operations had an effect")

// Write writes all of it: a goroutine for each writer, bulk writes of batch
// operations with the driver's defaults and write concern 1, unordered where a batch
// meets no document twice. That an operation finds nothing is an error.
func (c *Client) Write(ctx context.Context, w *Work, batch int) error {
	if batch < 1 {
		return fmt.Errorf("write in bulk: %d operations at a time", batch)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, ops := range w.writers {
		g.Go(func() error {
			b := bulks{client: c.client, size: batch, open: map[oplog.Namespace]*bulk{}}
			return b.writeAll(ctx, ops)
		})
	}
	return g.Wait()
}

// bulks are the bulk writes of one writer that are being put together, one for each
// collection.
type bulks struct {
	client *mongo.Client
	size   int
	open   map[oplog.Namespace]*bulk
}

// bulk is a bulk write.
type bulk struct {
	coll   *mongo.Collection
	models []mongo.WriteModel
	// met are the documents that it meets, twice tells that it meets one again.
	met   map[uint64]struct{}
	twice bool
	// inserts, updates and deletes are how many of these it has.
	inserts, updates, deletes int64
}

func (b *bulks) writeAll(ctx context.Context, ops []operation) error {
	for i := range ops {
		op := &ops[i]
		to := b.open[op.ns]
		if to == nil {
			to = &bulk{
				coll: b.client.Database(op.ns.DB()).Collection(op.ns.Collection()),
				met:  map[uint64]struct{}{},
			}
			b.open[op.ns] = to
		}
		to.add(op)
		if len(to.models) == b.size {
			if err := to.write(ctx); err != nil {
				return err
			}
		}
	}
	for _, rest := range b.open {
		if err := rest.write(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bulk) add(op *operation) {
	if _, again := b.met[op.key]; again {
		b.twice = true
	}
	b.met[op.key] = struct{}{}
	b.models = append(b.models, op.model)
	switch op.kind {
	case oplog.KindInsert:
		b.inserts++
	case oplog.KindDelete:
		b.deletes++
	default:
		b.updates++
	}
}

// write writes what was put together, and begins anew.
func (b *bulk) write(ctx context.Context) error {
	if len(b.models) == 0 {
		return nil
	}
	res, err := b.coll.BulkWrite(ctx, b.models, options.BulkWrite().SetOrdered(b.twice))
	name := b.coll.Database().Name() + "." + b.coll.Name()
	if err != nil {
		return fmt.Errorf("write %d operations to %s: %w", len(b.models), name, err)
	}
	if res.InsertedCount != b.inserts || res.MatchedCount != b.updates || res.DeletedCount != b.deletes {
		return fmt.Errorf("write to %s: %w: %d of %d inserts, %d of %d updates, %d of %d deletes", name, errMissed,
			res.InsertedCount, b.inserts, res.MatchedCount, b.updates, res.DeletedCount, b.deletes)
	}
	b.models, b.twice = b.models[:0], false
	b.inserts, b.updates, b.deletes = 0, 0, 0
	clear(b.met)
	return nil
}
