package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/mongoboard"
	"github.com/oplogrep/replicator/status"
)

// rows returns the links of the fleet: those of this process, those of the metadata next to the
// control plane, and those that other members have.
func (p *agentProcess) rows(set *driver.Set, store locks.Store) func(context.Context) (any, error) {
	// The file is replaced when it changes, but for these.
	db, group := p.file.ControlDB, p.file.Group
	return func(ctx context.Context) (any, error) {
		all := rowsOf(ctx, set, db, p.ownRows())
		state, err := share.State(ctx, mongoboard.New(set, db), store, group)
		if err != nil {
			all.Error = err.Error()
			return all.worst(), nil //nolint:nilerr // the answer has it
		}
		failures, err := readFailures(ctx, set, db, group)
		if err != nil && all.Error == "" {
			all.Error = err.Error()
		}
		for i := range state.Partitions {
			at := &state.Partitions[i]
			all.share(sharedRow(at, failures[at.Partition]))
		}
		return all.worst(), nil
	}
}

// nameShared is the verdict on a link of which only the assignment is known, nameEnded that on one that has ended on its member.
const (
	nameShared = "shared"
	nameEnded  = "ended"
)

// share adds the row of a link that another member has. Where the metadata of the link say only that no process runs it, they do not
// know how it has ended on that member.
func (all *linkRows) share(r linkRow) {
	i := slices.IndexFunc(all.Links, func(s linkRow) bool { return s.Link == r.Link })
	if i < 0 {
		all.Links = append(all.Links, r)
		return
	}
	if known := &all.Links[i]; r.Verdict.Name == nameEnded && known.From == r.From && known.Leader == "" && known.Verdict.Level == status.Broken {
		r.Verdict.Also = append([]string{known.Verdict.Sentence}, known.Verdict.Also...)
		known.Verdict, known.Leader = r.Verdict, r.Leader
	}
}

// sharedRow is the row of a link that another member has. Told is what a member has told last of how the link has ended there, or of what it
// waits for; it counts if it is of the present assignment.
func sharedRow(at *share.PartitionStatus, told memberFailure) linkRow {
	r := linkRow{Link: at.Partition, From: "metadata", At: time.Now().UTC(), Verdict: status.Verdict{Name: nameShared, Level: status.Unknown, Since: at.Since.UTC(), Also: []string{}}}
	is := at.Holder != nil && told.Member != "" && told.Term == at.Holder.Term
	if is {
		r.Verdict.Since = told.At.UTC()
	}
	switch {
	case is && told.Waits != "":
		r.Leader = at.Holder.Member
		r.Verdict.Level, r.Verdict.Sentence = status.Working, at.Holder.Member+" has the link, which waits: "+told.Waits+"."
	case is:
		r.Leader, r.Verdict.Name = at.Holder.Member, nameEnded
		r.Verdict.Level, r.Verdict.Sentence, r.Verdict.Next = status.Broken, fmt.Sprintf("The link has ended on %s with exit code %d: %s.", at.Holder.Member, told.Code, told.Error), told.Do
		if told.Helps {
			r.Verdict.Level, r.Verdict.Sentence = status.Attention, r.Verdict.Sentence+" It is started again there."
		}
	case at.Holder != nil:
		r.Leader = at.Holder.Member
		r.Verdict.Sentence = at.Holder.Member + " runs the link, and its page has more."
	case at.Member != "":
		r.Verdict.Sentence = at.Member + " is to run the link: " + at.Why + "."
	default:
		r.Verdict.Level, r.Verdict.Sentence = status.Broken, "No process runs the link: "+at.Why+"."
	}
	return r
}

// ownRows are the rows of the links of this process.
func (p *agentProcess) ownRows() []linkRow {
	own := []linkRow{}
	links := p.agent.Status().Links
	for i := range links {
		l := &links[i]
		if view, err := p.agent.Link(l.Link); err == nil && view.Status != nil {
			if s, ok := view.Status().(status.Snapshot); ok {
				own = append(own, ownRow(&s, "link/"+l.Link+"/"))
				continue
			}
		}
		own = append(own, p.waitingRow(l))
	}
	return own
}

// waitingRow is the row of a link that this process has, and does not run at this moment.
func (p *agentProcess) waitingRow(l *agent.LinkStatus) linkRow {
	state := string(l.State)
	v := status.Verdict{Name: state, Level: status.Working, Since: l.Since, Also: []string{}, Sentence: strings.TrimSpace(l.Sentence())}
	switch l.State {
	case agent.Ended:
		v.Level = status.Broken
	case agent.Retrying:
		v.Level = status.Attention
	case agent.Waiting, agent.Running, agent.Draining:
	}
	if l.LastFailure != nil {
		v.Next = l.LastFailure.Do
	}
	return linkRow{Link: l.Link, Leader: p.process, From: "process", Verdict: v, State: &state, At: time.Now().UTC()}
}
