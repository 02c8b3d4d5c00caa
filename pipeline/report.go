package pipeline

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
)

// reporter returns the stage that reports the link's progress to the source. It is the
// same one for all attempts: a report is never taken back.
func (p *Pipeline) reporter() (*feedback.Feedback, error) {
	if p.feedback != nil {
		return p.feedback, nil
	}
	f, err := feedback.New(feedback.Config{
		Mode: p.cfg.Feedback, MemberID: p.cfg.MemberID, Upstream: p, Primary: p.source, Link: p.cfg.Link, DB: p.cfg.MetaDB,
		KeepAlive: p.cfg.KeepAlive, Observer: p.cfg.Observer, Registry: p.cfg.Registry,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the feedback: %w", err)
	}
	p.feedback = f
	return f, nil
}

// Upstream implements feedback.Upstream: the member that is read.
func (p *Pipeline) Upstream() (feedback.Source, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live.caller == nil || p.live.heard.IsZero() {
		return feedback.Source{}, false
	}
	m := &p.live.meta
	return feedback.Source{
		Host: p.live.host, Caller: p.live.caller, Committed: m.Committed, CommittedWall: int64(m.CommittedWall),
		ConfigVersion: m.ConfigVersion,
	}, true
}

// report runs the reporter until there is no more progress to report.
func (a *attempt) report(ctx context.Context, in <-chan checkpoint.Progress) error {
	return a.feedback.Run(ctx, in)
}
