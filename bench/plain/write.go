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

// errMissed is a bulk write that did not match or insert all of its documents.
var errMissed = errors.New("not all operations had an effect")

// Write writes all of it: a goroutine for each writer, bulk writes of batch
// operations with the driver's defaults and write concern 1, unordered where a batch
// meets no document twice. That an operation finds nothing is an error.
//
// The driver sends an ordered bulk write as a command for each run of operations of one
// kind. A batch that meets documents again, with operations of several kinds, is
// therefore written as several unordered ones, with the first operation on each document,
// the second, and so on, where that makes fewer commands.
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
	// kinds are those of models, turns how many others on the same document are before
	// each. met is how many there are on each document, most on any.
	kinds []oplog.Kind
	turns []int
	met   map[uint64]int
	most  int
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
				met:  map[uint64]int{},
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
	b.turns = append(b.turns, b.met[op.key])
	b.met[op.key]++
	b.most = max(b.most, b.met[op.key])
	b.kinds = append(b.kinds, op.kind)
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

// write writes the collected operations, and starts over.
func (b *bulk) write(ctx context.Context) error {
	if len(b.models) == 0 {
		return nil
	}
	var inserted, updated, deleted int64
	name := b.coll.Database().Name() + "." + b.coll.Name()
	parts, ordered := b.parts()
	for _, models := range parts {
		res, err := b.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(ordered))
		if err != nil {
			return fmt.Errorf("write %d operations to %s: %w", len(models), name, err)
		}
		inserted, updated, deleted = inserted+res.InsertedCount, updated+res.MatchedCount, deleted+res.DeletedCount
	}
	if inserted != b.inserts || updated != b.updates || deleted != b.deletes {
		return fmt.Errorf("write to %s: %w: %d of %d inserts, %d of %d updates, %d of %d deletes", name, errMissed,
			inserted, b.inserts, updated, b.updates, deleted, b.deletes)
	}
	b.models, b.kinds, b.turns, b.most = b.models[:0], b.kinds[:0], b.turns[:0], 0
	b.inserts, b.updates, b.deletes = 0, 0, 0
	clear(b.met)
	return nil
}

// parts are the bulk writes that a batch is written as, one after the other.
func (b *bulk) parts() (parts [][]mongo.WriteModel, ordered bool) {
	whole := [][]mongo.WriteModel{b.models}
	if b.most <= 1 {
		return whole, false
	}
	runs, ofTurn := 0, map[[2]int]struct{}{}
	for i, kind := range b.kinds {
		if i == 0 || kind != b.kinds[i-1] {
			runs++
		}
		ofTurn[[2]int{b.turns[i], int(kind)}] = struct{}{}
	}
	if runs <= len(ofTurn) {
		return whole, true
	}
	parts = make([][]mongo.WriteModel, b.most)
	for i, model := range b.models {
		parts[b.turns[i]] = append(parts[b.turns[i]], model)
	}
	return parts, false
}
