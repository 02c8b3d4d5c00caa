package cutover

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/verify/standing"
)

// carriedBy is the writer of the divergences that a way back has from the link before it.
const carriedBy = "cutover"

// open returns the divergences of the link that has ended that are still open, as those of the way back: the two sides differ in
// those collections as before, and the new source is right. They are of its start, so that only a later comparison, copy or drop settles them.
func (b *Back) open(ctx context.Context) ([]checkpoint.Diverged, error) {
	known, err := standing.Read(ctx, b.cfg.Source, b.cfg.MetaDB, b.back.Link)
	if err != nil {
		return nil, fmt.Errorf("read what of link %s has diverged: %w", b.back.Link, err)
	}
	if len(known.Diverged) == 0 {
		return nil, nil
	}
	for i := range known.Diverged {
		d := &known.Diverged[i]
		d.NS, d.Source = d.Source, d.NS
		d.First, d.Last, d.Op, d.AddedBy = b.back.Start.TS, b.back.Start.TS, 0, bson.ObjectID{}
		d.What = fmt.Sprintf("before the cutover of link %s: %s", b.back.Link, d.What)
	}
	create, err := bson.Marshal(bson.D{{Key: "create", Value: metadata.Diverged}})
	if err != nil {
		return nil, fmt.Errorf("create the collection %s.%s: %w", b.cfg.MetaDB, metadata.Diverged, err)
	}
	_, err = b.cfg.Target.Call(ctx, mongo.Command{DB: b.cfg.MetaDB, Body: mongo.WithMajority(create)})
	if err != nil && !servererr.IsNamespaceThere(err) {
		return nil, fmt.Errorf("create the collection %s.%s: %w", b.cfg.MetaDB, metadata.Diverged, err)
	}
	return known.Diverged, nil
}

// carry records divergences in the transaction that creates the way back, in place of those of an earlier link of that name.
func (b *Back) carry(ctx context.Context, txn mongo.Caller, link string, open []checkpoint.Diverged) error {
	err := metadata.Run(ctx, txn, metadata.Delete(b.cfg.MetaDB, metadata.Diverged, metadata.Below(link)), -1)
	if err != nil || len(open) == 0 {
		return err
	}
	statements := make([]metadata.Statement, len(open))
	for i := range open {
		statements[i] = open[i].Statement(link, "", carriedBy)
	}
	return metadata.Run(ctx, txn, metadata.Update(b.cfg.MetaDB, metadata.Diverged, statements...), -1)
}
