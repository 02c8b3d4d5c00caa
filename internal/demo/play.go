package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mongosim"
)

// ErrBehind is a target that did not catch up in time.
var ErrBehind = errors.New("the target did not catch up in time")

// metaDB is where the link keeps its records.
const metaDB = "replicator"

// play writes, lets both sets change their primary, and waits until everything that
// was written is in the target.
func (d *Demo) play(ctx context.Context) error {
	select {
	case <-d.steady:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	d.screen.line("mirroring; clients write for %s", d.cfg.Writing)
	began := time.Now()
	g, ctx2 := errgroup.WithContext(ctx)
	soft, stop := context.WithCancelCause(ctx2)
	defer stop(errOver)
	g.Go(func() error { return d.traffic.Run(ctx2, soft) })
	g.Go(func() error {
		defer stop(errOver)
		return d.failovers(ctx2, began)
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("demo: write to the source: %w", err)
	}
	d.result.Written = d.traffic.Stats()
	d.screen.line("the clients have ended; waiting until the target has everything")
	return d.catchUp(ctx)
}

// failovers makes both sets change their primary while it is written to them, and
// returns when enough was written.
func (d *Demo) failovers(ctx context.Context, began time.Time) error {
	for _, f := range []struct {
		name  string
		at    time.Duration
		set   *mongosim.Set
		count *int
	}{
		{"source", d.cfg.Writing / 3, d.sourceSet, &d.result.SourceFailovers},
		{"target", 2 * d.cfg.Writing / 3, d.targetSet, &d.result.TargetFailovers},
	} {
		if err := until(ctx, began.Add(f.at)); err != nil {
			return err
		}
		old := f.set.Primary()
		start := time.Now()
		if err := f.set.StepDown(ctx); err != nil {
			return fmt.Errorf("let the primary of the %s step down: %w", f.name, err)
		}
		*f.count++
		from, to := "nobody", "nobody"
		if old != nil {
			from = old.Host()
		}
		if p := f.set.Primary(); p != nil {
			to = p.Host()
		}
		d.screen.line("step-down of the %s: %s gives way to %s within %.1f s", f.name, from, to, time.Since(start).Seconds())
	}
	return until(ctx, began.Add(d.cfg.Writing))
}

// catchUp waits until the target has all that the source has.
func (d *Demo) catchUp(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.Catchup, ErrBehind)
	defer cancel()
	if err := d.sourceSet.AwaitSynced(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("demo: wait for the source's members: %w", err)
	}
	// All its members have it, so that it is committed.
	reply, err := d.source.Call(ctx, call.Command{DB: "admin", Body: bson.Raw(
		bsoncore.NewDocumentBuilder().AppendInt32("hello", 1).Build(),
	)})
	if err != nil {
		return fmt.Errorf("demo: ask the source for its newest entry: %w", err)
	}
	seconds, i, ok := reply.Lookup("lastWrite", "opTime", "ts").TimestampOK()
	if !ok {
		return errors.New("demo: ask the source for its newest entry: the reply has no lastWrite.opTime.ts")
	}
	want := bson.Timestamp{T: seconds, I: i}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if at := d.pipeline.Snapshot().Progress.Applied; !at.TS.Before(want) {
			d.result.CaughtUpIn = time.Since(began)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, ErrBehind) {
				return cause
			}
			s := d.tracker.Snapshot()
			return fmt.Errorf("demo: after %s the target is %s, applied %v of %v; last error: %v: %w",
				d.cfg.Catchup, s.State, s.OpTimes.Applied, want, s.LastError, ErrBehind)
		}
	}
}

// until waits for a point in time.
func until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// heldBack returns what the target keeps back until cutover.
func heldBack(ctx context.Context, target call.Caller) (ddl.Specs, error) {
	held, err := ddl.Held(ctx, target, metaDB, link)
	if err != nil {
		return nil, fmt.Errorf("read what the target keeps back: %w", err)
	}
	return held, nil
}
