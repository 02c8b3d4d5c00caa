package transcript

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// recording is a scenario, read.
type recording struct {
	scenario *corpus.Scenario
	commands []command
	entries  []*oplog.Entry
	before   memstore.State
	after    memstore.State
	// uuids are those of collections and index builds, in log order.
	uuids []oplog.UUID
	// created are the collections that the log creates.
	created map[oplog.UUID]bool
}

// command is a line of the transcript.
type command struct {
	corpus.Command
	// line is its number, counted from 1.
	line int
	// time is the recorded operationTime, zero for a refusal.
	time bson.Timestamp
}

func load(s *corpus.Scenario) (*recording, error) {
	r := &recording{scenario: s, created: map[oplog.UUID]bool{}}
	if s.Err != nil {
		return nil, s.Err
	}
	for c, err := range s.Commands() {
		if err != nil {
			return nil, err
		}
		next := command{Command: c, line: len(r.commands) + 1}
		if t, ok := rawbson.Lookup(c.Reply, "operationTime"); ok {
			next.time, _ = t.Timestamp()
		}
		r.commands = append(r.commands, next)
	}
	for e, err := range s.Oplog() {
		if err != nil {
			return nil, err
		}
		r.entries = append(r.entries, e)
		if err := r.collect(&e.Op); err != nil {
			return nil, err
		}
	}
	var err error
	if r.before, err = s.Before(); err != nil {
		return nil, err
	}
	if r.after, err = s.After(); err != nil {
		return nil, err
	}
	return r, r.rebuild()
}

// collect takes note of the UUIDs that an operation gave out.
func (r *recording) collect(op *oplog.Op) error {
	switch op.Command {
	case oplog.CommandCreate:
		r.uuids = append(r.uuids, op.UI)
		r.created[op.UI] = true
	case oplog.CommandStartIndexBuild:
		b, err := op.IndexBuild()
		if err != nil {
			return fmt.Errorf("transcript: read an index build: %w", err)
		}
		r.uuids = append(r.uuids, b.Build)
	case oplog.CommandApplyOps:
		a, err := op.ApplyOps()
		if err != nil {
			return fmt.Errorf("transcript: read a group of operations: %w", err)
		}
		for inner, err := range a.Ops() {
			if err != nil {
				return fmt.Errorf("transcript: read a group of operations: %w", err)
			}
			if err := r.collect(&inner); err != nil {
				return err
			}
		}
	default:
	}
	return nil
}
