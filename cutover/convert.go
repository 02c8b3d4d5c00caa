package cutover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
)

// convertTry is how long a conversion is tried again while the target fails over, since the last try that
// has changed something, or has taken as long. It is idempotent.
const convertTry = time.Minute

// ConvertConfig configures Convert, Revert and Expire.
type ConvertConfig struct {
	// Target runs commands on the target's primary; MetaDB is the metadata database.
	Target       mongo.Caller
	MetaDB, Link string
	// Fence is the link under its lease, a *checkpoint.Link, of which nothing is applied meanwhile.
	Fence ddl.Fence
	// Said, if not nil, is called with a text for each change that was made.
	Said func(string)
	// over is set if the link has ended.
	over bool
}

// Convert makes the indexes of a target unique that are so at the source, builds those that it
// lacks, and sets the options that it had refused. Before it, the link's document must say so ([checkpoint.Link.Convert]): a process that takes
// the lease meanwhile must not apply anything. It may be called again after whatever interrupts it. An
// error that wraps *ddl.RefusedErrors names the indexes that documents violate; the others are converted.
func Convert(ctx context.Context, cfg *ConvertConfig) (changes int, err error) {
	return cfg.run(ctx, (*ddl.Converter).Convert)
}

// Revert reverts Convert.
func Revert(ctx context.Context, cfg *ConvertConfig) (changes int, err error) {
	return cfg.run(ctx, (*ddl.Converter).Revert)
}

// Expire makes indexes and collections expire their documents, and deletes the records of
// deferred options. Only a link that has ended may do so: what the target deletes by itself, the source has.
func Expire(ctx context.Context, cfg *ConvertConfig) (changes int, err error) {
	return cfg.ended().run(ctx, func(c *ddl.Converter, ctx context.Context, done func(ddl.Converted)) error {
		return c.Expire(ctx, nil, done)
	})
}

// Restore is Convert and Expire for a link that has ended. Indexes that documents violate stay deferred, and are
// returned: once no document violates them any more, Restore may be called again. So it may after whatever
// interrupts it.
func Restore(ctx context.Context, cfg *ConvertConfig) (changes int, refused ddl.RefusedErrors, err error) {
	changes, err = cfg.ended().run(ctx, func(c *ddl.Converter, ctx context.Context, done func(ddl.Converted)) error {
		err := c.Convert(ctx, done)
		var is bool
		if refused, is = errors.AsType[ddl.RefusedErrors](err); err != nil && !is {
			return err
		}
		return c.Expire(ctx, refused, done)
	})
	return changes, refused, err
}

// ended is the configuration for a link that has ended.
func (cfg *ConvertConfig) ended() *ConvertConfig {
	c := *cfg
	c.over = true
	c.Fence = over{mongo.NewClockSession(cfg.Target, "cutover", cfg.MetaDB, cfg.Link)}
	return &c
}

func (cfg *ConvertConfig) run(ctx context.Context, do func(*ddl.Converter, context.Context, func(ddl.Converted)) error) (int, error) {
	n := 0
	gate := &guard.Gate{Target: cfg.Target, DB: cfg.MetaDB, Link: cfg.Link}
	convert := func() error {
		c, err := ddl.NewConverter(ctx, gate, cfg.Fence, cfg.MetaDB, cfg.Link)
		if err != nil {
			return err
		}
		c.Ended = cfg.over
		return do(c, ctx, func(d ddl.Converted) {
			n++
			if cfg.Said != nil {
				cfg.Said(converted(d))
			}
		})
	}
	retry := mongo.Retry{For: convertTry, Again: passing}
	for tries := retry.Start(); ; {
		began, before := time.Now(), n
		err := convert()
		if err == nil {
			return n, nil
		}
		if n > before || time.Since(began) >= convertTry && mayBuild(err) {
			tries = retry.Start() // it was building an index, or has built one
		}
		if err := tries.Wait(ctx, err); err != nil {
			return n, err
		}
	}
}

// mayBuild reports whether an error that has come late may have interrupted the build of an index: the target had a primary to send
// the command to, and what took long was neither a read nor a command that it has refused again and again.
func mayBuild(err error) bool {
	if lost, is := errors.AsType[*mongo.LostError](err); is && lost.Host == "" {
		return false
	}
	if silent, is := errors.AsType[*mongo.SilentError](err); is && silent.Read {
		return false
	}
	return !errors.As(err, new(*mongo.StuckError))
}

func converted(d ddl.Converted) string {
	if d.Index == "" {
		return fmt.Sprintf("%s: %s", d.NS, d.What)
	}
	return fmt.Sprintf("%s: index %s: %s", d.NS, d.Index, d.What)
}

// over is the fence of a link that has ended: nothing is applied, and no process has its lease.
type over struct{ session *mongo.ClockSession }

// Check implements ddl.Fence.
func (over) Check(context.Context) error { return nil }

// Within implements ddl.Fence.
func (o over) Within(ctx context.Context, work func(txn mongo.Caller) error) error {
	return o.session.InTxn(ctx, func(txn *mongo.Txn) error { return work(txn) })
}
