package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/status"
)

// feedbackMode returns the mode that a flag names, false for auto.
func feedbackMode(name string) (feedback.Mode, bool) {
	switch name {
	case "member":
		return feedback.Member, true
	case "document":
		return feedback.Document, true
	}
	return feedback.None, name == "none"
}

// chooseFeedback chooses how to report to the source, by what the source
// permits. auto never writes documents to the source: that must be requested.
func (c *runCommand) chooseFeedback(p *plan, r *preflight.Report, log *slog.Logger) {
	cfg := &p.pipeline
	mode, fixed := feedbackMode(c.Feedback)
	cfg.Feedback, cfg.MemberID = mode, c.FeedbackMember
	if !fixed && c.FeedbackMember < 0 {
		cfg.MemberID = -1
		if id, ok := mirrorMember(r.SourceConfig, c.Link); ok {
			cfg.MemberID = id
		}
	}
	if !fixed && cfg.MemberID >= 0 {
		cfg.Feedback = feedback.Member
		if !r.MayReport {
			log.Warn("progress is not reported to the source: privilege internal on the cluster is missing", slog.Int(keyMember, cfg.MemberID))
			cfg.Feedback = feedback.None
		}
	}
	if cfg.Feedback != feedback.Member {
		cfg.MemberID = 0
	}
}

// mirrorMember finds the member of a configuration that stands for a link: one
// that replicator member add made, with the link's name as the value of its tag.
func mirrorMember(config bson.Raw, link string) (id int, ok bool) {
	found := 0
	for _, m := range configMembers(config) {
		votes, _ := m.Lookup("votes").AsInt64OK()
		priority, _ := m.Lookup("priority").AsFloat64OK()
		hidden, _ := m.Lookup("hidden").BooleanOK()
		if votes != 0 || priority != 0 || !hidden {
			continue
		}
		tag, _ := m.Lookup("tags", "mirror").StringValueOK()
		if n, isID := m.Lookup("_id").AsInt64OK(); isID && tag == link {
			id = int(n)
			found++
		}
	}
	return id, found == 1
}

// configMembers returns the members of a replica set's configuration.
func configMembers(config bson.Raw) []bson.Raw {
	list, ok := config.Lookup("members").ArrayOK()
	if !ok {
		return nil
	}
	values, _ := list.Values()
	var members []bson.Raw
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			members = append(members, doc)
		}
	}
	return members
}

// registerProcess registers the metrics of the process.
func registerProcess(r *prometheus.Registry) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// process describes the process that runs the link, and registers the metrics of a process that runs no other.
func (v *voice) process(at *front, registry *prometheus.Registry) string {
	if v.host != nil {
		return v.host.process
	}
	registerProcess(registry)
	return lease.NewProcess(portOf(at))
}

// mirror runs the pipeline, and its background work, until it ends.
func (c *runCommand) mirror(e cli.Ends, p *plan, at *front, source, target *driver.Set, v *voice) error {
	log := v.log
	registry := prometheus.NewRegistry()
	cfg := p.pipeline
	cfg.Lease.Process = v.process(at, registry)
	logged := logEvents(e.Hard, log)
	var link *pipeline.Pipeline
	tracker, err := status.New(status.Config{
		Version: cli.Version(), Link: c.Link, Feedback: cfg.Feedback, Source: source, Target: target, MetaDB: c.MetadataDB,
		TargetPrimary: target.Primary, Registry: registry, Observer: logged,
	})
	if err != nil {
		return fmt.Errorf("set up the status: %w", err)
	}
	observe := observers(logged, tracker.Observe)
	proof := c.newVerifying(target, func() monitor.Snapshot { return link.Snapshot() }, observe)
	cfg.Registry, cfg.Observer, cfg.SetLogLevel = registry, observers(observe, changes(proof.watcher, p.scope)), v.level.change
	cfg.OnRepaired = c.repaired(target)
	if c.verifies() {
		cfg.Verification = proof
	}
	if link, err = pipeline.New(cfg, source, target); err != nil {
		return cli.Usage(err)
	}
	proof.begin(c, p, source, target, link, observe)
	tracker.Follow(link.Snapshot)
	tracker.Verifies(proof.verification)
	view, err := c.linkView(tracker, target)
	if err != nil {
		return cli.Usage(err)
	}
	if v.host != nil {
		v.host.show(tracker, view, registry)
	}

	// The pipeline decides when the run ends; the rest follows.
	background, endBackground := context.WithCancelCause(e.Hard)
	var along sync.WaitGroup
	along.Go(func() { _ = tracker.Run(background) }) // it returns the cause of our own cancellation
	proof.run(background, &along)
	along.Go(func() { progressLoop(background, log, link.Snapshot) })
	along.Go(func() { v.copy.run(background, link.Snapshot) })
	if at != nil {
		at.say(e.Hard, log)
		along.Go(func() {
			if err := c.serve(background, at, view, tracker, target, registry, log); err != nil {
				log.LogAttrs(background, slog.LevelError, "status is no longer served", slog.String(keyError, err.Error()))
			}
		})
	}
	hard, stop := context.WithCancelCause(e.Hard)
	drained := make(chan struct{})
	end := context.AfterFunc(e.Soft, func() { defer close(drained); c.drain(hard, stop, link.Snapshot, log) })
	err = link.Run(hard, e.Soft)
	stop(nil)
	if !end() {
		<-drained // it has begun: its messages must precede those of the end
	}
	proof.ended(err, p.scope)
	endBackground(nil)
	along.Wait()
	return c.ended(e.Hard, err, link.Snapshot(), log)
}

// ended says how a link has ended, and returns the error of its run.
func (c *runCommand) ended(ctx context.Context, err error, last monitor.Snapshot, log *slog.Logger) error {
	switch {
	case err != nil:
		return linkError{err}
	case last.Reason == pipeline.StoodBy:
		log.LogAttrs(ctx, slog.LevelInfo, "stopped: another process leads, or may lead now")
	case c.Delay > 0:
		log.LogAttrs(ctx, slog.LevelInfo, "drained: all entries that were due are applied", slog.String(keyApplied, last.Progress.Applied.String()))
	default:
		log.LogAttrs(ctx, slog.LevelInfo, "drained: all entries that were read are applied", slog.String(keyApplied, last.Progress.Applied.String()))
	}
	return nil
}
