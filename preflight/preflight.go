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
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// Config has the settings of the checks.
type Config struct {
	// Source and Target run commands on the primary of each.
	Source, Target mongo.Caller
	// Members gives access to each of the source's members, and Rules say which of them
	// may be read. If Members is nil they are not checked.
	Members Members
	Rules   syncsource.Rules
	// Scope selects the namespaces to mirror; Include is the list that it was built from, and
	// UsersAndRoles whether those are mirrored too.
	Scope         *scope.Scope
	Include       []string
	UsersAndRoles bool
	// Link is the link's name, and MetaDB the metadata database. Default "replicator".
	Link, MetaDB string
	// Copy means that a new link begins with a copy; otherwise StartAt is where it
	// starts, zero for now.
	Copy    bool
	StartAt bson.Timestamp
	// DropExisting drops existing collections of the target that the copy would write
	// to.
	DropExisting bool
	// SpoolDir is the folder for the oplog during a copy, SpoolBytes limits its size,
	// SpoolFree is the space that must stay free on its disk.
	SpoolDir              string
	SpoolBytes, SpoolFree int64
	// AllowExisting accepts a target that has documents already. Copied means that the
	// time up to which they were copied is known.
	AllowExisting, Copied bool
	// Feedback is how progress is reported to the source.
	Feedback feedback.Mode
	// Guard is the reaction to foreign writes, which takes a privilege on the target.
	Guard guard.Mode
	// Back says where a new link begins that is the way back of another, empty if it is none.
	Back string
	// Fingerprint is the hash of the settings that must not change while a link exists,
	// empty to skip the comparison.
	Fingerprint string
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Waits, if not nil, is called with the name of a check, as "target", that takes longer than waitsAfter. It may be called
	// concurrently with observe.
	Waits func(what string)
}

// Members is a replica set whose members can be addressed one by one: a
// mongo.Cluster.
type Members interface {
	syncsource.Dialer
	// Hosts returns the known members.
	Hosts() []string
	// Direct reports whether there is only one host, whatever the set's configuration
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

// Report is the result of all checks.
type Report struct {
	// Findings are in the order of the checks.
	Findings []Finding
	// Link is the link's checkpoint, if Found.
	Link  checkpoint.State
	Found bool
	// Vacancy was read before it was looked for, nil if it could not be. If it was found, it is none.
	Vacancy *checkpoint.Vacancy
	// SourceConfig is the source's configuration, nil where it cannot be read.
	SourceConfig bson.Raw
	// MayReport reports whether the source allows reporting as a member.
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

// Run makes all checks. It calls observe, if that is not nil, with each finding as soon
// as it is made. It returns an error if a server cannot be reached or the link belongs
// to another source, or the cause of ctx; the Report then has the findings made so far.
func Run(ctx context.Context, cfg Config, observe func(Finding)) (Report, error) {
	cfg.setDefaults()
	c := &checker{cfg: cfg, observe: observe}
	err := c.run(ctx)
	return c.report, err
}

// waitsAfter is how long a check may take before that is told: a server that does not answer is waited for.
const waitsAfter = 5 * time.Second

// checker makes the checks, one after the other.
type checker struct {
	cfg     Config
	observe func(Finding)
	report  Report
	source  *server
	// hidden means that the user is not allowed to read the link.
	hidden bool
}

// filters warns of namespaces that are both included and excluded.
func (c *checker) filters() {
	if c.cfg.Scope == nil {
		return
	}
	switch texts, all := c.cfg.Scope.Excluded(); {
	case all:
		c.warn("filters", "Leave --include or --exclude out, or give others.", "nothing is mirrored: --exclude takes all that --include gives: %s", strings.Join(texts, ", "))
	case len(texts) > 0:
		c.warn("filters", "Leave either out, if that is not meant.", "nothing of %s is mirrored: --exclude takes all of it", strings.Join(texts, ", "))
	}
}

func (c *checker) run(ctx context.Context) error {
	c.filters()
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
		{"target's oplog", c.watchable, target},
		{"link", c.link, target},
		{"source's members", c.members, source},
		{"source's privileges", c.sourcePrivileges, source},
		{"source's privileges for a copy", c.copyPrivileges, source},
		{"source's oplog", c.window, source},
		{"source's write block", func(ctx context.Context, s *server) error { return c.blocked(ctx, s, false) }, source},
		{"target's write block", c.mayWrite, target},
		{"source's databases", c.uncopied, source},
		{"source's namespaces", c.included, source},
		{"spool", c.spool, source},
	} {
		if !step.on.usable() {
			continue
		}
		if err := c.check(ctx, step.what, step.run, step.on); err != nil {
			return err
		}
	}
	if !source.usable() || !target.usable() {
		return nil
	}
	c.compare(source, target)
	return c.check(ctx, "content of the target", c.existing, target)
}

// check makes one check, and tells it if that takes long.
func (c *checker) check(ctx context.Context, what string, run func(context.Context, *server) error, on *server) error {
	defer TellSlow(what, c.cfg.Waits)()
	if err := run(ctx, on); err != nil {
		return fmt.Errorf("check the %s: %w", what, err)
	}
	return nil
}

// TellSlow calls waits, if not nil, with the name of something that takes longer than waitsAfter. It ends with stop, after which
// waits is not running.
func TellSlow(what string, waits func(string)) (stop func()) {
	if waits == nil {
		return func() {}
	}
	told := make(chan struct{})
	timer := time.AfterFunc(waitsAfter, func() { defer close(told); waits(what) })
	return func() {
		if !timer.Stop() {
			<-told
		}
	}
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

// askFor is how long a command that fails transiently is retried.
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

// again retries do for askFor while it fails transiently.
func again(ctx context.Context, do func() error) error {
	return mongo.Retry{For: askFor, Again: failure.Passing}.Last(ctx, do)
}

// refusal returns the error that a server returned, false if err is not one.
func refusal(err error) (*servererr.Error, bool) {
	return errors.AsType[*servererr.Error](err)
}

// told returns the message of a server's error, without the command that it repeats.
func told(e *servererr.Error) string {
	text, _, _ := strings.Cut(e.Message, " to execute command {")
	return text
}

// isDenied reports whether a server refused because a privilege is missing.
func isDenied(err error) bool { return servererr.IsDenied(err) }
