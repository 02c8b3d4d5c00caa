package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/rewind"
)

// rewindCommand lists the writes that only the old source of a promoted link has.
type rewindCommand struct {
	Config configFile `placeholder:"FILE" help:"YAML settings file of the link, as for run."`

	runFlags

	Until moment `group:"Rewind" settings:"no" placeholder:"T" help:"List nothing after this: unix seconds, SECONDS,INCREMENT or RFC 3339."`
	Out   string `group:"Rewind" settings:"no" placeholder:"FILE" help:"Write the list to a new file. Default: standard output."`
}

// Help is what rewind --help says before the flags.
func (*rewindCommand) Help() string {
	return "It prints a JSON document for each operation that the old source has logged after the recovery point, as extended JSON, in order: " +
		"the write, and the document as it is now on both sides. It writes to neither. Exit code 4: there are such writes. See docs/promote.md."
}

// Run lists, and returns an error if there is something.
func (c *rewindCommand) Run(ctx context.Context, out cli.Output) error {
	p, err := c.check()
	if c.Until.now {
		err = errors.Join(err, errors.New("--until: now is not possible here"))
	}
	if err != nil {
		return cli.Usage(err)
	}
	target, err := driver.Open(ctx, p.target)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	defer target.Close()
	store, state, err := (&linkFlags{targetFlags: targetFlags{MetadataDB: c.MetadataDB}, Link: c.Link}).find(ctx, target)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	if err := c.fits(p, store, &state); err != nil {
		return err
	}
	source, err := driver.Open(ctx, p.source)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	defer source.Close()
	hosts := p.source.Hosts()
	if !source.Direct() {
		hosts = unique(append(source.Seeds(), hosts...))
	}
	best, unread, err := furthest(ctx, source.Member, hosts)
	if err != nil {
		return cli.Connect(fmt.Errorf("find a member of the old source: %w", err))
	}
	if unread != nil {
		out.Complain("%s: %s of the old source has entries up to %s, and cannot be read: %s is read, which has them up to %s.",
			c.Link, printable.Text(unread.host), unread.OpTime, printable.Text(best.host), best.OpTime)
	}
	member := best.host
	if err := readSource(ctx, c.Link, source.Member(member), &state.Source); err != nil {
		return cli.Stopped(ctx, err)
	}
	cfg := &rewind.Config{
		Source: source.Member(member), Target: target, Scope: p.scope, After: state.Over.Source, From: state.FetchFrom, SpillDir: c.SpillDir,
	}
	if c.Until.given() {
		cfg.Until = c.Until.last()
	}
	return c.list(ctx, out, cfg, member)
}

// fits returns an error if the link continues, or has other settings.
func (c *rewindCommand) fits(p *plan, store *checkpoint.Store, state *checkpoint.State) error {
	scope, _, _ := strings.Cut(state.Fingerprint, ";unique=")
	switch {
	case state.Over == nil:
		return cli.Usage(fmt.Errorf("--link: link %s of %s goes on: only one that was promoted, or cut over, has writes that are lost", c.Link, store.DB()))
	case scope != p.scope.Fingerprint():
		return state.OtherSettings(c.Link)
	}
	return nil
}

// list writes the list.
func (c *rewindCommand) list(ctx context.Context, out cli.Output, cfg *rewind.Config, member string) error {
	w, done, err := c.output(out)
	if err != nil {
		return cli.Usage(err)
	}
	sum, err := rewind.List(ctx, cfg, func(l *rewind.Lost) error { return writeLost(w, l) })
	if closing := done(); err == nil {
		err = closing
	}
	switch {
	case errors.Is(err, rewind.ErrTooOld) || errors.Is(err, rewind.ErrOther):
		return &cli.Error{Err: fmt.Errorf("rewind: %s after %s: %w", member, cfg.After, err), Code: exitResync, Hint: "Name another member of the old source, with directConnection=true. Or compare both sides: replicator verify."}
	case err != nil:
		return cli.Stopped(ctx, linkError{fmt.Errorf("rewind: %w", err)})
	}
	out.Complain("%s: %d operations after %s, up to %s of %s; %d of them are of documents that differ now, or commands.",
		c.Link, sum.Listed, cfg.After, sum.Last, printable.Text(member), sum.Differ)
	if sum.Differ == 0 {
		return nil
	}
	return &cli.Error{
		Err: fmt.Errorf("the old source has %d operations that the target has not", sum.Differ), Code: cli.ExitFailed,
		Hint: "Decide about each whether to write it to the new source. Then make the old one a mirror: a new link from the target to it, with --drop-existing.",
	}
}

// exitResync is the code of a link that cannot continue from the oplog.
const exitResync = 6

// output returns where to write, and a function that completes it.
func (c *rewindCommand) output(out cli.Output) (io.Writer, func() error, error) {
	if c.Out == "" {
		w := bufio.NewWriter(out.Results)
		return w, w.Flush, nil
	}
	f, err := os.OpenFile(c.Out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("--out: %w", err)
	}
	w := bufio.NewWriter(f)
	return w, func() error { return errors.Join(w.Flush(), f.Sync(), f.Close()) }, nil
}

// writeLost writes a line.
func writeLost(w io.Writer, l *rewind.Lost) error {
	doc := bson.D{{Key: "ns", Value: string(l.NS)}}
	if l.To != l.NS {
		doc = append(doc, bson.E{Key: "to", Value: string(l.To)})
	}
	doc = append(doc, bson.E{Key: "op", Value: l.Op})
	if l.Op != "c" {
		doc = append(doc, bson.E{Key: "_id", Value: l.ID})
	}
	doc = append(doc, bson.E{Key: writtenAs(l), Value: l.Written})
	if l.Op != "c" {
		doc = append(doc, bson.E{Key: "source", Value: orNull(l.Source)}, bson.E{Key: "target", Value: orNull(l.Target)}, bson.E{Key: "same", Value: l.Same()})
	}
	doc = append(doc, bson.E{Key: "optime", Value: opTimeDoc(l.At)}, bson.E{Key: "wall", Value: l.Wall})
	if l.Txn > 0 {
		doc = append(doc, bson.E{Key: "transactionOps", Value: l.Txn})
	}
	text, err := bson.MarshalExtJSON(doc, true, false)
	if err != nil {
		return fmt.Errorf("print an operation as JSON: %w", err)
	}
	if !json.Valid(text) {
		return fmt.Errorf("print an operation of %s as JSON: it is none", l.NS)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// writtenAs returns the field name for a kind of write.
func writtenAs(l *rewind.Lost) string {
	switch {
	case l.Delta:
		return "delta"
	case l.Op == "c":
		return "command"
	case l.Op == "d":
		return "key"
	}
	return "document"
}

func orNull(doc bson.Raw) any {
	if doc == nil {
		return nil
	}
	return doc
}

func opTimeDoc(at oplog.OpTime) bson.D {
	return bson.D{{Key: "ts", Value: at.TS}, {Key: "t", Value: at.Term}}
}
