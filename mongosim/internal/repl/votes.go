package repl

import (
	"context"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// poll asks the voters and reports whether a majority, this member included, says
// yes.
func (n *Node) poll(ctx context.Context, term int64, dryRun bool) bool {
	n.mu.Lock()
	need := n.conf.majority() - 1
	applied := n.applied.at
	conf, self := n.conf, n.self
	ctx, done := context.WithTimeout(ctx, n.electionTimeout())
	n.mu.Unlock()
	defer done()

	cmd := command("replSetRequestVotes", func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "setName", n.cfg.SetName)
		dst = bsoncore.AppendBooleanElement(dst, "dryRun", dryRun)
		dst = bsoncore.AppendInt64Element(dst, "term", term)
		dst = bsoncore.AppendInt64Element(dst, "candidateIndex", int64(self))
		dst = bsoncore.AppendInt64Element(dst, "configVersion", conf.version)
		dst = bsoncore.AppendInt64Element(dst, "configTerm", conf.term)
		return appendOpTime(dst, "lastAppliedOpTime", applied)
	})
	var hosts []string
	for i := range conf.members {
		if i != self && conf.members[i].Votes > 0 {
			hosts = append(hosts, conf.members[i].Host)
		}
	}
	ballots := make(chan bool, len(hosts))
	var calls sync.WaitGroup
	defer calls.Wait()
	defer done() // before the wait: outstanding answers no longer matter
	for _, host := range hosts {
		calls.Go(func() { ballots <- n.askVote(ctx, host, cmd) })
	}
	for left := len(hosts); need > 0 && left >= need; left-- {
		if <-ballots {
			need--
		}
	}
	return need <= 0
}

func (n *Node) askVote(ctx context.Context, host string, cmd bson.Raw) bool {
	reply, err := n.cfg.Transport.Call(ctx, host, cmd)
	if err != nil {
		return false
	}
	if ok, _, _ := okReply(reply); !ok {
		return false
	}
	f := fields{doc: reply}
	term, granted := f.int64("term"), f.bool("voteGranted", false)
	if f.err != nil {
		return false
	}
	n.SawTerm(term)
	if !granted {
		n.log.Debug("vote refused", keySource, host, keyReason, f.maybeText("reason"))
	}
	return granted
}

// RequestVotes answers replSetRequestVotes with {term, voteGranted, reason}. A
// vote that is not a dry run is stored before the reply.
func (n *Node) RequestVotes(cmd bson.Raw) (bson.Raw, error) {
	f := fields{doc: cmd}
	set, dryRun, term := f.text("setName"), f.bool("dryRun", false), f.int64("term")
	candidate, version := f.int64("candidateIndex"), f.int64("configVersion")
	configTerm := f.maybeInt64("configTerm", oplog.UninitializedTerm)
	applied := f.opTime("lastAppliedOpTime")
	if f.err != nil {
		return nil, badCommand("replSetRequestVotes", f.err)
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, errShutdown()
	}
	if n.conf == nil {
		n.mu.Unlock()
		return nil, notYetInitialized()
	}
	if candidate < 0 || candidate >= int64(len(n.members)) {
		n.mu.Unlock()
		return nil, badValue("Invalid candidateIndex: %d. Must be between 0 and %d inclusive", candidate, len(n.conf.members)-1)
	}
	if !dryRun {
		n.setTerm(term)
	}
	why := n.refuseVote(set, dryRun, term, version, configTerm, applied)
	if why == "" && !dryRun {
		n.vote = vote{term: term, candidate: candidate}
		n.resetElection()
	}
	if !dryRun {
		n.participation = metrics{
			voted: why == "", term: term, date: n.cfg.Now(), candidate: n.conf.members[candidate].ID,
			voteReason: why, applied: n.applied.at, seen: n.newestSeen(),
		}
		if n.self >= 0 {
			n.participation.priority = n.conf.members[n.self].Priority
		}
	}
	mine := n.term
	n.mu.Unlock()
	if why == "" && !dryRun {
		if err := n.saveVote(); err != nil {
			return nil, err
		}
	}
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "term", mine)
		dst = bsoncore.AppendBooleanElement(dst, "voteGranted", why == "")
		return bsoncore.AppendStringElement(dst, "reason", why)
	}), nil
}

// refuseVote returns why a candidate does not get this member's vote, "" if it
// does. Callers hold mu.
func (n *Node) refuseVote(set string, dryRun bool, term, version, configTerm int64, applied oplog.OpTime) string {
	mine := n.applied
	switch {
	case term < n.term:
		return fmt.Sprintf("candidate's term (%d) is lower than mine (%d)", term, n.term)
	case newerThan(n.conf.version, n.conf.term, version, configTerm):
		return fmt.Sprintf("candidate's config with %s is older than mine with %s",
			versionAndTerm(version, configTerm), versionAndTerm(n.conf.version, n.conf.term))
	case set != n.cfg.SetName:
		return fmt.Sprintf("candidate's set name (%s) differs from mine (%s)", set, n.cfg.SetName)
	case applied.Before(mine.at):
		return fmt.Sprintf("candidate's data is staler than mine. candidate's last applied OpTime: %s, my last applied OpTime: %s",
			serverOpTime(applied), serverOpTime(mine.at))
	case !dryRun && n.vote.term >= term:
		return fmt.Sprintf("already voted for another candidate (%d) this term (%d)", n.vote.candidate, n.vote.term)
	}
	if n.self >= 0 && n.conf.members[n.self].Arbiter && n.primary >= 0 {
		// An arbiter sees a primary that the candidate may not see.
		return fmt.Sprintf("can see a healthy primary (%s) of equal or greater priority", n.conf.members[n.primary].Host)
	}
	return ""
}

// serverOpTime writes an optime as the server does in messages.
func serverOpTime(o oplog.OpTime) string {
	return fmt.Sprintf("{ ts: Timestamp(%d, %d), t: %d }", o.TS.T, o.TS.I, o.Term)
}
