package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/preflight"
)

type runCommand struct {
	Config      configFile `placeholder:"FILE" help:"YAML settings file: lines NAME: VALUE, with the names of these flags."`
	PrintConfig bool       `help:"Print the effective settings and where each is set, and exit."`
	Check       bool       `help:"Make the startup checks, print a line for each, and exit."`

	runFlags
}

// Help is what run --help says before the flags.
func (*runCommand) Help() string {
	return "Every flag can also be set by an environment variable (REPLICATOR_SPOOL_BYTES for --spool-bytes) " +
		"or a line of a YAML file (spool-bytes: 1GiB, see --config). A flag overrides the environment, which overrides the file. " +
		"Keep passwords out of the command line: every user of the machine can read it. See docs/configuration.md.\n\n" +
		"The first SIGTERM, SIGINT or SIGHUP drains, a second SIGTERM or SIGINT stops at once; neither loses anything."
}

// Run mirrors the source into the target until ctx is done or an error ends the
// link.
func (c *runCommand) Run(command *kong.Context, e cli.Ends, out cli.Output, known *settings) error {
	if c.PrintConfig {
		if err := c.printConfig(command, known, out.Results); err != nil {
			return err
		}
	}
	p, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	m, err := c.processMemory(known.environ)
	if err != nil {
		return cli.Usage(err)
	}
	if c.PrintConfig {
		return nil
	}
	p.pipeline.Memory = c.linkMemory(m.total)
	defer m.apply()()
	if !c.Check {
		cli.OutlastOutput()
	}
	v := c.voice(out)
	v.environ = known.environ
	err = c.run(e, p, v, m)
	// The result of a check is text on standard output, and so are its messages.
	if err == nil || !v.asJSON || c.Check {
		return err
	}
	// A reader of the JSON log must not meet other lines.
	code, hint := explain(err)
	v.log.LogAttrs(e.Hard, slog.LevelError, "ended with an error",
		slog.String(keyError, cli.WithoutPasswords(err.Error())), slog.Int(keyCode, code), slog.String(keyHint, hint))
	return cli.Logged(err)
}

// voice is the output of a run: log, progress and results of checks.
type voice struct {
	out    cli.Output
	log    *slog.Logger
	level  *logLevel // of log
	asJSON bool
	copy   *progress
	// host is the process that runs this link among others, nil if it is the only one.
	host *host
	// environ is the environment.
	environ []string
}

// voice makes it. All output on standard error goes through one screen, so that
// the progress of a copy can stay at its end.
func (c *runCommand) voice(out cli.Output) *voice {
	asJSON := jsonLogs(c.LogFormat, out.Complaints)
	mode, onto := progressMode(c.Progress, out.Complaints, asJSON), newScreen(out.Complaints)
	level := newLogLevel(c.LogLevel)
	log := level.of(newLogger(onto, asJSON, c.LogLevel)).With(slog.String(keyLink, c.Link))
	out.Complaints = onto
	return &voice{out: out, log: log, level: level, asJSON: asJSON, copy: newProgress(mode, onto, log, onto.width)}
}

// run connects, checks, and mirrors.
func (c *runCommand) run(e cli.Ends, p *plan, v *voice, m processMemory) error {
	log := v.log
	// An address in use must be reported before anything is written.
	var at *front
	if v.host == nil && (c.Listen != "" || !c.Check) {
		var err error
		if at, err = c.openHTTP(e.Soft, v.environ, log); err != nil {
			return err
		}
		if at != nil {
			defer at.Close() //nolint:errcheck // the server closes it; this is a second time
		}
	}
	if !c.Check {
		log.LogAttrs(e.Hard, slog.LevelInfo, "starting", slog.String(keyVersion, cli.Version()),
			slog.String(keySource, strings.Join(p.source.Hosts(), ",")), slog.String(keyTarget, strings.Join(p.target.Hosts(), ",")),
			slog.String(keyScope, p.scope.Describe()), slog.String(keyMemory, mebibytes(m.total).String()), slog.String(keyMemoryFrom, string(m.from)))
	}
	source, target, closeAll, err := c.open(e.Soft, p)
	if err != nil {
		return err
	}
	defer closeAll()
	waits := func(what string) { c.waits(e.Hard, v, what) }
	told := preflight.TellSlow("target", waits)
	back, err := c.wayBack(e.Soft, p, source, target)
	told()
	if err != nil {
		return cli.Stopped(e.Soft, notBack(err))
	}
	checks := c.preflight(p, source, target)
	checks.Waits = waits
	report, err := preflight.Run(e.Soft, checks, c.tell(e.Hard, v))
	switch {
	case e.Soft.Err() != nil:
		return c.stoppedChecking(e.Soft)
	case err != nil:
		return err
	}
	if err := report.Err(); err != nil || c.Check {
		return err
	}
	if back != nil && !report.Found {
		if err := c.beginBack(e.Soft, p, back); err != nil {
			return cli.Stopped(e.Soft, notBack(err))
		}
		log.LogAttrs(e.Hard, slog.LevelInfo, "the link begins as a way back", slog.String(keyDetail, back.String()))
	}
	if report.Found && (c.StartAt.said || c.CopiedUntil.given() || c.DropExisting) {
		log.LogAttrs(e.Hard, slog.LevelInfo, "the link exists: --start-at, --copied-until and --drop-existing have no effect")
	}
	p.pipeline.Vacancy = report.Vacancy
	c.chooseFeedback(p, &report, log)
	return c.mirror(e, p, at, source, target, v)
}

// open connects to both sides. The lease is renewed over connections of its own.
func (c *runCommand) open(ctx context.Context, p *plan) (source, target *driver.Set, closeAll func(), err error) {
	if source, err = driver.Open(ctx, p.source); err != nil {
		return nil, nil, nil, cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	if target, err = driver.Open(ctx, p.target); err != nil {
		source.Close()
		return nil, nil, nil, cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	if c.Check {
		return source, target, func() { source.Close(); target.Close() }, nil
	}
	renewals, err := driver.Open(ctx, p.target)
	if err != nil {
		source.Close()
		target.Close()
		return nil, nil, nil, cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	p.pipeline.Lease.Target = renewals
	return source, target, func() { source.Close(); target.Close(); renewals.Close() }, nil
}

func (c *runCommand) preflight(p *plan, source, target *driver.Set) preflight.Config {
	mode, _ := feedbackMode(c.Feedback)
	return preflight.Config{
		Source: source, Target: target, Members: source, Rules: p.pipeline.Rules, Scope: p.scope, Include: c.Include, UsersAndRoles: c.UsersAndRoles,
		Link: c.Link, MetaDB: c.MetadataDB, StartAt: c.StartAt.at,
		Copy: c.wantsCopy(), DropExisting: c.DropExisting,
		SpoolDir: c.spoolDir(), SpoolBytes: int64(c.SpoolBytes), SpoolFree: int64(c.SpoolFree),
		AllowExisting: c.AllowExisting, Copied: c.CopiedUntil.given(), Feedback: mode,
		Fingerprint: p.pipeline.Fingerprint(), Back: p.back, Guard: p.pipeline.Guard,
	}
}

// stoppedChecking is the error of startup checks that were told to end. A check alone applies nothing.
func (c *runCommand) stoppedChecking(ctx context.Context) error {
	if c.Check {
		return cli.Stopped(ctx, errors.New("stopped during the startup checks"))
	}
	return fmt.Errorf("%w: during the startup checks", failure.ErrStopped)
}

// waits says that a startup check takes its time, on standard error or in the log.
func (c *runCommand) waits(ctx context.Context, v *voice, what string) {
	if v.asJSON && !c.Check {
		v.log.LogAttrs(ctx, slog.LevelInfo, "a startup check takes its time", slog.String(keyCheck, what))
		return
	}
	v.out.Complain("still checking the %s", what)
}

// tell returns a function that shows the result of each startup check: a line of
// text, or a line of the log where that is JSON.
func (c *runCommand) tell(ctx context.Context, v *voice) func(preflight.Finding) {
	if c.Check {
		return func(f preflight.Finding) { _, _ = fmt.Fprintln(v.out.Results, printable.Text(f.String())) }
	}
	if !v.asJSON {
		return func(f preflight.Finding) { v.out.Complain("%s", printable.Text(f.String())) }
	}
	levels := map[preflight.Level]slog.Level{preflight.OK: slog.LevelInfo, preflight.Warn: slog.LevelWarn, preflight.Fail: slog.LevelError}
	return func(f preflight.Finding) {
		attrs := []slog.Attr{slog.String(keyLevel, f.Level.String()), slog.String(keyCheck, f.Check), slog.String(keyDetail, f.Detail)}
		if f.Do != "" {
			attrs = append(attrs, slog.String(keyDo, f.Do))
		}
		v.log.LogAttrs(ctx, levels[f.Level], "startup check", attrs...)
	}
}
