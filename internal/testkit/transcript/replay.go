package transcript

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/wire"
)

// Options are how a recording is replayed.
type Options struct {
	// CommandTimeout is how long one command may take, default 30 s.
	CommandTimeout time.Duration
	// Log gets the member's log; nil discards it.
	Log *slog.Logger

	// dialect is the version to be played instead of the recorded one, if set.
	dialect string
}

func (o *Options) setDefaults() {
	if o.CommandTimeout == 0 {
		o.CommandTimeout = 30 * time.Second
	}
}

// player replays one recording.
type player struct {
	*recording
	options Options
	report  Report
	pairs   *pairs
	member  *member
	conn    *wire.Client
	// clusterTime is the newest $clusterTime that the member has sent, and
	// operationTime the newest operationTime.
	clusterTime   bson.Raw
	operationTime bson.Timestamp
	// moved says that the last command may have taken the primary away.
	moved bool
	// log is all that the member has logged.
	log []bson.Raw
	// found are all differences.
	found []Difference
}

// Replay replays a recording against a set of one member, and says what differs.
// It stops when ctx is done; the cause is the report's Err then.
func Replay(ctx context.Context, s *corpus.Scenario, options Options) Report {
	start := time.Now()
	options.setDefaults()
	p := player{options: options, report: Report{Name: s.Name}, pairs: newPairs()}
	err := p.run(ctx, s)
	if errors.Is(err, fs.ErrNotExist) && p.recording == nil && s.Err == nil {
		p.report.Skipped, err = "there is no transcript", nil
	}
	if errors.Is(err, errUnplayed) {
		p.report.Skipped, err = err.Error(), nil
	}
	if context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	p.report.Err = err
	p.report.Elapsed = time.Since(start)
	return p.report
}

func (p *player) run(ctx context.Context, s *corpus.Scenario) (err error) {
	if p.recording, err = load(s); err != nil {
		return err
	}
	if p.member, err = startMember(ctx, p.recording, p.options); err != nil {
		return err
	}
	defer p.member.close()
	if p.conn, err = p.member.dial(ctx); err != nil {
		return err
	}
	defer p.conn.Close() //nolint:errcheck // nothing is to be flushed
	if err := p.member.loadBefore(ctx, p.conn, p.recording); err != nil {
		return err
	}
	for i := range p.commands {
		p.pairs.send(p.commands[i].Command.Command)
	}
	for _, c := range p.before.Collections {
		for _, doc := range c.Documents {
			p.pairs.send(doc)
		}
	}
	start, err := readLog(ctx, p.conn)
	if err != nil {
		return err
	}
	p.member.giveOut(p.uuids)
	for i := range p.commands {
		if err := p.play(ctx, &p.commands[i]); err != nil {
			return fmt.Errorf("transcript: replay line %d of %s: %w", p.commands[i].line, s.Name, err)
		}
	}
	if p.log, err = readLog(ctx, p.conn); err != nil {
		return err
	}
	p.compareLogs(p.log[len(start):])
	if err := p.compareData(ctx); err != nil {
		return err
	}
	p.report.count(p.found)
	p.report.Differences, p.report.Reordered = p.found, p.pairs.reordered
	return nil
}

// play sends a command and compares what comes back.
func (p *player) play(ctx context.Context, c *command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.options.CommandTimeout, errTooLong)
	defer cancel()
	first := rawbson.NewIter(c.Command.Command)
	first.Next()
	election := strings.HasPrefix(first.Name(), "replSetStep")
	if p.moved && !election {
		if err := p.member.awaitPrimary(ctx); err != nil {
			return err
		}
		p.moved = false
	}
	p.moved = p.moved || election
	req, err := p.outgoing(c.Command.Command)
	if err != nil {
		return err
	}
	reply, err := ask(ctx, p.conn, req)
	if err != nil {
		return err
	}
	p.compareReply(c, reply)
	p.learn(reply)
	return nil
}

var errTooLong = errors.New("there was no answer in time")

// ask sends a request and returns the one reply.
func ask(ctx context.Context, conn *wire.Client, req wire.Request) (bson.Raw, error) {
	if _, err := conn.Send(ctx, req); err != nil {
		return nil, err
	}
	m, err := conn.Receive(ctx)
	if err != nil {
		return nil, err
	}
	return m.Body, nil
}

// learn records the cluster and operation times of a reply.
func (p *player) learn(reply bson.Raw) {
	if e, ok := rawbson.Lookup(reply, "$clusterTime"); ok {
		p.clusterTime, _ = e.Document()
	}
	if e, ok := rawbson.Lookup(reply, "operationTime"); ok {
		p.operationTime, _ = e.Timestamp()
	}
}

// compareReply compares an answer with the recorded one.
func (p *player) compareReply(c *command, reply bson.Raw) {
	cmp := comparer{rules: replyRules, pairs: p.pairs, part: PartReply, at: c.line}
	p.report.Commands++
	if c.Error != nil {
		p.report.Refused++
		cmp.refusal(c.Error, reply)
	} else if _, omitted := rawbson.Lookup(c.Reply, "$omitted"); omitted {
		cmp.succeeded(reply)
	} else if cmp.succeeded(reply) {
		cmp.document("", c.Reply, reply)
	}
	if name, err := c.Command.Command.IndexErr(0); err == nil {
		for i := range cmp.found {
			cmp.found[i].What += " (reply to " + name.Key() + ")"
		}
	}
	p.found = append(p.found, cmp.found...)
}

func (c *comparer) succeeded(reply bson.Raw) bool {
	e, _ := rawbson.Lookup(reply, "ok")
	if ok, _ := e.Int64(); ok == 1 {
		return true
	}
	c.differ("", "refused: %s", show(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: reply}))
	return false
}

// refusal compares what the driver kept of a refusal.
func (c *comparer) refusal(want, reply bson.Raw) {
	if e, _ := rawbson.Lookup(reply, "ok"); !isZero(e) {
		c.differ("", "%s, want the refusal %s", show(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: reply}),
			show(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: want}))
		return
	}
	for _, f := range []struct{ recorded, ours string }{
		{"code", "code"}, {"codeName", "codeName"}, {"errmsg", "errmsg"}, {"labels", "errorLabels"},
	} {
		w, hasWant := rawbson.Lookup(want, f.recorded)
		g, hasGot := rawbson.Lookup(reply, f.ours)
		hasWant = hasWant && w.Type != bson.TypeNull
		switch {
		case hasWant && hasGot:
			c.value(f.recorded, w.Raw(), g.Raw())
		case hasWant:
			c.differ(f.recorded, "missing, want %s", show(w.Raw()))
		case hasGot:
			c.differ(f.recorded, "%s, want none", show(g.Raw()))
		}
	}
}

func isZero(e rawbson.Elem) bool {
	n, ok := e.Int64()
	return ok && n == 0
}
