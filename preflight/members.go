package preflight

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/syncsource"
)

// membersTime is how long the source's members may take to answer.
const membersTime = 15 * time.Second

// hostMapHint is the advice for members that cannot be connected to.
const hostMapHint = "Make the names of the set's configuration resolve here, or say where each leads with --source-host-map NAME=ADDRESS; " +
	"or read one member only, with directConnection=true in --source."

// members checks that a link finds a member to read. Each member is addressed by the
// name that the link would use.
func (c *checker) members(ctx context.Context, _ *server) error {
	if c.cfg.Members == nil {
		return nil
	}
	view, err := c.view(ctx)
	if err != nil {
		return err
	}
	rules := c.cfg.Rules
	rules.AcceptEqual = true // as a link does: a source that is idle has nothing newer
	if c.cfg.Members.Direct() {
		rules.Pinned = c.cfg.Members.Hosts()[0]
	}
	query := syncsource.Query{Now: c.cfg.Now(), Rules: rules}
	if c.report.Found {
		query.LastFetched = c.report.Link.FetchFrom
	}
	choice := syncsource.Choose(view, query)
	check := "source members"
	total, faults := 0, []string{}
	readable := false
	for i := range view.Members {
		m := &view.Members[i]
		if m.Stranger {
			continue
		}
		total++
		readable = readable || m.Up() && m.State.Readable()
		switch {
		case !m.Asked:
			faults = append(faults, m.Host+" does not answer")
		case m.Fault != "":
			faults = append(faults, m.Host+" "+m.Fault)
		}
	}
	switch known := members(total); {
	case !readable:
		c.fail(check, hostMapHint, "none of %s can be read: %s", known, strings.Join(faults, "; "))
	case choice.Host == "":
		c.warn(check, "The link waits for a suitable member; see --read-preference, --read-tags and --max-lag.",
			"no sync source at present: %s%s", choice.Reason, refusals(choice.Refused))
	case len(faults) > 0:
		c.warn(check, hostMapHint, "%d of %s cannot be read: %s; the link would read %s", len(faults), known, strings.Join(faults, "; "), choice.Host)
	default:
		verb := "answer"
		if total == 1 {
			verb += "s"
		}
		c.ok(check, "%s %s; the link would read %s", known, verb, choice.Host)
	}
	return nil
}

// refusals lists why members were not chosen.
func refusals(list []syncsource.Refusal) string {
	var b strings.Builder
	for i, r := range list {
		b.WriteString([]string{"; ", ": "}[max(0, 1-i)] + r.String())
	}
	return b.String()
}

// view watches the source until enough of its members are known to choose from.
func (c *checker) view(ctx context.Context) (syncsource.View, error) {
	w, err := syncsource.NewWatcher(syncsource.WatcherConfig{
		Seeds: c.cfg.Members.Hosts(), Direct: c.cfg.Members.Direct(), HeartbeatTimeout: membersTime,
	}, c.cfg.Members)
	if err != nil {
		return syncsource.View{}, fmt.Errorf("watch the source's members: %w", err)
	}
	watching, end := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	group.Go(func() { _ = w.Run(watching) }) // it returns why it was ended
	defer group.Wait()
	defer end(nil)
	limit, stop := context.WithTimeoutCause(ctx, membersTime, errMembers)
	defer stop()
	if err := w.Ready(limit); err != nil && ctx.Err() != nil {
		return syncsource.View{}, context.Cause(ctx)
	}
	return w.View(), nil
}

var errMembers = fmt.Errorf("the source's members did not answer within %s", membersTime)
