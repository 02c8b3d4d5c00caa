package command

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// oplogNamespace is the oplog, which is no collection of the store.
const oplogNamespace oplog.Namespace = "local.oplog.rs"

// sight is what one piece of work of a read sees.
type sight struct {
	storage.View
	log storage.OplogView
	// upTo hides later entries of the oplog; the zero timestamp hides none.
	upTo bson.Timestamp
}

// looker runs fn on what a read may see now. It may be called again and again;
// between two calls others write.
type looker func(fn func(s sight) error) error

// look returns the looker for a request at a level of read concern; at is the
// timestamp of level snapshot.
func (r *request) look(level string, at bson.Timestamp) looker {
	if r.inTxn() {
		return func(fn func(s sight) error) error {
			return r.txnView(func(v storage.View) error { return fn(sight{View: v}) })
		}
	}
	return func(fn func(s sight) error) error {
		return r.srv.cfg.Store.Read(func(rd *storage.Reader) error {
			s := sight{log: rd.Oplog()}
			switch level {
			case majority:
				// The dispatcher has seen to it that the commit point is known.
				at := rd.Stable()
				if s.upTo = r.committed(at); s.upTo.IsZero() {
					return servererr.New(servererr.ReadConcernMajorityNotAvailableYet,
						"Read concern majority reads are currently not possible.")
				}
				s.View, r.saw = rd.View(at), at
			case "snapshot":
				s.upTo, s.View = at, rd.View(at)
			default:
				s.View, r.read = rd.View(bson.Timestamp{}), latest(rd)
			}
			return fn(s)
		})
	}
}

// latest is the timestamp of the newest thing that a read of the newest data sees.
func latest(rd *storage.Reader) bson.Timestamp {
	at := rd.Newest()
	if e, ok := rd.Oplog().Last(); ok && oplog.CompareTimestamps(e.At.TS, at) > 0 {
		at = e.At.TS
	}
	return at
}

// settleWait bounds the wait of [request.awaitRead], which a rollback could make
// one for ever.
const settleWait = 100 * time.Millisecond

// awaitRead waits until the member tells of what the command has read: the store
// shows what was applied a moment before, and a reply must not hold anything that
// is newer than the operationTime and the lastOpApplied that it names.
func (r *request) awaitRead(ctx context.Context) {
	if oplog.CompareTimestamps(r.read, r.srv.cfg.Node.View().Applied.TS) <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	_ = r.srv.cfg.Node.AwaitApplied(ctx, r.read) // best effort: the reply is ready
}

// committed is how far the oplog is shown at the level majority: the store learns
// of the commit point a moment before the member tells of it, and no reply may
// have entries beyond the commit point that it names.
func (r *request) committed(stable bson.Timestamp) bson.Timestamp {
	if known := r.srv.cfg.Node.View().Committed.TS; oplog.CompareTimestamps(known, stable) < 0 {
		return known
	}
	return stable
}

// readAt decides what a read that may open a cursor sees: its looker, and for
// read concern snapshot the timestamp and what releases it.
func (r *request) readAt() (look looker, at bson.Timestamp, release func(), err error) {
	level := r.readConcern.level
	switch {
	case r.inTxn():
		return r.look("", at), at, nil, nil
	case level == "linearizable":
		return nil, at, nil, servererr.New(servererr.NotImplemented, "read concern linearizable is not implemented here")
	case level != "snapshot":
		return r.look(level, at), at, nil, nil
	}
	if given := r.readConcern.atClusterTime; given != nil {
		at = *given // which the dispatcher has waited for
	} else {
		err := r.srv.cfg.Store.Read(func(rd *storage.Reader) error {
			at = rd.Stable()
			return nil
		})
		if err != nil {
			return nil, at, nil, err
		}
		if at == (bson.Timestamp{}) || r.srv.cfg.Node.View().Committed.IsNull() {
			return nil, at, nil, servererr.New(servererr.SnapshotUnavailable, "No committed OpTime for snapshot read")
		}
	}
	release, err = r.srv.cfg.Store.Pin(at)
	return r.look(level, at), at, release, err
}
