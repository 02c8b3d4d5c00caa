package dispatch

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Sight is the data visible to one piece of work of a read.
type Sight struct {
	storage.View
	Log storage.OplogView
	// UpTo hides later entries of the oplog; the zero timestamp hides none.
	UpTo bson.Timestamp
}

// Looker runs fn on the data visible to a read now. It may be called
// repeatedly; others may write between two calls.
type Looker func(fn func(s Sight) error) error

// Look returns the looker for a request at a level of read concern; at is the
// timestamp of level snapshot.
func (r *Request) Look(level string, at bson.Timestamp) Looker {
	if r.InTxn() {
		return func(fn func(s Sight) error) error {
			return r.txnView(func(v storage.View) error { return fn(Sight{View: v}) })
		}
	}
	return func(fn func(s Sight) error) error {
		return r.Server.Config.Store.Read(func(rd *storage.Reader) error {
			s := Sight{Log: rd.Oplog()}
			switch level {
			case Majority:
				// The dispatcher has made sure that the commit point is known.
				at := rd.Stable()
				if s.UpTo = r.committed(at); s.UpTo.IsZero() {
					return servererr.New(servererr.ReadConcernMajorityNotAvailableYet,
						"Read concern majority reads are currently not possible.")
				}
				s.View, r.saw = rd.View(at), at
			case "snapshot":
				s.UpTo, s.View = at, rd.View(at)
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

// committed is the end of the oplog at the level majority: the store learns the
// commit point shortly before the member reports it, and a reply must not have
// entries after the commit point that it names.
func (r *Request) committed(stable bson.Timestamp) bson.Timestamp {
	if known := r.Server.Config.Node.View().Committed.TS; oplog.CompareTimestamps(known, stable) < 0 {
		return known
	}
	return stable
}

// ReadAt returns the looker of a read that may open a cursor, and for read
// concern snapshot the timestamp and its release.
func (r *Request) ReadAt() (look Looker, at bson.Timestamp, release func(), err error) {
	level := r.ReadConcern.Level
	switch {
	case r.InTxn():
		return r.Look("", at), at, nil, nil
	case level == "linearizable":
		return nil, at, nil, servererr.New(servererr.NotImplemented, "read concern linearizable is not implemented here")
	case level != "snapshot":
		return r.Look(level, at), at, nil, nil
	}
	if given := r.ReadConcern.atClusterTime; given != nil {
		at = *given // reached already: the dispatcher has waited for it
	} else {
		err := r.Server.Config.Store.Read(func(rd *storage.Reader) error {
			at = rd.Stable()
			return nil
		})
		if err != nil {
			return nil, at, nil, err
		}
		if at == (bson.Timestamp{}) || r.Server.Config.Node.View().Committed.IsNull() {
			return nil, at, nil, servererr.New(servererr.SnapshotUnavailable, "No committed OpTime for snapshot read")
		}
	}
	release, err = r.Server.Config.Store.Pin(at)
	return r.Look(level, at), at, release, err
}

// OplogNamespace is the oplog, which is not a collection of the store.
const OplogNamespace oplog.Namespace = "local.oplog.rs"

// settleWait bounds the wait of [Request.awaitRead], which a rollback could make
// endless.
const settleWait = 100 * time.Millisecond

// awaitRead waits until the member reports the optime of the data read: the store
// shows entries shortly before, and a reply must not have data newer than its
// operationTime and lastOpApplied.
func (r *Request) awaitRead(ctx context.Context) {
	if oplog.CompareTimestamps(r.read, r.Server.Config.Node.View().Applied.TS) <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	_ = r.Server.Config.Node.AwaitApplied(ctx, r.read) // best effort: the reply is ready
}
