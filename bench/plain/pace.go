package plain

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
)

// maxUnderWay is the maximum number of operations that a paced writer has in
// flight.
const maxUnderWay = 256

// Pace writes the workload's operations one by one at rate per second, by as many
// goroutines as it takes, up to 256, and calls acked for each, with the times of
// sending and acknowledgement. A transaction is written as one, with a call for each
// of its operations. acked may be called concurrently, and may be nil. Operations on
// one document are written in order, so with a slow server they are later than due.
func (c *Client) Pace(ctx context.Context, w workload.Workload, rate float64, acked func(sent, acked time.Time)) error {
	if rate <= 0 {
		return fmt.Errorf("write %s at a pace: %g operations a second", w.Name, rate)
	}
	gen, err := workload.New(w)
	if err != nil {
		return fmt.Errorf("write %s at a pace: %w", w.Name, err)
	}
	if acked == nil {
		acked = func(time.Time, time.Time) {}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxUnderWay)
	p := &pacer{client: c, acked: acked, seed: maphash.MakeSeed(), group: g, last: map[uint64]chan struct{}{}}
	err = p.run(ctx, gen, rate)
	if failed := g.Wait(); failed != nil {
		err = failed // the run ended because of it
	}
	if err != nil {
		return fmt.Errorf("write %s at a pace: %w", w.Name, err)
	}
	return nil
}

// pacer writes units: operations, or transactions.
type pacer struct {
	client *Client
	acked  func(sent, acked time.Time)
	seed   maphash.Seed
	group  *errgroup.Group
	// last has for each document the end of the newest unit on it, until that is
	// known to have ended.
	last map[uint64]chan struct{}
}

// run starts each unit when it is due.
func (p *pacer) run(ctx context.Context, gen *workload.Generator, rate float64) error {
	start, done := time.Now(), 0
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		unit, err := nextUnit(gen)
		if err != nil || len(unit) == 0 {
			return err
		}
		at := start.Add(time.Duration(float64(done) / rate * float64(time.Second)))
		if wait := time.Until(at); wait > 0 {
			due.Reset(wait)
			select {
			case <-due.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		p.start(ctx, unit)
		done += len(unit)
	}
}

// nextUnit returns the next operation, or all of a transaction; none at the end.
func nextUnit(gen *workload.Generator) ([]workload.Op, error) {
	var unit []workload.Op
	for {
		op, ok, err := gen.Next()
		if err != nil || !ok {
			return unit, err
		}
		unit = append(unit, op)
		if op.Txn == 0 || op.TxnEnd {
			return unit, nil
		}
	}
}

// sweepAt is the number of remembered documents at which those without an
// operation in flight are forgotten.
const sweepAt = 10_000

// start writes a unit once earlier units on the same documents have ended.
func (p *pacer) start(ctx context.Context, unit []workload.Op) {
	var before []chan struct{}
	end := make(chan struct{})
	for i := range unit {
		key := keyOf(p.seed, &unit[i])
		if other := p.last[key]; other != nil && other != end {
			before = append(before, other)
		}
		p.last[key] = end
	}
	if len(p.last) > sweepAt {
		p.sweep()
	}
	p.group.Go(func() error {
		defer close(end)
		for _, other := range before {
			select {
			case <-other:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		sent := time.Now()
		if err := p.client.writeUnit(ctx, unit); err != nil {
			return err
		}
		now := time.Now()
		for range unit {
			p.acked(sent, now)
		}
		return nil
	})
}

// sweep forgets operations that have ended.
func (p *pacer) sweep() {
	for key, end := range p.last {
		select {
		case <-end:
			delete(p.last, key)
		default:
		}
	}
}

func (c *Client) writeUnit(ctx context.Context, unit []workload.Op) error {
	if len(unit) == 1 && unit[0].Txn == 0 {
		return c.writeOne(ctx, &unit[0])
	}
	session, err := c.client.StartSession()
	if err != nil {
		return fmt.Errorf("start a session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for i := range unit {
			if err := c.writeOne(ctx, &unit[i]); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return err
}

// writeOne writes one operation. That it finds nothing is an error.
func (c *Client) writeOne(ctx context.Context, op *workload.Op) error {
	n, err := c.carryOut(ctx, op)
	if err == nil && n == 0 {
		err = errMissed
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", op.Kind, op.NS, err)
	}
	return nil
}

func (c *Client) carryOut(ctx context.Context, op *workload.Op) (n int64, err error) {
	coll := c.client.Database(op.NS.DB()).Collection(op.NS.Collection())
	var updated *mongo.UpdateResult
	switch {
	case op.Kind == oplog.KindCommand:
		return 0, ErrCommands
	case op.Kind == oplog.KindInsert:
		_, err = coll.InsertOne(ctx, op.Doc)
		return 1, err
	case op.Kind == oplog.KindDelete:
		deleted, err := coll.DeleteOne(ctx, filterOf(op))
		if err != nil {
			return 0, err
		}
		return deleted.DeletedCount, nil
	case op.Doc != nil:
		updated, err = coll.ReplaceOne(ctx, filterOf(op), op.Doc)
	default:
		updated, err = coll.UpdateOne(ctx, filterOf(op), updateOf(op))
	}
	if err != nil {
		return 0, err
	}
	return updated.MatchedCount, nil
}

// byID is the filter for one document.
func byID(id bson.ObjectID) bson.D { return bson.D{{Key: "_id", Value: id}} }
