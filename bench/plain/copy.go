package plain

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/oplog"
)

// perCopy is how many documents a bare loop reads and writes at once.
const perCopy = 1000

// Piece is a part of a collection, by _id.
type Piece struct {
	NS     oplog.Namespace
	filter bson.D
}

// Divide divides each of the collections into n pieces with the same number of
// documents, or fewer pieces if there are fewer documents. The _ids of a collection have
// to be of one type, as those of a workload are: a server compares a bound with no
// other.
func (c *Client) Divide(ctx context.Context, names []oplog.Namespace, n int) ([]Piece, error) {
	var pieces []Piece
	for _, ns := range names {
		filters := []bson.D{{}}
		if n > 1 {
			var err error
			if filters, err = c.filters(ctx, ns, n); err != nil {
				return nil, fmt.Errorf("divide %s: %w", ns, err)
			}
		}
		for _, f := range filters {
			pieces = append(pieces, Piece{NS: ns, filter: f})
		}
	}
	return pieces, nil
}

// filters divide a collection, which has to have documents.
func (c *Client) filters(ctx context.Context, ns oplog.Namespace, n int) ([]bson.D, error) {
	byID := bson.D{{Key: "_id", Value: 1}}
	cursor, err := c.client.Database(ns.DB()).Collection(ns.Collection()).
		Find(ctx, bson.D{}, options.Find().SetProjection(byID).SetSort(byID))
	if err != nil {
		return nil, err
	}
	var ids []struct {
		ID bson.RawValue `bson:"_id"`
	}
	if err := cursor.All(ctx, &ids); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if id.ID.Type != ids[0].ID.Type {
			return nil, fmt.Errorf("its _ids are of several types: %s and %s", ids[0].ID.Type, id.ID.Type)
		}
	}
	n = max(1, min(n, len(ids)))
	var list []bson.D
	for i := range n {
		cond := bson.D{}
		// The first and the last piece have no bound: there is nothing beyond.
		if i > 0 {
			cond = append(cond, bson.E{Key: "$gte", Value: ids[i*len(ids)/n].ID})
		}
		if i < n-1 {
			cond = append(cond, bson.E{Key: "$lt", Value: ids[(i+1)*len(ids)/n].ID})
		}
		if len(cond) == 0 {
			return []bson.D{{}}, nil
		}
		list = append(list, bson.D{{Key: "_id", Value: cond}})
	}
	return list, nil
}

// Copy copies pieces to the same collections of another set, which are empty, by
// concurrent loops that read a cursor and write its documents by unordered inserts.
func (c *Client) Copy(ctx context.Context, to *Client, pieces []Piece, loops int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(loops)
	for i := range pieces {
		g.Go(func() error {
			if err := c.loop(ctx, to, &pieces[i]); err != nil {
				return fmt.Errorf("copy %s by a bare loop: %w", pieces[i].NS, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (c *Client) loop(ctx context.Context, to *Client, p *Piece) error {
	db, name := p.NS.DB(), p.NS.Collection()
	cursor, err := c.client.Database(db).Collection(name).Find(ctx, p.filter, options.Find().SetBatchSize(perCopy))
	if err != nil {
		return err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has been read to its end, or something else is wrong
	coll := to.client.Database(db).Collection(name)
	batch := make([]any, 0, perCopy)
	for cursor.Next(ctx) {
		// Current is the cursor's, and what it was read from serves the next one.
		batch = append(batch, slices.Clone(cursor.Current))
		if len(batch) == perCopy || cursor.RemainingBatchLength() == 0 {
			if _, err := coll.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false)); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return cursor.Err()
}

// perRead is how many documents a loop that only reads gets at once: 4 MB of documents of 1 KB.
const perRead = 4000

// ReadBoth reads pieces of this set and of another one, each by so many concurrent loops, and returns
// how many documents that were.
func (c *Client) ReadBoth(ctx context.Context, other *Client, pieces []Piece, loops int) (int64, error) {
	var n atomic.Int64
	all, ctx := errgroup.WithContext(ctx)
	for _, side := range []*Client{c, other} {
		all.Go(func() error {
			g, ctx := errgroup.WithContext(ctx)
			g.SetLimit(loops)
			for i := range pieces {
				g.Go(func() error {
					docs, err := side.read(ctx, &pieces[i])
					n.Add(docs)
					if err != nil {
						return fmt.Errorf("read %s by a bare loop: %w", pieces[i].NS, err)
					}
					return nil
				})
			}
			return g.Wait()
		})
	}
	err := all.Wait()
	return n.Load(), err
}

// read reads a piece.
func (c *Client) read(ctx context.Context, p *Piece) (n int64, err error) {
	cursor, err := c.client.Database(p.NS.DB()).Collection(p.NS.Collection()).Find(ctx, p.filter, options.Find().SetBatchSize(perRead))
	if err != nil {
		return 0, err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has been read to its end, or something else is wrong
	for cursor.Next(ctx) {
		n++
	}
	return n, cursor.Err()
}
