package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// builtNS is the collection whose index is built while a workload is mirrored. Its database
// is that of probes.
var builtNS = oplog.NewNamespace(plain.ProbeDB, "replicator_bench_built")

// hangBuild is the fail point that makes an index build of an embedded set last.
const hangBuild = "hangAfterStartingIndexBuild"

// during measures one link whose source is written to as fast as it accepts.
type during struct {
	*mirror
	// builds: the target builds an index of another collection all the while.
	builds bool
	// applied counts the operations that are in the target.
	applied atomic.Int64
	link    *link
	// lasted is how long the build took, in each round.
	lasted []time.Duration
	// complete: everything is applied.
	complete bool
}

// duringBuild measures two mirrors in turns: one whose target builds an index of another
// collection from before the first operation of the workload until after the last one is
// applied, and one without that. The target has to be an embedded set, whose build takes as
// long as configured.
func duringBuild(ctx context.Context, c Config) (build, without *result.Run, err error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), setsOnly(c), embeddedTarget(c)); err != nil {
		return nil, nil, fmt.Errorf("measure an index build: %w", err)
	}
	ops, bytes, err := logSize(c.Workload)
	if err != nil {
		return nil, nil, err
	}
	var list []*contender
	for _, kind := range []string{"index-build", "no-index-build"} {
		d := &during{mirror: &mirror{cfg: c}, builds: kind == "index-build"}
		run := newRun(kind, c)
		run.Ops, run.Bytes = ops, bytes
		list = append(list, d.contender(run))
	}
	if err := turns(ctx, c, list...); err != nil {
		return nil, nil, fmt.Errorf("measure an index build: %w", err)
	}
	return list[0].run, list[1].run, nil
}

// embeddedTarget returns an error for a target whose builds cannot be made to last.
func embeddedTarget(c Config) error {
	if c.Target != "" || c.Mongod != "" {
		return &ConfigError{errors.New("only an embedded target builds an index for as long as it is told")}
	}
	return nil
}

// contender takes part in turns. Each round has sets of its own.
func (d *during) contender(run *result.Run) *contender {
	return &contender{
		run: run,
		prepare: func(ctx context.Context, round int) (func(context.Context) error, error) {
			if err := d.begin(ctx, run, round); err != nil {
				return nil, errors.Join(err, d.end(ctx))
			}
			began := time.Now()
			return func(ctx context.Context) error {
				err := d.all(ctx, run.Ops)
				d.complete = err == nil
				d.lasted = append(d.lasted, time.Since(began))
				return err
			}, nil
		},
		after: d.end,
		note: func(context.Context) error {
			run.Notes = append(run.Notes, "timed from the first write to the source until all operations of the workload are in the target")
			if d.builds {
				run.Notes = append(run.Notes, fmt.Sprintf("the target builds an index of another collection all the while; builds lasted %v", d.lasted))
			}
			return nil
		},
	}
}

// begin starts sets and a link, and the build.
func (d *during) begin(ctx context.Context, run *result.Run, round int) error {
	if err := d.open(ctx); err != nil {
		return err
	}
	run.Source, run.Target = d.source.Is, d.target.Is
	for _, p := range []*place{d.source, d.target} {
		if err := command(ctx, p, builtNS.DB(), bson.D{{Key: "insert", Value: builtNS.Collection()}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}); err != nil {
			return err
		}
	}
	start, err := newest(ctx, d.source.Set)
	if err != nil {
		return err
	}
	names, err := only(d.target.touched(append(d.collections, workload.Collection{NS: builtNS})))
	if err != nil {
		return err
	}
	cfg := linkConfig(d.cfg, linkName(run.Kind, round), names, start)
	d.applied.Store(0)
	d.complete = false
	cfg.OnFlush = func(ops int, _ bson.DateTime, _ time.Time) { d.applied.Add(int64(ops)) }
	if d.link, err = startLink(ctx, cfg, d.source.End, d.target.End); err != nil {
		return err
	}
	if err := d.link.steady(ctx); err != nil || !d.builds {
		return err
	}
	if err := d.hang(ctx, "alwaysOn"); err != nil {
		return err
	}
	index := bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 1}}}, {Key: "name", Value: "xy"}}
	if err := command(ctx, d.source, builtNS.DB(), bson.D{{Key: "createIndexes", Value: builtNS.Collection()}, {Key: "indexes", Value: bson.A{index}}}); err != nil {
		return err
	}
	return d.link.until(ctx, "the collection waits for its index", func(s *monitor.Snapshot) bool { return len(s.Applier.KeptBack) > 0 })
}

// all writes the workload, and waits until it is in the target.
func (d *during) all(ctx context.Context, ops int64) error {
	if err := writePlain(ctx, d.source.URI, d.cfg); err != nil {
		return err
	}
	return d.link.until(ctx, "everything else is applied", func(*monitor.Snapshot) bool { return d.applied.Load() >= ops })
}

// end ends the build, checks a complete target, and ends everything that begin has started.
func (d *during) end(ctx context.Context) error {
	defer d.close()
	if d.link == nil {
		return nil
	}
	defer d.link.stop()
	err := d.hang(ctx, "off")
	if err == nil {
		err = d.link.end()
	}
	if err == nil && d.complete {
		err = same(ctx, d.source.End, d.target.End, "", append(d.collections, workload.Collection{NS: builtNS}))
	}
	return err
}

func (d *during) hang(ctx context.Context, mode string) error {
	return command(ctx, d.target, "admin", bson.D{{Key: "configureFailPoint", Value: hangBuild}, {Key: "mode", Value: mode}})
}

// command sends a command to an end.
func command(ctx context.Context, p *place, db string, cmd bson.D) error {
	if _, err := ask(ctx, p.Set, db, cmd); err != nil {
		return fmt.Errorf("%s: %w", cmd[0].Key, err)
	}
	return nil
}
