package rewind

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

var (
	// ErrTooOld reports that the old source's oplog no longer reaches back to the recovery point.
	ErrTooOld = errors.New("the old source's oplog no longer reaches back to the recovery point: what only it has cannot be listed")
	// ErrOther reports an oplog that does not have the recovery point.
	ErrOther = errors.New("the recovery point is not in the oplog: this is another replica set, or it was rolled back to before that")
)

// Scope decides which namespaces are mirrored, and under which names.
type Scope interface {
	// Target returns the target's name of ns, false if ns is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
}

// Config configures List.
type Config struct {
	// Source runs commands on the member of the old source that is read, Target on the primary of the
	// new one.
	Source, Target mongo.Caller
	Scope          Scope
	// After is the recovery point, From the entry at which reading begins, at or before it.
	After, From oplog.OpTime
	// Until, if not zero, is the last time to list.
	Until bson.Timestamp
	// SpillDir is the folder for large transactions. Default: the system's folder for temporary files.
	SpillDir string
}

// Lost is an operation that only the old source has.
type Lost struct {
	// NS is the source's namespace, To the target's. For a rename that is the old name, or the new one if only that is mirrored.
	NS, To oplog.Namespace
	// Op is i, u, d or c, as in an oplog.
	Op string
	// ID is the _id of the document, the zero value for a command.
	ID bson.RawValue
	// Written is the content of the entry: the new document, the change of an update, the key of a document that
	// was deleted, or the command.
	Written bson.Raw
	// Delta means that Written is a change, not a document.
	Delta bool
	// Source and Target are the document now, on both sides, nil if there is none. They are not set for
	// a command.
	Source, Target bson.Raw
	// At is when it took effect, Wall the source's clock then.
	At   oplog.OpTime
	Wall time.Time
	// Txn is how many operations its transaction has, 0 if it is of none. All of them have the same At.
	Txn int
}

// Same reports whether the document is the same on both sides, whatever was written.
func (l *Lost) Same() bool { return l.Op != "c" && bytes.Equal(l.Source, l.Target) }

// Summary is the result of List.
type Summary struct {
	// Listed is how many operations were listed, Differ how many of them are of a document that differs,
	// or are commands.
	Listed, Differ int64
	// Last is the last entry that was read.
	Last oplog.OpTime
}

// List calls each with the writes that only the old source has, in the order of its log.
func List(ctx context.Context, cfg *Config, each func(*Lost) error) (Summary, error) {
	a, err := txn.New(txn.Config{SpillDir: cfg.SpillDir, ApplyAfter: cfg.After})
	if err != nil {
		return Summary{}, err
	}
	defer a.Close() //nolint:errcheck // Its files are temporary.
	l := &lister{cfg: cfg, assembler: a, each: each}
	err = read(ctx, cfg.Source, cfg.From.TS, func(raw bson.Raw) (bool, error) { return l.entry(ctx, raw) })
	if err == nil && !l.passed && (!l.begun || cfg.Until.T == 0 || oplog.CompareTimestamps(cfg.Until, cfg.After.TS) >= 0) {
		err = ErrOther
	}
	return l.sum, err
}

type lister struct {
	cfg       *Config
	assembler *txn.Assembler
	each      func(*Lost) error
	sum       Summary
	// begun means that the first entry was found, passed that the recovery point was.
	begun, passed bool
}

// entry takes an entry, and reports whether there may be more.
func (l *lister) entry(ctx context.Context, raw bson.Raw) (more bool, err error) {
	e, err := oplog.ParseEntry(raw)
	if err != nil {
		return false, err
	}
	switch {
	case !l.begun && e.OpTime.TS == l.cfg.From.TS && !e.OpTime.Equal(l.cfg.From):
		return false, ErrOther
	case !l.begun && !e.OpTime.Equal(l.cfg.From):
		return false, ErrTooOld
	case l.cfg.Until.T != 0 && oplog.CompareTimestamps(e.OpTime.TS, l.cfg.Until) > 0:
		return false, nil
	}
	l.begun = true
	if l.passed = l.passed || e.OpTime.Equal(l.cfg.After); !l.passed && e.OpTime.After(l.cfg.After) {
		return false, ErrOther
	}
	res, err := l.assembler.Add(&e)
	if err != nil {
		return false, err
	}
	l.sum.Last = e.OpTime
	switch res.Outcome {
	case txn.Committed:
		return true, errors.Join(l.transaction(ctx, res.Txn), res.Txn.Close())
	case txn.Pass:
		return true, l.op(ctx, &e.Op, time.UnixMilli(e.WallTime().UnixMilli()), 0)
	case txn.Partial, txn.Aborted, txn.Past:
	}
	return true, nil
}

func (l *lister) transaction(ctx context.Context, t *txn.Transaction) error {
	of := 0
	if t.Kind == txn.KindTransaction {
		of = t.Count
	}
	for op, err := range t.Ops() {
		if err == nil {
			err = l.op(ctx, &op, t.Wall.Time(), of)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var letters = map[oplog.Kind]string{oplog.KindInsert: "i", oplog.KindUpdate: "u", oplog.KindDelete: "d", oplog.KindCommand: "c"}

// op lists an operation, if it is mirrored.
func (l *lister) op(ctx context.Context, op *oplog.Op, wall time.Time, of int) error {
	letter, ok := letters[op.Kind]
	if !ok {
		return nil // a no-op changes nothing
	}
	ns, renamed := op.NS, oplog.Namespace("")
	if op.Kind == oplog.KindCommand {
		named, to, err := op.Target()
		if err != nil {
			return err
		}
		if named != "" {
			ns, renamed = named, to
		}
	}
	to, mirrored := l.cfg.Scope.Target(ns)
	if !mirrored && renamed != "" {
		// The collection of the new name is another one from then on.
		ns = renamed
		to, mirrored = l.cfg.Scope.Target(ns)
	}
	if !mirrored {
		return nil
	}
	lost := &Lost{NS: ns, To: to, Op: letter, ID: op.ID, Written: op.O, At: op.OpTime, Wall: wall.UTC(), Txn: of}
	if op.Kind != oplog.KindCommand {
		_, err := op.O.LookupErr("$v")
		lost.Delta = op.Kind == oplog.KindUpdate && err == nil
		if lost.Source, err = find(ctx, l.cfg.Source, ns, op.ID); err != nil {
			return fmt.Errorf("read the old source's document in %s: %w", ns, err)
		}
		if lost.Target, err = find(ctx, l.cfg.Target, to, op.ID); err != nil {
			return fmt.Errorf("read the target's document in %s: %w", to, err)
		}
	}
	l.sum.Listed++
	if !lost.Same() {
		l.sum.Differ++
	}
	return l.each(lost)
}

// find reads a document, nil if there is none. It reads by the collection's own collation, as its index on _id is by that: with
// another one each read would be a scan. At most one _id is equal to id by it, and that may be another spelling.
func find(ctx context.Context, c mongo.Caller, ns oplog.Namespace, id bson.RawValue) (bson.Raw, error) {
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: ns.Collection()},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}},
		{Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true},
	})
	if err != nil {
		return nil, err
	}
	var doc bson.Raw
	err = again.Do(ctx, func() error {
		reply, err := mongo.Reads(c).Call(ctx, mongo.Command{DB: ns.DB(), Body: body})
		if err != nil {
			return err
		}
		b, err := mongo.ReadBatch(reply)
		if doc = nil; len(b.Docs) > 0 {
			doc = b.Docs[0]
		}
		return err
	})
	if err != nil || doc == nil || bsonorder.Compare(doc.Lookup("_id"), id, nil) != 0 {
		return nil, err
	}
	return doc, nil
}

// again repeats reads that fail for a while, for whatever reason that can pass: a member that is being shut down may
// come back.
var again = mongo.Retry{For: 30 * time.Second, Again: func(err error) bool { return servererr.Classify(err).Passes() }}

// read calls each with the entries of a member's oplog from a time on, until there are no more, or
// each says so. It includes entries that are not majority-committed, which only this source has. After
// a transient error it continues from the last entry.
func read(ctx context.Context, member mongo.Caller, from bson.Timestamp, each func(bson.Raw) (bool, error)) error {
	t := tail{member: member, from: from, each: each}
	for {
		before := t.from
		err := again.Do(ctx, func() error { return t.read(ctx) })
		if t.failed != nil || err == nil || t.from == before {
			return errors.Join(t.failed, err)
		}
	}
}

// tail reads an oplog.
type tail struct {
	member mongo.Caller
	// from is the time to read from; had means that each has had that entry.
	from bson.Timestamp
	had  bool
	each func(bson.Raw) (bool, error)
	// failed is an error of each.
	failed error
}

// read reads to the end, unless an error of the member ends it earlier.
func (t *tail) read(ctx context.Context) error {
	cmd := bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: t.from}}}}},
	}
	for resumes := t.had; ; resumes = false {
		body, err := bson.Marshal(cmd)
		if err != nil {
			return err
		}
		reply, err := t.member.Call(ctx, mongo.Command{DB: "local", Body: body})
		if err != nil {
			return fmt.Errorf("read the old source's oplog: %w", err)
		}
		b, err := mongo.ReadBatch(reply)
		if err != nil {
			return fmt.Errorf("read the old source's oplog: %w", err)
		}
		if resumes && len(b.Docs) == 0 {
			t.failed = ErrTooOld
			return nil
		}
		if more := t.take(b.Docs, resumes); !more || b.Cursor == 0 {
			return nil
		}
		cmd = bson.D{{Key: "getMore", Value: b.Cursor}, {Key: "collection", Value: "oplog.rs"}}
	}
}

// take passes entries on, and reports whether there may be more. If it resumes, the first one was
// passed on before.
func (t *tail) take(docs []bson.Raw, resumes bool) (more bool) {
	for _, doc := range docs {
		s, i, _ := doc.Lookup("ts").TimestampOK()
		at := bson.Timestamp{T: s, I: i}
		if resumes && at != t.from {
			t.failed = ErrTooOld
			return false
		}
		if resumes {
			resumes = false
			continue
		}
		if more, t.failed = t.each(doc); t.failed != nil || !more {
			return false
		}
		t.from, t.had = at, true
	}
	return true
}
