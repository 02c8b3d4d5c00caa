package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// Config says what is checked.
type Config struct {
	// Source and Target run commands on the primary of each.
	Source, Target mongo.Caller
	// Members gives the source's members, each asked by itself, and Rules say which of
	// them may be read. With Members nil they are not checked.
	Members Members
	Rules   syncsource.Rules
	// Scope says what is mirrored; Include is the list that it was made of, and
	// UsersAndRoles whether these are mirrored too.
	Scope         *scope.Scope
	Include       []string
	UsersAndRoles bool
	// Link is the link's name, and MetaDB the metadata database. Default
	// "replicator".
	Link, MetaDB string
	// Copy is set if a new link begins with a copy; otherwise StartAt is where it
	// begins, zero for now.
	Copy    bool
	StartAt bson.Timestamp
	// DropExisting drops what the target has where the copy goes.
	DropExisting bool
	// SpoolDir is the folder for the log while there is a copy to make, SpoolBytes
	// bounds what is in it, SpoolFree is what has to stay free on its disk.
	SpoolDir              string
	SpoolBytes, SpoolFree int64
	// AllowExisting accepts a target that has documents already. Copied tells that
	// it is known until when they were copied.
	AllowExisting, Copied bool
	// Feedback is how the source is told of the progress.
	Feedback feedback.Mode
	// Fingerprint is of the settings that must not change while a link lives, empty
	// if they are not to be compared.
	Fingerprint string
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Members is a replica set whose members can be asked one by one: a pipeline.Cluster.
type Members interface {
	syncsource.Dialer
	// Hosts returns the members that are known.
	Hosts() []string
	// Direct reports whether there is one host only, whatever the set's configuration
	// calls its members.
	Direct() bool
}

func (c *Config) setDefaults() {
	if c.MetaDB == "" {
		c.MetaDB = scope.DefaultMetaDB
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Report is what was found.
type Report struct {
	// Findings are in the order of the checks.
	Findings []Finding
	// Link is the link's checkpoint, if Found.
	Link  checkpoint.State
	Found bool
	// SourceConfig is the source's configuration, nil where it cannot be read.
	SourceConfig bson.Raw
	// MayReport reports whether the source lets us report as a member.
	MayReport bool
}

// Err returns a *FailedError if any check failed.
func (r *Report) Err() error {
	e := &FailedError{}
	for _, f := range r.Findings {
		if f.Level == Fail {
			e.Findings = append(e.Findings, f)
		}
	}
	if len(e.Findings) == 0 {
		return nil
	}
	return e
}

// Run makes all checks. Each finding is told to observe, if that is not nil, as
// soon as it is there. An error is a server that cannot be talked to, a link that
// belongs to another source, or the cause of ctx; what was found by then is in the
// Report.
func Run(ctx context.Context, cfg Config, observe func(Finding)) (Report, error) {
	cfg.setDefaults()
	c := &checker{cfg: cfg, observe: observe}
	err := c.run(ctx)
	return c.report, err
}

// checker makes the checks, one after the other.
type checker struct {
	cfg     Config
	observe func(Finding)
	report  Report
	source  *server
	// hidden is set if the link may not be looked up.
	hidden bool
}

func (c *checker) run(ctx context.Context) error {
	source := &server{side: "source", caller: c.cfg.Source}
	target := &server{side: "target", caller: c.cfg.Target}
	c.source = source
	for _, step := range []struct {
		what string
		run  func(context.Context, *server) error
		on   *server
	}{
		{"source", c.server, source},
		{"target", c.server, target},
		{"target's privileges", c.targetPrivileges, target},
		{"link", c.link, target},
		{"source's members", c.members, source},
		{"source's privileges", c.sourcePrivileges, source},
		{"source's privileges for a copy", c.copyPrivileges, source},
		{"source's oplog", c.window, source},
		{"source's databases", c.uncopied, source},
		{"spool", c.spool, source},
	} {
		if !step.on.usable() {
			continue
		}
		if err := step.run(ctx, step.on); err != nil {
			return fmt.Errorf("check the %s: %w", step.what, err)
		}
	}
	if !source.usable() || !target.usable() {
		return nil
	}
	c.compare(source, target)
	if err := c.existing(ctx, target); err != nil {
		return fmt.Errorf("check what is in the target: %w", err)
	}
	return nil
}

func (c *checker) found(f Finding) {
	c.report.Findings = append(c.report.Findings, f)
	if c.observe != nil {
		c.observe(f)
	}
}

func (c *checker) ok(check, format string, args ...any) {
	c.found(Finding{Level: OK, Check: check, Detail: fmt.Sprintf(format, args...)})
}

func (c *checker) warn(check, do, format string, args ...any) {
	c.found(Finding{Level: Warn, Check: check, Detail: fmt.Sprintf(format, args...), Do: do})
}

func (c *checker) fail(check, do, format string, args ...any) {
	c.found(Finding{Level: Fail, Check: check, Detail: fmt.Sprintf(format, args...), Do: do})
}

// denied reports missing privileges.
func (c *checker) denied(level Level, check, do, format string, args ...any) {
	c.found(Finding{Level: level, Check: check, Detail: fmt.Sprintf(format, args...), Do: do, Denied: true})
}

// askFor is how long a command is retried that fails transiently.
const askFor = time.Second

// ask runs one command, and retries it if it fails transiently: a primary may just have
// stepped down.
func ask(ctx context.Context, caller mongo.Caller, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", cmd[0].Key, err)
	}
	var reply bson.Raw
	err = again(ctx, func() error {
		reply, err = caller.Call(ctx, mongo.Command{DB: db, Body: body})
		return err
	})
	return reply, err
}

// again retries for askFor what fails transiently.
func again(ctx context.Context, do func() error) error {
	err := mongo.Retry{For: askFor, Again: passing}.Do(ctx, do)
	if stuck, ok := errors.AsType[*mongo.StuckError](err); ok {
		return stuck.Err
	}
	return err
}

// passing reports whether a retry may help. If no server could be selected, the driver
// has waited for one already.
func passing(err error) bool {
	if lost, ok := errors.AsType[*mongo.LostError](err); ok && lost.Host == "" {
		return false
	}
	return pipeline.Classify(err).Action == pipeline.Retry
}

// refusal returns what a server said, false where err is anything else.
func refusal(err error) (*servererr.Error, bool) {
	return errors.AsType[*servererr.Error](err)
}

// told is what a server said, without the command that it repeats.
func told(e *servererr.Error) string {
	text, _, _ := strings.Cut(e.Message, " to execute command {")
	return text
}

// isDenied reports whether a server refused for want of a privilege.
func isDenied(err error) bool { return servererr.IsDenied(err) }
