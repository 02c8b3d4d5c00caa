package dispatch

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// writeBlockNS is where a set keeps, as a replicated document, that writes of users are blocked
// (user_writes_recoverable_critical_section_service.cpp), so that it survives elections.
const writeBlockNS = oplog.Namespace("config.user_writes_critical_sections")

// HasWriteBlock reports whether the server knows setUserWriteBlockMode.
func (s *Server) HasWriteBlock() bool { return s.AtLeast(6, 0) }

// writeBlock finds the document of the block in a view.
func writeBlock(v storage.View) (coll *storage.Collection, rec storage.Record, found bool) {
	coll, ok := v.Collection(writeBlockNS)
	if !ok {
		return nil, storage.Record{}, false
	}
	rec, found = coll.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, "")})
	return coll, rec, found
}

// userWrites returns a function that refuses the writes of this request while writes of users are blocked, nil
// if nothing does (user_write_block_mode_op_observer.cpp). The databases of the server are exempt,
// and so are users that may bypass the block; without access control no client may.
func (r *Request) userWrites(v storage.View) func(ns oplog.Namespace) error {
	if !r.Server.HasWriteBlock() || r.Conn.Internal {
		return nil
	}
	_, rec, found := writeBlock(v)
	if !found || !FlagOf(rec.Doc, "blockUserWrites") {
		return nil
	}
	if r.Server.Config.Auth != nil && r.Allowed("bypassWriteBlockingMode", "", "") == nil {
		return nil
	}
	return func(ns oplog.Namespace) error {
		switch ns.DB() {
		case "admin", "config", "local":
			return nil
		}
		return servererr.New(servererr.UserWritesBlocked, "User writes blocked")
	}
}

// SetWriteBlock blocks or unblocks writes of users; it is idempotent. It waits for open transactions,
// as the server waits for its global lock.
func (r *Request) SetWriteBlock(ctx context.Context, out *Reply, block bool) error {
	err := r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, rec, found := writeBlock(b.View())
		switch {
		case found && !block:
			return b.Delete(coll, rec, opwrite.Stmt{}, opwrite.NoImage)
		case found || !block:
			return nil
		case coll == nil:
			var err error
			if coll, err = b.Create(writeBlockNS, nil, nil); err != nil {
				return err
			}
		}
		doc := bsoncore.NewDocumentBuilder().AppendString("_id", "").AppendBoolean("blockNewUserShardedDDL", false).
			AppendBoolean("blockUserWrites", true).Build()
		_, err := b.Insert(coll, []bson.Raw{bson.Raw(doc)}, nil)
		return err
	})
	if err != nil || !block {
		return err
	}
	return r.awaitTransactions(ctx)
}

// awaitTransactions waits until the transactions have ended that are open now.
func (r *Request) awaitTransactions(ctx context.Context) error {
	open := map[*session]*opwrite.Txn{}
	for _, sess := range r.Server.Sessions.All() {
		if txn := sess.openTxn(); txn != nil {
			open[sess] = txn
		}
	}
	for {
		ended, primary := r.Server.Sessions.next(), r.Server.asPrimary()
		for sess, txn := range open {
			if sess.openTxn() != txn {
				delete(open, sess)
			}
		}
		if len(open) == 0 {
			return nil
		}
		select {
		case <-ended:
		case <-primary.Done():
			return Interrupted(primary)
		case <-ctx.Done():
			return Interrupted(ctx)
		}
	}
}

// openTxn returns the transaction of a session that is open, nil for none.
func (s *session) openTxn() *opwrite.Txn {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.State == TxnInProgress || s.State == TxnPrepared {
		return s.txn
	}
	return nil
}

// WriteBlockArg reads the argument of setUserWriteBlockMode.
func WriteBlockArg(cmd bson.Raw) (block bool, err error) {
	e, ok := rawbson.Lookup(cmd, "global")
	if !ok {
		return false, servererr.New(servererr.Code(40414), "BSON field 'setUserWriteBlockMode.global' is missing but a required field")
	}
	if block, ok = e.Bool(); !ok {
		return false, WrongType("setUserWriteBlockMode", "global", e.Type, "bool")
	}
	return block, nil
}
