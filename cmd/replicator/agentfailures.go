package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/mongoboard"
)

// memberFailure is how a link has ended on a member, or what it waits for there, as the control
// plane has it for others.
type memberFailure struct {
	Member string
	// Term is that of the assignment in which it has ended.
	Term int64
	// Waits is the reason why a link has not begun, with when in Failure.At; empty for one
	// that has ended.
	Waits string
	agent.Failure
}

// failureDoc is its document.
type failureDoc struct {
	ID      string    `bson:"_id"` // GROUP/LINK
	Member  string    `bson:"member"`
	Term    int64     `bson:"term"`
	At      time.Time `bson:"at"`
	Code    int       `bson:"exitCode"`
	Error   string    `bson:"error"`
	Do      string    `bson:"do"`
	Retried bool      `bson:"retried"`
	Waits   string    `bson:"waits,omitempty"`
	// Again is when an operator asked for it to be started again, absent if none has.
	Again *time.Time `bson:"again,omitempty"`
}

// maxFailure is how many bytes of an error are stored.
const maxFailure = 2000

// failureBoard tells the others how links have ended in this process. A link that runs has no
// document; one that has moved has that of the process that has it.
type failureBoard struct {
	target            mongo.Caller
	db, group, member string
	// holder returns the process that has the lease of a link, nil for none. Nil: it is not known.
	holder func(ctx context.Context, link string) (*share.Holder, error)
	// written are the documents that this process has written, by link.
	written map[string]toldFailure
}

// toldFailure identifies a document: the end of a link, in an assignment.
type toldFailure struct {
	at   time.Time
	term int64
}

func (b *failureBoard) id(link string) string { return b.group + "/" + link }

// failuresOf returns how the links of a process have ended that do not run, and what those wait
// for that have not begun. One that starts again does not run before it has something to show.
func failuresOf(s agent.Status) map[string]memberFailure {
	all := map[string]memberFailure{}
	for i := range s.Links {
		l := &s.Links[i]
		starts := l.State == agent.Running && l.Run == nil
		switch {
		case l.State == agent.Waiting:
			all[l.Link] = memberFailure{Member: s.Member, Term: l.Term, Waits: l.Why, Failure: agent.Failure{At: l.Since}}
		case l.LastFailure != nil && (starts || l.State == agent.Ended || l.State == agent.Retrying):
			all[l.Link] = memberFailure{Member: s.Member, Term: l.Term, Failure: *l.LastFailure}
		}
	}
	return all
}

// update makes the documents those of a status. It leaves those of later assignments as they are: this process may have been suspended, and
// the one that has written them does not write them again.
func (b *failureBoard) update(ctx context.Context, s agent.Status) error {
	wanted := failuresOf(s)
	for link, f := range wanted {
		if was := b.written[link]; was.at.Equal(f.At) && was.term == f.Term {
			continue
		}
		text := strings.ToValidUTF8(f.Error[:min(len(f.Error), maxFailure)], "")
		doc := failureDoc{b.id(link), b.member, f.Term, f.At, f.Code, text, f.Do, f.Helps, f.Waits, nil}
		err := b.write(ctx, "update", bson.D{{Key: "q", Value: upTo(doc.ID, f.Term)}, {Key: "u", Value: doc}, {Key: "upsert", Value: true}})
		if servererr.IsDuplicateKey(err) {
			err = b.replace(ctx, link, &doc)
		}
		if err != nil {
			return err
		}
		b.written[link] = toldFailure{f.At, f.Term}
	}
	for link, was := range maps.Clone(b.written) {
		if _, ok := wanted[link]; ok {
			continue
		}
		// Another process may have written its own meanwhile.
		mine := append(upTo(b.id(link), was.term), bson.E{Key: "member", Value: b.member})
		if err := b.write(ctx, "delete", bson.D{{Key: "q", Value: mine}, {Key: "limit", Value: 1}}); err != nil {
			return err
		}
		delete(b.written, link)
	}
	return nil
}

// replace replaces a document of a later assignment if this process has the link now: somebody has deleted the locks, and the terms have
// begun again. It does nothing otherwise.
func (b *failureBoard) replace(ctx context.Context, link string, doc *failureDoc) error {
	docs, err := readFailureDocs(ctx, b.target, b.db, b.group)
	if err != nil || b.holder == nil {
		return err
	}
	i := slices.IndexFunc(docs, func(d failureDoc) bool { return d.ID == doc.ID })
	if i < 0 || docs[i].Term <= doc.Term {
		return nil
	}
	// After that document was read: it is not one of a process that gets the link now.
	has, err := b.holder(ctx, link)
	if err != nil || has == nil || has.Member != b.member || has.Term != doc.Term {
		return err
	}
	was := &docs[i]
	return b.write(ctx, "update", bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: was.ID}, {Key: "member", Value: was.Member}, {Key: "term", Value: was.Term}, {Key: "at", Value: was.At}}},
		{Key: "u", Value: *doc},
	})
}

// leaseOf returns the process that has the lease of a link of a group, nil for none.
func leaseOf(ctx context.Context, set *driver.Set, db, group, link string) (*share.Holder, error) {
	state, err := share.State(ctx, mongoboard.New(set, db), mongostore.New(set, db), group)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the group
	}
	for _, p := range state.Partitions {
		if p.Partition == link {
			return p.Holder, nil
		}
	}
	return nil, nil
}

// upTo matches the document of that _id, if it is not of an assignment after that of a term.
func upTo(id string, term int64) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "term", Value: bson.D{{Key: "$lte", Value: term}}}}
}

func (b *failureBoard) write(ctx context.Context, command string, statement bson.D) error {
	doc, err := bson.Marshal(statement)
	if err != nil {
		return fmt.Errorf("build the statement: %w", err)
	}
	reply, err := b.target.Call(ctx, metadata.Majority(metadata.Write(b.db, command, metadata.AgentFailures, command+"s", doc)))
	if err == nil {
		_, err = metadata.Written(reply)
	}
	if err != nil {
		return fmt.Errorf("%s how a link has ended, in %s.%s: %w", command, b.db, metadata.AgentFailures, err)
	}
	return nil
}

// retries has the links of this process started again of which operators have asked for that.
func (b *failureBoard) retries(ctx context.Context, retry func(link string) bool) error {
	if len(b.written) == 0 {
		return nil
	}
	docs, err := readFailureDocs(ctx, b.target, b.db, b.group)
	if err != nil {
		return err
	}
	for _, d := range docs {
		link := strings.TrimPrefix(d.ID, b.group+"/")
		if was, ok := b.written[link]; d.Again == nil || d.Member != b.member || !ok || d.Term != was.term {
			continue
		}
		retry(link)
		if _, err := b.again(ctx, append(upTo(d.ID, d.Term), bson.E{Key: "member", Value: b.member}), bson.D{{Key: "$unset", Value: bson.D{{Key: "again", Value: ""}}}}); err != nil {
			return err
		}
	}
	return nil
}

// retry asks the process that has a link, which has ended, to start it again. It reports whether
// that was still so.
func (b *failureBoard) retry(ctx context.Context, link string, at time.Time) (bool, error) {
	n, err := b.again(ctx, bson.D{{Key: "_id", Value: b.id(link)}, {Key: "member", Value: b.member}, {Key: "at", Value: at}},
		bson.D{{Key: "$currentDate", Value: bson.D{{Key: "again", Value: true}}}})
	return n > 0, err
}

// again changes whether a link is to be started again, and returns how many documents matched.
func (b *failureBoard) again(ctx context.Context, which, change bson.D) (int64, error) {
	doc, err := bson.Marshal(bson.D{{Key: "q", Value: which}, {Key: "u", Value: change}})
	if err != nil {
		return 0, fmt.Errorf("build the statement: %w", err)
	}
	reply, err := b.target.Call(ctx, metadata.Majority(metadata.Write(b.db, "update", metadata.AgentFailures, "updates", doc)))
	n := int64(0)
	if err == nil {
		n, err = metadata.Written(reply)
	}
	if err != nil {
		return 0, fmt.Errorf("have a link started again, in %s.%s: %w", b.db, metadata.AgentFailures, err)
	}
	return n, nil
}

// readFailures returns how the links of a group have ended, by link.
func readFailures(ctx context.Context, target mongo.Caller, db, group string) (map[string]memberFailure, error) {
	docs, err := readFailureDocs(ctx, target, db, group)
	all := map[string]memberFailure{}
	for _, d := range docs {
		all[strings.TrimPrefix(d.ID, group+"/")] = memberFailure{d.Member, d.Term, d.Waits, agent.Failure{At: d.At, Code: d.Code, Error: d.Error, Do: d.Do, Helps: d.Retried}}
	}
	return all, err
}

func readFailureDocs(ctx context.Context, target mongo.Caller, db, group string) ([]failureDoc, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{}, target, nil, db, metadata.AgentFailures, "majority", metadata.Below(group))
	if err != nil {
		return nil, fmt.Errorf("read how links have ended, in %s.%s: %w", db, metadata.AgentFailures, err)
	}
	list := make([]failureDoc, len(docs))
	for i, raw := range docs {
		if err := bson.Unmarshal(raw, &list[i]); err != nil {
			return nil, fmt.Errorf("read %s in %s.%s: %w", raw.Lookup("_id"), db, metadata.AgentFailures, err)
		}
	}
	return list, nil
}
