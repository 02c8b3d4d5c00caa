package cutover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// ErrBusy reports that clients continue to write to the source.
var ErrBusy = errors.New("the source is still written to")

const (
	// quietFor is how long the source must have had no write to count as quiet.
	quietFor = 5 * time.Second
	// quietLook is the time between two looks at its oplog.
	quietLook = 500 * time.Millisecond
)

// setBlock blocks writes of users to a set, or lifts that, with write concern majority. To send it
// again does no harm. The server waits for transactions that are open.
func setBlock(ctx context.Context, set mongo.Caller, on bool, within time.Duration) error {
	body, err := bson.Marshal(bson.D{
		{Key: "setUserWriteBlockMode", Value: 1},
		{Key: "global", Value: on},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	})
	if err != nil {
		return err
	}
	return mongo.Retry{For: within, Again: passing}.Do(ctx, func() error {
		reply, err := set.Call(ctx, mongo.Command{DB: "admin", Body: body})
		if err != nil {
			return err
		}
		if e := mongo.ConcernError(reply); e != nil {
			return &mongo.UnconfirmedError{Err: e}
		}
		return nil
	})
}

// freeze stops writes to the source.
func (w *work) freeze(ctx context.Context, r *record.Record) (string, error) {
	limited, cancel := context.WithTimeout(ctx, w.cfg.Drain.Within)
	defer cancel()
	outcome := ""
	switch o := &r.Options; o.Freeze {
	case record.Block:
		if err := setBlock(limited, w.cfg.Drain.Source, true, w.cfg.Drain.Within); err != nil {
			return "", fmt.Errorf("block writes to the source: %w", err)
		}
		outcome = "writes of users are blocked"
		if r.Found {
			outcome += ", as they were before"
		}
	case record.Command:
		if err := w.cfg.Shell(limited, o.FreezeCommand, w.environment(record.Freeze)); err != nil {
			return "", fmt.Errorf("run the command that stops writes: %w", err)
		}
		outcome = "the command that stops writes has ended with exit code 0"
	case record.Quiet:
		if err := w.quiet(limited); err != nil {
			return "", err
		}
		outcome = fmt.Sprintf("no client has written for %s", quietFor)
	case record.Stopped:
		outcome = "the operator states that no client writes"
	default:
		return "", fmt.Errorf("stop writes to the source: unknown method %q", o.Freeze)
	}
	if r.Frozen.IsZero() {
		r.Frozen = now()
	}
	return outcome, nil
}

// thaw lets the source take writes again, as it did before the cutover.
func (w *work) thaw(ctx context.Context, r *record.Record) error {
	switch o := &r.Options; {
	case !r.Began(record.Freeze):
	case o.Freeze == record.Block && !r.Found:
		if err := setBlock(ctx, w.cfg.Drain.Source, false, w.cfg.Drain.Within); err != nil {
			return fmt.Errorf("let the source take writes again: %w", err)
		}
	case o.Freeze == record.Command && o.ThawCommand != "":
		if err := w.cfg.Shell(ctx, o.ThawCommand, w.environment(record.Thaw)); err != nil {
			return fmt.Errorf("run the command that lets applications write: %w", err)
		}
	}
	return nil
}

// thawSource lets the old source of a link that has ended take writes again, whatever had stopped them.
func (w *work) thawSource(ctx context.Context, r *record.Record) (outcome string, err error) {
	switch o := &r.Options; {
	case o.Freeze == record.Block:
		if err := setBlock(ctx, w.cfg.Drain.Source, false, w.cfg.Drain.Within); err != nil {
			return "", fmt.Errorf("let the old source take writes again: %w", err)
		}
		return "the old source takes writes again", nil
	case o.Freeze == record.Command && o.ThawCommand != "":
		return "the command that lets applications write has ended with exit code 0", w.thaw(ctx, r)
	}
	return "there is nothing to lift: the cutover has not blocked the old source", nil
}

// environment is what the operator's commands are given.
func (w *work) environment(s record.Step) []string {
	return []string{"REPLICATOR_LINK=" + w.rec.Link, "REPLICATOR_CUTOVER=" + w.rec.ID, "REPLICATOR_STEP=" + string(s)}
}

// quiet waits until the source has had no write for a while.
func (w *work) quiet(ctx context.Context) error {
	since, err := mongo.OperationTime(ctx, w.cfg.Drain.Source)
	if err != nil {
		return fmt.Errorf("ask the source for its time: %w", err)
	}
	last, said := time.Now(), ""
	for time.Since(last) < quietFor {
		writes, end, err := writesAfter(ctx, w.cfg.Drain.Source, since, false)
		if err != nil {
			return err
		}
		if since = end; writes != "" {
			last = time.Now()
			if said != writes {
				said = writes
				w.cfg.Drain.say("waiting until no client writes to the source; the last writer wrote to " + writes)
			}
		}
		if err := mongo.Pause(ctx, quietLook); err != nil {
			return fmt.Errorf("%w: last to %s", ErrBusy, said)
		}
	}
	return nil
}

// writesAfter returns the last namespace to which the source's oplog has a write of a user after a
// time, empty for none, and the time of its last entry. If the server expires documents, deletes
// without a session do not count: those are its own.
func writesAfter(ctx context.Context, source mongo.Caller, after bson.Timestamp, expires bool) (ns string, end bson.Timestamp, err error) {
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: after}}}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "op", Value: 1}, {Key: "ns", Value: 1}, {Key: "lsid", Value: 1}, {Key: "o.applyOps.op", Value: 1}, {Key: "o.applyOps.ns", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "local"}}},
	})
	if err != nil {
		return "", after, err
	}
	docs, err := mongo.Retry{For: askFor}.ReadAll(ctx, source, nil, "local", body)
	if err != nil {
		return "", after, fmt.Errorf("read the source's oplog: %w", err)
	}
	end = after
	for _, doc := range docs {
		e, _ := rawbson.Lookup(doc, "ts")
		if at, ok := e.Timestamp(); ok {
			end = at
		}
		for _, name := range writtenBy(doc, expires) {
			if ofUsers(name) {
				ns = strings.Clone(name)
			}
		}
	}
	return ns, end, nil
}

// writtenBy returns the namespaces that an entry writes to, see writesAfter.
func writtenBy(doc bson.Raw, expires bool) []string {
	_, session := rawbson.Lookup(doc, "lsid")
	expires = expires && !session
	var names []string
	add := func(doc bson.Raw) {
		op, _ := rawbson.Lookup(doc, "op")
		if kind, _ := op.Text(); kind == "n" || kind == "d" && expires {
			return
		}
		e, _ := rawbson.Lookup(doc, "ns")
		ns, _ := e.Text()
		names = append(names, ns)
	}
	add(doc)
	o, _ := rawbson.Lookup(doc, "o")
	inner, ok := o.Document()
	if !ok {
		return names
	}
	list, _ := rawbson.Lookup(inner, "applyOps")
	ops, ok := list.Array()
	if !ok {
		return names
	}
	for it := rawbson.NewIter(ops); it.Next(); {
		if op, ok := it.Document(); ok {
			add(op)
		}
	}
	return names
}

// ofUsers reports whether a namespace is one that a write block covers.
func ofUsers(ns string) bool {
	switch oplog.Namespace(ns).DB() {
	case "", "admin", "config", "local":
		return false
	}
	return true
}
