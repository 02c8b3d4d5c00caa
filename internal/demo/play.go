package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// errNotCaughtUp is the error of a target that did not catch up in time.
var errNotCaughtUp = errors.New("the target did not catch up in time")

// metaDB is where the link keeps its records.
const metaDB = "replicator"

// The initial data of the source.
const (
	filledDB    = "archive"
	filled      = "orders"
	filledChunk = 1_000 // documents in an insert
	filledPad   = 1_000 // bytes in a document
)

// fill gives the source something to copy.
func (d *Demo) fill(ctx context.Context) error {
	d.screen.line("the source gets %s documents", grouped(int64(d.cfg.Documents)))
	pad := strings.Repeat("x", filledPad)
	for from := 0; from < d.cfg.Documents; from += filledChunk {
		docs, n := bsoncore.NewArrayBuilder(), min(filledChunk, d.cfg.Documents-from)
		for i := range n {
			docs.AppendDocument(bsoncore.NewDocumentBuilder().
				AppendInt32("_id", int32(from+i)).AppendString("by", "the demo").AppendString("pad", pad).Build())
		}
		body := bsoncore.NewDocumentBuilder().AppendString("insert", filled).AppendArray("documents", docs.Build()).Build()
		reply, err := d.source.Call(ctx, mongo.Command{DB: filledDB, Body: bson.Raw(body)})
		if err != nil {
			return fmt.Errorf("demo: fill the source: %w", err)
		}
		if got, _ := reply.Lookup("n").AsInt64OK(); got != int64(n) {
			return fmt.Errorf("demo: fill the source: %d of %d documents were inserted: %s", got, n, reply)
		}
	}
	return nil
}

// play writes, starts the link meanwhile, makes both sets change their primary,
// and waits until everything written is in the target.
func (d *Demo) play(ctx context.Context) error {
	d.screen.line("clients write to it for %s", d.cfg.Writing)
	began := time.Now()
	g, ctx2 := errgroup.WithContext(ctx)
	soft, stop := context.WithCancelCause(ctx2)
	defer stop(errOver)
	g.Go(func() error { return d.traffic.Run(ctx2, soft) })
	g.Go(func() error {
		defer stop(errOver)
		if err := until(ctx2, began.Add(min(time.Second, d.cfg.Writing/4))); err != nil {
			return err
		}
		d.screen.line("the link begins: it copies the collections, and stores the oplog meanwhile")
		close(d.written)
		return d.failovers(ctx2, began)
	})
	g.Go(func() error {
		select {
		case <-d.written:
		case <-soft.Done():
			return nil
		}
		start := time.Now()
		select {
		case <-d.copied:
			d.result.CopiedIn = time.Since(start)
			d.screen.line("the target is consistent, %.1f s after the beginning of its copy, while %s statements were written",
				d.result.CopiedIn.Seconds(), grouped(d.traffic.Stats().Writes))
		case <-soft.Done():
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("demo: write to the source: %w", err)
	}
	d.result.Written = d.traffic.Stats()
	d.screen.line("the clients have ended; waiting until the target has everything")
	return d.catchUp(ctx)
}

// failovers makes both sets change their primary during writes, and returns when
// enough was written.
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
		from, to := "none", "none"
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

// catchUp waits until the target has caught up with the source.
func (d *Demo) catchUp(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.Catchup, errNotCaughtUp)
	defer cancel()
	if err := d.sourceSet.AwaitSynced(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("demo: wait for the source's members: %w", err)
	}
	// All its members have it, so that it is committed.
	reply, err := mongo.Hello(ctx, d.source)
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
		if s := d.pipeline.Snapshot(); consistent(&s) && !s.Progress.Applied.TS.Before(want) {
			d.result.CaughtUpIn = time.Since(began)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errNotCaughtUp) {
				return cause
			}
			s := d.tracker.Snapshot()
			return fmt.Errorf("demo: after %s the target is %s, applied %v of %v; last error: %v: %w",
				d.cfg.Catchup, s.State, s.OpTimes.Applied, want, s.LastError, errNotCaughtUp)
		}
	}
}

// consistent reports whether the copy is one.
func consistent(s *monitor.Snapshot) bool {
	return s.Copy != nil && s.Copy.Phase == checkpoint.Copied
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

// deferredOf returns the index options that the target defers until cutover.
func deferredOf(ctx context.Context, target mongo.Caller) (ddl.Specs, error) {
	deferred, err := ddl.ReadDeferred(ctx, target, metaDB, link)
	if err != nil {
		return nil, fmt.Errorf("read what the target keeps back: %w", err)
	}
	return deferred, nil
}
