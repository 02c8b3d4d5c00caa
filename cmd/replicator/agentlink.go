package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
)

// host is a process that runs several links.
type host struct {
	// process is its id in leases.
	process string
	// show is called once the link has something to show.
	show func(*status.Tracker, web.Link, *prometheus.Registry)
}

// links returns the function that runs each link of a file.
func (p *agentProcess) links(f *linksFile) []agent.Link {
	list := make([]agent.Link, 0, len(f.links))
	for _, l := range f.links {
		list = append(list, agent.Link{Name: l.name, Settings: l.settings, Run: func(ctx, soft context.Context, show func(agent.View)) error {
			return p.runLink(cli.Ends{Soft: soft, Hard: ctx}, l, show) //nolint:contextcheck // cli.Ends has both contexts
		}})
	}
	return list
}

// runLink runs a link as replicator run does.
func (p *agentProcess) runLink(e cli.Ends, l *fileLink, show func(agent.View)) error {
	c := &runCommand{runFlags: l.runFlags}
	c.DrainTimeout = p.DrainTimeout
	plan, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	if least := c.leastMemory(); p.perLink < least {
		return cli.Usage(fmt.Errorf("--max-links leaves each link %s of memory, and one with --verify=%s needs %s: lower it, or raise --memory",
			mebibytes(p.perLink), verifyContinuous, cli.Size(least)))
	}
	plan.pipeline.Memory = c.linkMemory(p.perLink)
	level := newLogLevel(p.LogLevel)
	log := level.of(p.log).With(slog.String(keyLink, l.name))
	screen := newScreen(io.Discard) // The progress of a copy goes to the log.
	v := &voice{
		log: log, level: level, asJSON: true, copy: newProgress(progressLines, screen, log, screen.width),
		host: &host{process: p.process, show: func(t *status.Tracker, l web.Link, r *prometheus.Registry) { show(viewOf(t, l, r)) }},
	}
	return c.run(e, plan, v, processMemory{total: p.perLink, from: "its share of the process"})
}

// viewOf is the view of a link within the process.
func viewOf(t *status.Tracker, l web.Link, r *prometheus.Registry) agent.View {
	return agent.View{
		Summary: func() agent.Summary {
			s := t.Snapshot()
			return agent.Summary{
				State: s.State, Reason: s.Reason, Healthy: s.Healthy(), Consistent: s.Consistent, LagSeconds: s.LagSeconds,
				Level: string(s.Verdict.Level), Verdict: s.Verdict.Sentence, Next: s.Verdict.Next, Also: s.Verdict.Also,
			}
		},
		Link: l, Metrics: r,
	}
}

// reloadEvery is the time between two looks at the links file.
const reloadEvery = 10 * time.Second

// reloadLoop reads the file again on SIGHUP and every 10 s: a file of a Kubernetes ConfigMap
// changes in place, without a signal.
func (p *agentProcess) reloadLoop(ctx context.Context) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	fault := ""
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			asked = true
		case <-tick.C:
		}
		f, err := loadLinks(p.Links, p.environ)
		switch {
		case err != nil && (asked || err.Error() != fault):
			fault = err.Error()
			p.agent.Fault(errors.New(cli.WithoutPasswords(fault)))
			p.log.LogAttrs(ctx, slog.LevelError, "the links file cannot be used: the links remain as they are",
				slog.String(keyFile, p.Links), slog.String(keyError, cli.WithoutPasswords(fault)))
		case err == nil:
			p.replace(ctx, f, asked || fault != "")
			fault = ""
		}
	}
}

// replace uses another file from now on, if it is another one.
func (p *agentProcess) replace(ctx context.Context, f *linksFile, say bool) {
	if f.fleet() != p.file.fleet() {
		p.log.LogAttrs(ctx, slog.LevelWarn, "the links file has another control plane, group, or times of leases: they count once the process is started again",
			slog.String(keyFile, p.Links))
		f.fleetFlags = p.file.fleetFlags
	}
	same := f.same(p.file)
	if same && !say {
		return
	}
	p.file = f
	p.agent.Set(p.links(f))
	p.log.LogAttrs(ctx, slog.LevelInfo, "the links file was read again", slog.String(keyFile, p.Links), slog.Int(keyLinks, len(f.links)), slog.Bool(keyChanged, !same))
}

const keyChanged = "changed"

// fleet identifies the settings of the fleet.
func (f *linksFile) fleet() string { return fmt.Sprint(f.fleetFlags) }

// same reports whether two files have the same links, with the same settings.
func (f *linksFile) same(other *linksFile) bool {
	if len(f.links) != len(other.links) {
		return false
	}
	for i, l := range f.links {
		if o := other.links[i]; l.name != o.name || l.settings != o.settings {
			return false
		}
	}
	return true
}

const (
	// askEvery is the time between two questions to the control plane, askWithin the limit of one.
	askEvery, askWithin = 5 * time.Second, 5 * time.Second
	// silentFor is how long it may not answer.
	silentFor = 20 * time.Second
)

// controlPlane knows whether the control plane answers, and tells it how links end.
type controlPlane struct {
	store    locks.Store
	failures *failureBoard

	mu sync.Mutex // guards the rest
	// heard is when it has answered last, told when it knew last how links have ended; fault and untold are
	// why it has not since, nil if it has.
	heard, told   time.Time
	fault, untold error
}

func newControlPlane(store locks.Store) *controlPlane {
	return &controlPlane{store: store, heard: time.Now(), told: time.Now()}
}

func (c *controlPlane) askLoop(ctx context.Context, a *agent.Agent) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.ask(ctx, a.Status(), a.Retry)
	}
}

// ask asks the control plane for the time, tells it how links have ended, and asks it which of them are to be started again.
func (c *controlPlane) ask(ctx context.Context, s agent.Status, retry func(link string) bool) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	_, err := c.store.Clock(ctx)
	c.mu.Lock()
	if c.fault = err; err == nil {
		c.heard = time.Now()
	}
	c.mu.Unlock()
	if err != nil {
		return
	}
	if err = c.failures.update(ctx, s); err == nil {
		err = c.failures.retries(ctx, retry)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.untold = err; err == nil {
		c.told = time.Now()
	}
}

// ready returns why the process cannot take part, or the others do not know how its links end.
func (c *controlPlane) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if silent := time.Since(c.heard); c.fault != nil && silent > silentFor {
		return fmt.Errorf("the control plane has not answered for %s: %w", silent.Round(time.Second), c.fault)
	}
	if since := time.Since(c.told); c.untold != nil && c.fault == nil && since > silentFor {
		return fmt.Errorf("the control plane answers, but for %s could not be told how links end, nor asked which to start again; links run: %w",
			since.Round(time.Second), c.untold)
	}
	return nil
}
