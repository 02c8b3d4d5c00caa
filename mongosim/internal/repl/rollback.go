package repl

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// oplogView and timestampZero save the rest of the package from the storage's
// longer names.
type oplogView = storage.OplogView

var timestampZero bson.Timestamp

func (n *Node) readOplog(fn func(entries oplogView) error) error {
	return n.cfg.Store.Read(func(r *storage.Reader) error { return fn(r.Oplog()) })
}

// rollbackPage is the number of the source's entries read at a time.
const rollbackPage = 256

// rollback undoes the entries that this member has and its source lacks.
func (n *Node) rollback(ctx context.Context, host string) error {
	n.mu.Lock()
	if n.role == leader {
		n.mu.Unlock()
		return errRoleChanged
	}
	from := n.applied
	n.setFollow(oplog.MemberRollback)
	n.mu.Unlock()
	defer n.endRollback()
	if n.cfg.Hooks.RollingBack != nil {
		n.cfg.Hooks.RollingBack()
	}

	common, err := n.commonPoint(ctx, host, from.at.TS)
	if err != nil {
		if errors.Is(err, errNoCommonPoint) {
			n.mu.Lock()
			n.fail(fmt.Errorf("repl: roll back %s to a common point with %s: %w", n.cfg.Host, host, err))
			n.mu.Unlock()
		}
		return err
	}
	n.mu.Lock()
	committed := n.committed.at
	if common.at.Before(committed) {
		n.fail(fmt.Errorf("repl: roll back %s to %s: the commit point is %s already", n.cfg.Host, common.at, committed))
		n.mu.Unlock()
		return nil
	}
	n.mu.Unlock()
	if err := n.closeApplier(); err != nil {
		return err
	}
	return n.undo(common, from)
}

// endRollback leaves the state ROLLBACK.
func (n *Node) endRollback() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.follow == oplog.MemberRollback {
		n.setFollow(oplog.MemberSecondary)
		n.resetElection()
	}
}

// undo takes the store back to the common point and counts the rollback.
func (n *Node) undo(common, from moment) error {
	n.mu.Lock()
	rbid := n.rbid + 1
	n.mu.Unlock()
	err := n.cfg.Store.Write(func(w *storage.Writer) error {
		if err := n.saveLocal(w, collRollbackID, rollbackIDDocument(rbid)); err != nil {
			return err
		}
		n.mu.Lock()
		n.history++ // from here on, settle must not make the old history stable
		n.mu.Unlock()
		return w.RollbackTo(common.at.TS)
	})
	n.mu.Lock()
	n.rbid = rbid
	if err != nil {
		// The required history is gone, as after an initial sync.
		n.log.Warn("rollback is not possible, copying everything again", keyError, err.Error())
		n.syncing = true
		n.setFollow(oplog.MemberStartup2)
		n.mu.Unlock()
		return nil
	}
	n.log.Info("rolled back", keyOpTime, common.at.String(), keyReason, "from "+from.at.String())
	n.applied, n.durable = common, common
	n.hint = n.committed
	n.changed.fire()
	n.progress.fire()
	n.mu.Unlock()
	if n.cfg.Hooks.RolledBack != nil {
		n.cfg.Hooks.RolledBack()
	}
	return nil
}

func rollbackIDDocument(id int) func(bson.RawValue) bson.Raw {
	return func(bson.RawValue) bson.Raw {
		return document(func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", "rollbackId")
			return bsoncore.AppendInt32Element(dst, "rollbackId", int32(id))
		})
	}
}

var (
	errNoCommonPoint = errors.New("the oplogs have no entry in common")
	errSourceRolled  = errors.New("repl: the source rolled back itself")
)

// commonPoint finds the newest entry that this member and the source both have,
// reading the source's oplog backwards.
func (n *Node) commonPoint(ctx context.Context, host string, from bson.Timestamp) (moment, error) {
	rbid := int64(-1)
	for {
		p, err := n.ask(ctx, host, scanCommand(from, -1, rollbackPage), n.scaled(probeTimeout))
		if err != nil {
			return nullMoment, err
		}
		if rbid >= 0 && p.meta.rbid != rbid {
			return nullMoment, errSourceRolled
		}
		rbid = p.meta.rbid
		if len(p.docs) == 0 {
			return nullMoment, errNoCommonPoint
		}
		common, found, oldest, err := n.firstShared(p.docs)
		if err != nil || found {
			return common, err
		}
		if from = before(oldest); from == timestampZero {
			return nullMoment, errNoCommonPoint
		}
	}
}

// firstShared returns the first of the source's entries that this member has too.
func (n *Node) firstShared(docs []bson.Raw) (common moment, found bool, oldest bson.Timestamp, err error) {
	err = n.readOplog(func(entries oplogView) error {
		for _, doc := range docs {
			theirs, err := readOpTime(doc)
			if err != nil {
				return err
			}
			oldest = theirs.TS
			if mine, ok := entries.At(theirs.TS); ok && mine.At.Term == theirs.Term {
				found = true
				common, err = entryMoment(mine.Raw)
				return err
			}
		}
		return nil
	})
	return common, found, oldest, err
}

// before is the greatest timestamp below ts.
func before(ts bson.Timestamp) bson.Timestamp {
	switch {
	case ts.I > 0:
		return bson.Timestamp{T: ts.T, I: ts.I - 1}
	case ts.T > 0:
		return bson.Timestamp{T: ts.T - 1, I: 1<<32 - 1}
	}
	return timestampZero
}

// initialSync copies everything from another member.
func (n *Node) initialSync(ctx context.Context) {
	n.mu.Lock()
	n.setFollow(oplog.MemberStartup2)
	n.mu.Unlock()
	if n.cfg.Clone == nil {
		sleep(ctx, 0, nil)
		return
	}
	host, ok := n.awaitSource(ctx, nullMoment.at, true)
	if !ok {
		return
	}
	n.setSource(host)
	err := n.cloneFrom(ctx, host)
	n.setSource("")
	if err != nil && ctx.Err() == nil {
		n.log.Warn("initial sync", keySource, host, keyError, err.Error())
		n.deny(host, denyBehind)
	}
}

func (n *Node) cloneFrom(ctx context.Context, host string) error {
	from, err := n.cfg.Clone(ctx, host)
	if err != nil {
		return err
	}
	if from == nil {
		return errors.New("there is no copy")
	}
	var last moment
	if err := from.Read(func(r *storage.Reader) error {
		last, err = newest(r)
		return err
	}); err != nil {
		return err
	}
	if last.at.IsNull() {
		return errors.New("the copy has no oplog")
	}
	n.mu.Lock()
	build := n.self < 0 || n.conf.members[n.self].BuildIndexes
	n.mu.Unlock()
	if !build {
		if err := dropIndexes(from, last.at.TS); err != nil {
			return err
		}
	}
	if err := n.closeApplier(); err != nil {
		return err
	}
	n.mu.Lock()
	n.history++
	n.mu.Unlock()
	n.cfg.Store.Become(from)
	if err := n.saveOrigin(); err != nil {
		return err
	}
	n.mu.Lock()
	n.setTerm(last.at.Term)
	n.syncing = false
	// The copied data need not be committed, though the store cannot roll back before
	// it.
	n.applied, n.durable, n.committed, n.hint = last, last, nullMoment, nullMoment
	n.setFollow(oplog.MemberSecondary)
	n.resetElection()
	n.progress.fire()
	n.commit.fire()
	n.log.Info("initial sync done", keySource, host, keyOpTime, last.at.String())
	n.mu.Unlock()
	if n.cfg.Hooks.RolledBack != nil {
		n.cfg.Hooks.RolledBack()
	}
	return nil
}

// dropIndexes drops all indexes but that on _id, for a member that builds none.
func dropIndexes(s *storage.Store, at bson.Timestamp) error {
	return s.Write(func(w *storage.Writer) error {
		u := w.Begin(timestampZero)
		for _, coll := range u.View().Collections("") {
			for _, index := range coll.Indexes {
				if index.Name == "_id_" {
					continue
				}
				if err := u.DropIndex(coll.UUID, index.Name); err != nil {
					return fmt.Errorf("drop index %s of %s: %w", index.Name, coll.NS, err)
				}
			}
		}
		u.Commit(at)
		return nil
	})
}
