package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/mongoboard"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/web"
)

type agentCommand struct {
	Start   agentStartCommand   `cmd:"" default:"withargs" help:"Run the links of a file, shared with the other agents that use the same file."`
	Status  agentStatusCommand  `cmd:"" help:"Show which process has which link, and why."`
	Drain   agentDrainCommand   `cmd:"" help:"Have the other processes take the links of one."`
	Undrain agentUndrainCommand `cmd:"" help:"Give a process links again."`
	Retry   agentRetryCommand   `cmd:"" help:"Start a link again that has ended, or waits to be started again."`
}

// fileFlag names the file of a fleet.
type fileFlag struct {
	Links string `placeholder:"FILE" help:"YAML file with the links of the fleet: see docs/agent.md."`
}

func (f *fileFlag) load(environ []string) (*linksFile, error) {
	if f.Links == "" {
		return nil, cli.Usage(errors.New("--links is missing: the file with the links"))
	}
	file, err := loadLinks(f.Links, environ)
	if err != nil {
		return nil, cli.Usage(err)
	}
	return file, nil
}

type agentStartCommand struct {
	fileFlag
	Check    bool     `help:"Check the file, and exit."`
	Member   string   `placeholder:"NAME" help:"Name of this process among the others. Default: HOST:PORT of --listen, otherwise HOST:PID."`
	MaxLinks int      `default:"4" help:"How many links this process runs at the most. Each has an equal share of the memory."`
	Memory   cli.Size `placeholder:"SIZE" help:"Memory of the process. Default: nine tenths of the container's limit, at most 1 GiB for each of --max-links; without a container 320 MiB for each."`
	//nolint:lll // A tag cannot be broken.
	DrainTimeout time.Duration `default:"1m" help:"After a signal, or when a link is moved, how long it continues to apply what it has read."`
	LogFormat    string        `default:"auto" enum:"auto,text,json" help:"auto: text on a terminal, JSON otherwise."`
	LogLevel     string        `default:"info" enum:"debug,info,warn,error" help:"Minimum level to log."`

	httpFlags
}

// Help is what agent start --help says before the flags.
func (*agentStartCommand) Help() string {
	return "Start as many processes as you like with the same file: each runs some of its links, and takes over those of a process that has gone. " +
		"The file is read again on SIGHUP, and when it has changed. The first SIGTERM or SIGINT drains, the second stops at once; neither loses anything. See docs/agent.md."
}

// memory is how much the process is to use, and each of its links.
func (c *agentStartCommand) memory(environ []string) (m processMemory, perLink int64, err error) {
	if c.MaxLinks < 1 || c.MaxLinks > 1000 {
		return m, 0, fmt.Errorf("--max-links: %d is not from 1 to 1000", c.MaxLinks)
	}
	if m, err = memoryOf(int64(c.Memory), c.MaxLinks, environ); err != nil {
		return m, 0, err
	}
	if perLink = memory.OfLink(m.total, c.MaxLinks); perLink < memory.MinLink {
		return m, 0, fmt.Errorf("--max-links=%d: %s leaves the process %s of memory, and it needs %s for so many links: raise it, or lower --max-links",
			c.MaxLinks, m.from, mebibytes(m.total), cli.Size(memory.OfProcess(memory.MinLink, c.MaxLinks)))
	}
	return m, perLink, nil
}

// Run runs links until ctx is done.
func (c *agentStartCommand) Run(e cli.Ends, out cli.Output, known *settings) error {
	e.Reloads()
	file, err := c.load(known.environ)
	if err != nil {
		return err
	}
	if err := c.checkHTTP(); err != nil {
		return cli.Usage(err)
	}
	m, perLink, err := c.memory(known.environ)
	if err != nil {
		return cli.Usage(err)
	}
	if c.Check {
		_, err := fmt.Fprintf(out.Results, "%s: %d links, group %s, control plane %s\n", c.Links, len(file.links), file.Group, redacted(file.Control, file.ControlLogin.config(file.Control, file.SelectionTimeout)))
		return err
	}
	defer m.apply()()
	p := &agentProcess{
		agentStartCommand: c, ends: e, environ: known.environ, file: file, perLink: perLink,
		log: newLogger(out.Complaints, jsonLogs(c.LogFormat, out.Complaints), c.LogLevel),
	}
	return p.run(m)
}

// member is the name of this process, which serves at, if that is not nil.
func (c *agentStartCommand) member(at *front) string {
	if c.Member != "" {
		return c.Member
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if port := portOf(at); port != "" {
		return host + ":" + port
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

const (
	keyMaxLinks = "maxLinks"
	keyLinks    = "links"
	keyFile     = "file"
)

// agentProcess is a process with many links.
type agentProcess struct {
	*agentStartCommand
	ends    cli.Ends
	environ []string
	log     *slog.Logger
	perLink int64
	agent   *agent.Agent
	share   *share.Share
	// process is the id of this process in the leases of its links.
	process string
	// file is the last one that could be read, used by reloadLoop alone.
	file *linksFile
}

// run takes part in the fleet until a signal.
func (p *agentProcess) run(m processMemory) error {
	cli.OutlastOutput()
	ctx := p.ends.Soft
	at, err := p.openHTTP(ctx, p.environ, p.log)
	if err != nil {
		return err
	}
	if at != nil {
		defer at.Close() //nolint:errcheck // the server closes it; this is a second time
	}
	member := p.member(at)
	p.log.LogAttrs(ctx, slog.LevelInfo, "starting", slog.String(keyVersion, cli.Version()), slog.String(keyMember, member),
		slog.Int(keyMaxLinks, p.MaxLinks), slog.String(keyMemory, mebibytes(m.total).String()), slog.String(keyMemoryFrom, string(m.from)))
	options, err := p.file.control()
	if err != nil {
		return cli.Usage(err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the control plane: %w", err))
	}
	defer set.Close()
	store := mongostore.New(set, p.file.ControlDB)
	if _, err := store.Clock(ctx); err != nil {
		return cli.Connect(fmt.Errorf("ask the control plane for the time: %w", err))
	}
	plane := newControlPlane(store)
	plane.failures = &failureBoard{
		target: set, db: p.file.ControlDB, group: p.file.Group, member: member, written: map[string]toldFailure{},
		holder: func(ctx context.Context, link string) (*share.Holder, error) {
			return leaseOf(ctx, set, p.file.ControlDB, p.file.Group, link)
		},
	}
	p.process = lease.NewProcess(portOf(at))
	p.agent = agent.New(p.ends.Hard, p.ends.Soft, agent.Config{
		Version: cli.Version(), Member: member, Max: p.MaxLinks, Explain: explainLink, Ready: plane.ready, Log: p.log,
	})
	p.agent.Set(p.links(p.file))
	p.share, err = share.New(share.Config{
		Store: store, Board: mongoboard.New(set, p.file.ControlDB), Group: p.file.Group, Member: member, Limit: p.MaxLinks,
		TTL: p.file.LeaseTTL, Every: p.file.LeaseRenew, Logger: p.log,
		Partitions: func(context.Context) ([]string, error) { return p.agent.Names(), nil },
		Work:       p.agent.Work, MoveAfter: 1,
	})
	if err != nil {
		return cli.Usage(err)
	}
	registry := prometheus.NewRegistry()
	registerProcess(registry)
	if err := p.agent.Register(registry); err != nil {
		return fmt.Errorf("set up the metrics: %w", err)
	}
	return p.takePart(at, registry, plane, p.rows(set, store))
}

// takePart runs the coordination, and its background work.
func (p *agentProcess) takePart(at *front, registry *prometheus.Registry, plane *controlPlane, links func(context.Context) (any, error)) error {
	background, end := context.WithCancelCause(p.ends.Hard)
	var along sync.WaitGroup
	along.Go(func() { p.reloadLoop(background) })
	along.Go(func() { plane.askLoop(background, p.agent) })
	if at != nil {
		at.say(background, p.log)
		along.Go(func() {
			cfg := p.agent.Web(registry)
			cfg.Registry, cfg.Links = registry, links
			cfg.Types = web.Types{Status: agent.Status{}, LinkStatus: status.Snapshot{}, History: historyShape{}, Links: linkRows{}, Requests: []request.Record{}}
			at.configure(&cfg, &p.httpFlags)
			if err := at.run(background, cfg); err != nil {
				p.log.LogAttrs(background, slog.LevelError, "status is no longer served", slog.String(keyError, err.Error()))
			}
		})
	}
	err := p.share.Run(p.ends.Soft)
	end(nil)
	along.Wait()
	if p.ends.Soft.Err() == nil {
		return err
	}
	if late := p.agent.Undrained(); len(late) > 0 {
		return &cli.Error{
			Err:  fmt.Errorf("%w: links %s", failure.ErrStopped, strings.Join(late, ", ")),
			Code: failure.ExitNotDrained, Hint: "Nothing is lost: the process that runs them next resumes from their checkpoints.",
		}
	}
	p.log.LogAttrs(p.ends.Hard, slog.LevelInfo, "all links have drained")
	return nil
}

// explainLink says with which code replicator run would have ended.
func explainLink(err error) agent.Failure {
	code, hint := explain(err)
	text := err.Error()
	if e, ok := errors.AsType[*preflight.FailedError](err); ok { // its findings are in the process's own output only
		text, hint = e.Details()
		hint += " Nothing was written."
	}
	return agent.Failure{Code: code, Error: cli.WithoutPasswords(text), Do: strings.TrimSpace(cli.WithoutPasswords(hint)), Helps: restartHelps(code) || isOfMachine(err)}
}

// isOfMachine reports whether a link has ended for a fault of this machine: a file that is
// missing here, or the spool's directory. Another process may not have it.
func isOfMachine(err error) bool {
	if e, ok := errors.AsType[*preflight.FailedError](err); ok {
		return !slices.ContainsFunc(e.Findings, func(f preflight.Finding) bool { return f.Check != "spool" })
	}
	return is[*fs.PathError](err)
}

// restartHelps reports whether docs/exit-codes.md says that a restart can help. Only runs with
// --once end with code 5.
func restartHelps(code int) bool {
	switch code {
	case cli.ExitOK, cli.ExitUnexpected, cli.ExitConnect, failure.ExitNotDrained:
		return true
	}
	return false
}
