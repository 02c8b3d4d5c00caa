package inventory

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// history is the changes to collections after Begin, by the oplog.
type history struct {
	begin oplog.OpTime
	// from is the name of a renamed collection before its first rename, which is its
	// name at Begin.
	from map[oplog.UUID]oplog.Namespace
	// created are the collections that did not exist at Begin.
	created map[oplog.UUID]bool
	// taken are the names that a collection had at some time after Begin, possibly
	// without those of collections that exist and were not renamed.
	taken map[oplog.Namespace]bool
	// open are the changes of transactions that are not decided, by the optime of their
	// last part.
	open map[oplog.OpTime][]change
}

// change is the effect of a command on the names of collections.
type change struct {
	command  oplog.Command
	uuid     oplog.UUID
	name, to oplog.Namespace
}

func readHistory(ctx context.Context, log Log, begin oplog.OpTime, until bson.Timestamp) (*history, error) {
	h := &history{
		begin:   begin,
		from:    map[oplog.UUID]oplog.Namespace{},
		created: map[oplog.UUID]bool{},
		taken:   map[oplog.Namespace]bool{},
		open:    map[oplog.OpTime][]change{},
	}
	everything := oplog.OpTime{}
	return h, log.Commands(ctx, everything, until, h.add)
}

// add adds one entry.
func (h *history) add(e *oplog.Entry) error {
	if e.Kind != oplog.KindCommand {
		return nil
	}
	switch e.Command {
	case oplog.CommandApplyOps:
		return h.group(e)
	case oplog.CommandCommitTransaction:
		h.take(e.OpTime, h.link(e))
		return nil
	case oplog.CommandAbortTransaction:
		h.link(e)
		return nil
	default:
	}
	list, err := changesOf(&e.Op, nil, 0)
	h.take(e.OpTime, list)
	return err
}

// link returns the changes of the parts before an entry, and forgets them. Missing
// parts belong to a transaction that ended before Begin.
func (h *history) link(e *oplog.Entry) []change {
	if !e.InTransaction() {
		return nil
	}
	prev := e.Session().PrevOpTime
	if prev.IsNull() {
		return nil
	}
	list := h.open[prev]
	delete(h.open, prev)
	return list
}

// group handles an applyOps: a part of a transaction, a whole one, or operations that
// take effect at once.
func (h *history) group(e *oplog.Entry) error {
	group, err := e.ApplyOps()
	if err != nil {
		return err
	}
	list, err := changesOf(&e.Op, h.link(e), 0)
	switch {
	case err != nil:
		return err
	case group.PartialTxn || group.Prepare:
		h.open[e.OpTime] = list
	default:
		h.take(e.OpTime, list)
	}
	return nil
}

// maxNested is the maximum depth of nested groups of operations.
const maxNested = 10

// changesOf appends the changes of a command, or of the commands nested in it.
func changesOf(op *oplog.Op, list []change, depth int) ([]change, error) {
	if op.Kind != oplog.KindCommand {
		return list, nil
	}
	switch op.Command {
	case oplog.CommandApplyOps:
		if depth == maxNested {
			return nil, op.Fault("o", errNested)
		}
		group, err := op.ApplyOps()
		if err != nil {
			return nil, err
		}
		for inner, err := range group.Ops() {
			if err == nil {
				list, err = changesOf(&inner, list, depth+1)
			}
			if err != nil {
				return nil, err
			}
		}
		return list, nil
	case oplog.CommandCreate, oplog.CommandRenameCollection, oplog.CommandDrop:
	default:
		return list, nil
	}
	name, to, err := op.Target()
	if err != nil {
		return nil, err
	}
	c := change{command: op.Command, uuid: op.UI, name: name.Clone(), to: to.Clone()}
	if c.uuid.IsZero() && c.command != oplog.CommandDrop {
		return nil, op.Fault("ui", oplog.ErrMissingField)
	}
	return append(list, c), nil
}

// take records changes that take effect at an optime.
func (h *history) take(at oplog.OpTime, list []change) {
	if !at.After(h.begin) {
		return
	}
	for _, c := range list {
		h.use(c.name)
		switch c.command {
		case oplog.CommandCreate:
			h.created[c.uuid] = true
		case oplog.CommandRenameCollection:
			h.use(c.to)
			if _, before := h.from[c.uuid]; !before {
				h.from[c.uuid] = c.name
			}
		default:
		}
	}
}

// use records a name that a collection has. The name of buckets implies that of the
// time series.
func (h *history) use(ns oplog.Namespace) {
	h.taken[ns] = true
	if ns.IsBuckets() {
		h.taken[ns.Series()] = true
	}
}

// restore returns the collections that existed at Begin, with their names at Begin, and
// the views that the oplog does not create.
func (h *history) restore(all []listed) (collections, views []listed, err error) {
	had := map[oplog.Namespace]listed{}
	for _, l := range all {
		switch {
		case l.isView && !h.taken[l.ns]:
			views = append(views, l)
			continue
		case l.isView || h.created[l.uuid]:
			continue
		}
		l.atBegin = l.ns
		if from, renamed := h.from[l.uuid]; renamed {
			l.atBegin = from
		}
		if other, twice := had[l.atBegin]; twice {
			err = errors.Join(err, &DuplicateError{
				NS: l.atBegin, UUIDs: [2]oplog.UUID{other.uuid, l.uuid}, Listed: [2]oplog.Namespace{other.ns, l.ns},
			})
			continue
		}
		had[l.atBegin] = l
		collections = append(collections, l)
	}
	return collections, views, err
}
