package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/promote"
)

// promoteCommand ends a link whose source is gone.
type promoteCommand struct {
	Config configFile `placeholder:"FILE" help:"YAML settings file of the link, as for run."`

	runFlags

	DryRun        bool          `group:"Promotion" settings:"no" help:"Say what the recovery point would be, and change nothing."`
	SourceIsGone  bool          `group:"Promotion" settings:"no" help:"The operator states that no client uses the source any more: it is not asked, or may answer."`
	AcceptLeftOut bool          `group:"Promotion" settings:"no" help:"Promote although collections are being copied again: they are not as of the recovery point."`
	AskFor        time.Duration `group:"Promotion" settings:"no" default:"5s" help:"How long to wait for an answer of the source."`
	JSON          bool          `group:"Promotion" name:"json" settings:"no" help:"Print one JSON object."`

	violationsFlag `group:"Promotion"`
}

// Help is what promote --help says before the flags.
func (*promoteCommand) Help() string {
	return "Give it the settings of run: the same file, or the same flags. On the machine of the process that led last it has that one's relay log. " +
		"Running processes of the link need not be stopped: they lose the lease, and end. It may be stopped at any time, and run again. See docs/promote.md."
}

// Run asks the source, promotes, and prints the recovery point.
func (c *promoteCommand) Run(ctx context.Context, out cli.Output, known *settings) error {
	c.sourceless = true
	p, err := c.check()
	if err == nil && c.Source == "" && !c.SourceIsGone {
		err = errors.New("--source is missing: it is asked whether it is gone; --source-is-gone is your word for it")
	}
	if err == nil && c.AskFor < time.Second {
		err = fmt.Errorf("--ask-for: %s is less than 1s", c.AskFor)
	}
	if err = errors.Join(err, c.checkFile()); err != nil {
		return cli.Usage(err)
	}
	m, err := c.processMemory(known.environ)
	if err != nil {
		return cli.Usage(err)
	}
	defer m.apply()()
	p.pipeline.Memory = m.total
	there := c.ask(ctx, out, p)
	if there != nil && !is[*notGone](there) {
		return there
	}
	target, err := driver.Open(ctx, p.target)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	defer target.Close()
	if there != nil && !c.wasPromoted(ctx, target) {
		return there
	}
	renewals, err := driver.Open(ctx, p.target)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	defer renewals.Close()
	cfg := &promote.Config{
		Pipeline: p.pipeline, By: operator(), DryRun: c.DryRun, AcceptLeftOut: c.AcceptLeftOut,
		OnStep: func(text string) { out.Complain("%s: %s.", c.Link, printable.Text(text)) },
	}
	cfg.Pipeline.Lease.Process, cfg.Pipeline.Lease.Target = lease.NewProcess(""), renewals
	r, err := promote.Run(ctx, cfg, target)
	if errors.Is(err, checkpoint.ErrNoLink) {
		return cli.Usage(fmt.Errorf("--link: %w", err))
	}
	if err != nil {
		return interrupted(ctx, unapplied(linkError{fmt.Errorf("promote: %w", err)}))
	}
	return c.complete(ctx, out, target, &r)
}

// unapplied adds to an error of an entry that cannot be applied how the link is promoted without it. The link's settings cannot be
// changed any more, so the same command would end there again.
func unapplied(err error) error {
	class := failure.Classify(err)
	if class.Action != failure.Exit || class.Code != failure.ExitUnsupported && class.Code != failure.ExitDiverged {
		return err
	}
	return &cli.Error{
		Err: err, Code: class.Code,
		Hint: class.Hint + " The link was not promoted. To promote it to what the target has now, run the command again with an empty --spool-dir, and keep the relay log: " +
			"what follows in it is not applied then; replicator rewind lists that if the source comes back.",
	}
}

// interrupted is the error of a promotion that was stopped: the write that ends the link may be done.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && !is[*cli.Error](err) {
		return &cli.Error{Err: err, Code: cli.ExitUnexpected, Hint: "It was stopped, and the link may have been promoted. Run the same command again: it goes on, or prints the recovery point."}
	}
	return err
}

// ask returns an error if the source is not gone: a primary of it answers.
func (c *promoteCommand) ask(ctx context.Context, out cli.Output, p *plan) error {
	if c.Source == "" {
		return nil
	}
	options, err := parseDeployment("source", c.SourceLogin.config(c.Source, c.AskFor))
	if err != nil {
		return cli.Usage(err)
	}
	source, err := driver.Open(ctx, options)
	if err != nil {
		out.Complain("%s: the source cannot be asked: %s.", c.Link, printable.Text(err.Error()))
		return nil
	}
	defer source.Close()
	limited, cancel := context.WithTimeout(ctx, 2*c.AskFor)
	defer cancel()
	answers, primary := askMembers(limited, source, p.source.Hosts())
	for _, text := range answers {
		out.Complain("%s: %s.", c.Link, printable.Text(text))
	}
	switch {
	case primary != "" && !c.SourceIsGone && !c.DryRun:
		return &cli.Error{
			Err: &notGone{primary}, Code: cli.ExitFailed,
			Hint: "Nothing was changed. Use replicator cutover, which loses nothing (docs/cutover.md). If the source is lost, or must not be used any more, give --source-is-gone.",
		}
	case primary == "" && len(answers) > 0 && !c.DryRun:
		out.Complain("%s: members of the source can be read: replicator run reads from them what they have committed; what that has applied, promote keeps.", c.Link)
	}
	return nil
}

// notGone reports that a primary of the source answers.
type notGone struct{ primary string }

func (e *notGone) Error() string { return "promote: the source is not gone: " + e.primary }

// wasPromoted reports whether the link is known to be promoted already: whether its source is gone does not matter any more.
func (c *promoteCommand) wasPromoted(ctx context.Context, target mongo.Caller) bool {
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: c.MetadataDB, Link: c.Link})
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*c.AskFor)
	defer cancel()
	over, err := store.Over(ctx)
	return err == nil && over != nil && over.Promoted != nil
}

// askMembers asks a source, and returns a sentence for each member that answers, and that of a
// primary, if there is one.
func askMembers(ctx context.Context, source *driver.Set, seeds []string) (answers []string, primary string) {
	reply, err := mongo.Hello(ctx, source)
	if _, refused := errors.AsType[*driver.AuthError](err); refused {
		return nil, "it answers, and refuses the login: " + err.Error()
	}
	if err == nil && mongo.IsPrimary(reply) {
		host, _ := reply.Lookup("me").StringValueOK()
		return nil, "its primary " + host + " answers"
	}
	for _, host := range unique(append(source.Seeds(), seeds...)) {
		reply, err := mongo.Hello(ctx, mongo.Bounded{Caller: source.Member(host), Limit: 2 * time.Second})
		if err != nil {
			continue
		}
		answers = append(answers, "member "+host+" of the source answers")
		if mongo.IsPrimary(reply) {
			primary = "its primary " + host + " answers"
		}
	}
	return answers, primary
}

func unique(list []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range list {
		if k := strings.ToLower(s); !seen[k] {
			seen[k] = true
			out = append(out, s)
		}
	}
	return out
}
