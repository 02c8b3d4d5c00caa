package command

import (
	"bytes"
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
	"github.com/oplogrep/replicator/oplog"
)

// defaultAwait is how long getMore waits for data if maxTimeMS does not say.
const defaultAwait = time.Second

// moreArgs are the arguments of getMore.
type moreArgs struct {
	id        int64
	ns        oplog.Namespace
	batchSize int64
	// await is maxTimeMS, nil if it is not there.
	await *time.Duration
	term  *int64
	// known is the commit point that the client knows of.
	known *oplog.OpTime
}

var moreFields = []string{"collection", "batchSize", "maxTimeMS", "term", "lastKnownCommittedOpTime"}

func parseMore(r *request) (moreArgs, error) {
	a := moreArgs{}
	read := argReader("getMore")
	first := firstElem(r.cmd)
	if first.Type != bson.TypeInt64 {
		return a, read.wrong(&first, "long")
	}
	a.id, _ = first.Int64()
	named := false
	err := eachArg(r.cmd, func(e *rawbson.Elem) error {
		switch e.Name() {
		case "collection":
			var coll string
			if err := read.text(e, &coll); err != nil {
				return err
			}
			named, a.ns = true, oplog.NewNamespace(r.db, coll)
			if coll == "" || coll[0] == '.' {
				return servererr.New(servererr.InvalidNamespace, "Invalid namespace for getMore: %s", a.ns)
			}
		case "batchSize":
			return read.count(e, &a.batchSize)
		case "maxTimeMS":
			var ms int64
			if err := read.count(e, &ms); err != nil {
				return err
			}
			wait := time.Duration(ms) * time.Millisecond
			a.await = &wait
		case "term":
			a.term = new(int64)
			return read.long(e, a.term)
		case "lastKnownCommittedOpTime":
			known, err := read.opTime(e)
			a.known = &known
			return err
		}
		return nil
	})
	if err == nil && !named {
		err = missingField("getMore", "collection")
	}
	return a, err
}

func runGetMore(ctx context.Context, r *request, out *reply) error {
	a, err := parseMore(r)
	if err != nil {
		return err
	}
	if err := r.sawTerm(a.ns, a.term); err != nil {
		return err
	}
	table := r.srv.cursors
	c, ctx, err := table.checkout(ctx, a.id, func(c *cursor) error { return r.mayUse(c, &a) })
	if err != nil {
		return err
	}
	if err := table.doom(c); err != nil {
		table.checkin(c, false)
		return err
	}
	if c.timed && !c.awaitData {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.left, errMaxTime)
		defer cancel()
	}
	start := time.Now()
	committed := r.srv.cfg.Node.View().Committed
	b, parts := beginBatch(out.Buf, "nextBatch", r.atMost(a.batchSize))
	end, err := r.moreBatch(ctx, c, &a, &b)
	if err != nil {
		table.checkin(c, false)
		return executorError(err, "Executor error during getMore")
	}
	c.spare, c.left = b.spare, c.left-time.Since(start)
	keep := c.tailable || !end || c.spare != nil
	out.Buf = parts.end(&b, c, keepID(c, keep))
	c.conn = r.conn.ID
	if !table.checkin(c, keep) && keep {
		return errCursorKilled
	}
	if keep {
		out.more = true
		if a.known != nil {
			// A stream of replies has to go on from the commit point that this one
			// was made at.
			out.next = withKnown(r.cmd, committed)
		}
	}
	return nil
}

// mayUse is called with the table locked: it decides whether the request may use
// the cursor, in the server's words.
func (r *request) mayUse(c *cursor, a *moreArgs) error {
	var session, shown string
	if r.lsid != nil {
		session, shown = string(r.lsid.logged), r.lsid.text(r.srv)
	}
	refuse := func(code servererr.Code, format string, args ...any) error {
		return servererr.New(code, format, args...)
	}
	switch {
	case session != "" && c.session == "":
		return refuse(50736, "Cannot run getMore on cursor %d, which was not created in a session, in session %s", c.id, shown)
	case session == "" && c.session != "":
		return refuse(50737, "Cannot run getMore on cursor %d, which was created in session %s, without an lsid", c.id, c.shown)
	case session != c.session:
		return refuse(50738, "Cannot run getMore on cursor %d, which was created in session %s, in session %s", c.id, c.shown, shown)
	case r.txnNumber != nil && c.txn == nil:
		return refuse(50739, "Cannot run getMore on cursor %d, which was not created in a transaction, in transaction %d", c.id, *r.txnNumber)
	case r.txnNumber == nil && c.txn != nil:
		return refuse(50740, "Cannot run getMore on cursor %d, which was created in transaction %d, without a txnNumber", c.id, *c.txn)
	case c.txn != nil && *r.txnNumber != *c.txn:
		return refuse(50741, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.id, *c.txn, *r.txnNumber)
	case c.user != r.userID():
		return refuse(servererr.Unauthorized, "cursor id %d was not created by the authenticated user", c.id)
	case a.ns != c.ns:
		return refuse(servererr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", a.ns, c.ns)
	case a.await != nil && !c.awaitData:
		return refuse(servererr.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
	}
	return nil
}

// moreBatch fills the batch. At the end of what is there an awaitData cursor
// waits for data, or for the commit point to move beyond the one that the client
// knows; for as long as it has time.
func (r *request) moreBatch(ctx context.Context, c *cursor, a *moreArgs, b *batch) (end bool, err error) {
	if c.spare != nil {
		doc := c.spare
		c.spare = nil
		if !b.take(doc) {
			return false, nil
		}
	}
	look := r.look(c.level, c.at)
	if !c.awaitData {
		return c.feed.fill(ctx, look, b.take)
	}
	wait := defaultAwait
	if a.await != nil {
		wait = *a.await
	}
	if r.is(mood.Early) {
		wait = 0
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		if ctx.Err() != nil { // before what a rollback has left is looked at
			return false, interrupted(ctx)
		}
		// Channels first: what happens after the look must wake the wait.
		changed := r.srv.cfg.Store.Changed()
		committed := r.srv.cfg.Node.CommittedChanged()
		end, err = c.feed.fill(ctx, look, b.take)
		if err != nil || b.n > 0 {
			return end, err
		}
		if a.known != nil && r.srv.cfg.Node.View().Committed.After(*a.known) {
			return end, nil
		}
		if a.known == nil && c.level != majority {
			committed = nil
		}
		select {
		case <-changed:
		case <-committed:
		case <-timeout.C:
			return end, nil
		case <-ctx.Done():
			return end, interrupted(ctx)
		}
	}
}

// withKnown returns the getMore with another commit point in it.
func withKnown(cmd bson.Raw, known oplog.OpTime) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(make([]byte, 0, len(cmd)))
	it := rawbson.NewIter(cmd)
	for it.Next() {
		if !it.Is("lastKnownCommittedOpTime") {
			doc = bsoncore.AppendHeader(doc, bsoncore.Type(it.Type), it.Name())
			doc = append(doc, it.Value...)
			continue
		}
		j, sub := bsoncore.AppendDocumentElementStart(doc, "lastKnownCommittedOpTime")
		sub = bsoncore.AppendTimestampElement(sub, "ts", known.TS.T, known.TS.I)
		sub = bsoncore.AppendInt64Element(sub, "t", known.Term)
		doc, _ = bsoncore.AppendDocumentEnd(sub, j)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return bytes.Clone(doc)
}

// sawTerm takes note of the term that a request on the oplog carries. A newer one
// than ours ends the command.
func (r *request) sawTerm(ns oplog.Namespace, term *int64) error {
	if term == nil || ns != oplogNamespace {
		return nil
	}
	node := r.srv.cfg.Node
	known := node.View().Term
	node.SawTerm(*term)
	if *term > known {
		return servererr.New(servererr.StaleTerm, "Replication term of this node was stale; retry query")
	}
	return nil
}
