package read

import (
	"bytes"
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
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
	// await is maxTimeMS, nil if it is not given.
	await *time.Duration
	term  *int64
	// known is the commit point that the client knows.
	known *oplog.OpTime
}

var moreFields = []string{"collection", "batchSize", "maxTimeMS", "term", "lastKnownCommittedOpTime"}

func parseMore(r *dispatch.Request) (moreArgs, error) {
	a := moreArgs{}
	read := dispatch.ArgReader("getMore")
	first := dispatch.FirstElem(r.Cmd)
	if first.Type != bson.TypeInt64 {
		return a, read.Wrong(&first, "long")
	}
	a.id, _ = first.Int64()
	named := false
	err := dispatch.EachArg(r.Cmd, func(e *rawbson.Elem) error {
		switch e.Name() {
		case "collection":
			var coll string
			if err := read.Text(e, &coll); err != nil {
				return err
			}
			named, a.ns = true, oplog.NewNamespace(r.DB, coll)
			if coll == "" || coll[0] == '.' {
				return servererr.New(servererr.InvalidNamespace, "Invalid namespace for getMore: %s", a.ns)
			}
		case "batchSize":
			return read.Count(e, &a.batchSize)
		case "maxTimeMS":
			var ms int64
			if err := read.Count(e, &ms); err != nil {
				return err
			}
			wait := time.Duration(ms) * time.Millisecond
			a.await = &wait
		case "term":
			a.term = new(int64)
			return read.Long(e, a.term)
		case "lastKnownCommittedOpTime":
			known, err := read.OpTime(e)
			a.known = &known
			return err
		}
		return nil
	})
	if err == nil && !named {
		err = dispatch.MissingField("getMore", "collection")
	}
	return a, err
}

func runGetMore(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	a, err := parseMore(r)
	if err != nil {
		return err
	}
	if err := sawTerm(r, a.ns, a.term); err != nil {
		return err
	}
	table := r.Server.Cursors
	c, ctx, err := table.Checkout(ctx, a.id, func(c *dispatch.Cursor) error { return mayUse(r, c, &a) })
	if err != nil {
		return err
	}
	if err := table.Doom(c); err != nil {
		table.Checkin(c, false)
		return err
	}
	if c.Timed && !c.AwaitData {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Left, dispatch.ErrMaxTime)
		defer cancel()
	}
	start := time.Now()
	committed := r.Server.Config.Node.View().Committed
	b, parts := beginBatch(out.Buf, "nextBatch", r.AtMost(a.batchSize))
	end, err := moreBatch(ctx, r, c, &a, &b)
	if err != nil {
		table.Checkin(c, false)
		return executorError(err, "Executor error during getMore")
	}
	c.Spare, c.Left = b.spare, c.Left-time.Since(start)
	keep := c.Tailable || !end || c.Spare != nil
	out.Buf = parts.end(&b, c, keepID(c, keep))
	c.Conn = r.Conn.ID
	if !table.Checkin(c, keep) && keep {
		return dispatch.ErrCursorKilled
	}
	if keep {
		out.More = true
		if a.known != nil {
			// A stream of replies must continue from the commit point of this
			// reply.
			out.Next = WithKnown(r.Cmd, committed)
		}
	}
	return nil
}

// mayUse is called with the table locked: it decides whether the request may use
// the cursor, in the server's words.
func mayUse(r *dispatch.Request, c *dispatch.Cursor, a *moreArgs) error {
	var session, shown string
	if r.LSID != nil {
		session, shown = string(r.LSID.Logged), r.LSID.Text(r.Server)
	}
	refuse := func(code servererr.Code, format string, args ...any) error {
		return servererr.New(code, format, args...)
	}
	switch {
	case session != "" && c.Session == "":
		return refuse(50736, "Cannot run getMore on cursor %d, which was not created in a session, in session %s", c.ID, shown)
	case session == "" && c.Session != "":
		return refuse(50737, "Cannot run getMore on cursor %d, which was created in session %s, without an lsid", c.ID, c.Shown)
	case session != c.Session:
		return refuse(50738, "Cannot run getMore on cursor %d, which was created in session %s, in session %s", c.ID, c.Shown, shown)
	case r.TxnNumber != nil && c.Txn == nil:
		return refuse(50739, "Cannot run getMore on cursor %d, which was not created in a transaction, in transaction %d", c.ID, *r.TxnNumber)
	case r.TxnNumber == nil && c.Txn != nil:
		return refuse(50740, "Cannot run getMore on cursor %d, which was created in transaction %d, without a txnNumber", c.ID, *c.Txn)
	case c.Txn != nil && *r.TxnNumber != *c.Txn:
		return refuse(50741, "Cannot run getMore on cursor %d, which was created in transaction %d, in transaction %d", c.ID, *c.Txn, *r.TxnNumber)
	case c.User != r.UserID():
		return refuse(servererr.Unauthorized, "cursor id %d was not created by the authenticated user", c.ID)
	case a.ns != c.NS:
		return refuse(servererr.Unauthorized, "Requested getMore on namespace '%s', but cursor belongs to a different namespace %s", a.ns, c.NS)
	case a.await != nil && !c.AwaitData:
		return refuse(servererr.BadValue, "cannot set maxTimeMS on getMore command for a non-awaitData cursor")
	}
	return nil
}

// moreBatch fills the batch. At the end of the data an awaitData cursor waits
// for more, or for the commit point to pass the one that the client knows,
// within its time limit.
func moreBatch(ctx context.Context, r *dispatch.Request, c *dispatch.Cursor, a *moreArgs, b *batch) (end bool, err error) {
	if c.Spare != nil {
		doc := c.Spare
		c.Spare = nil
		if !b.take(doc) {
			return false, nil
		}
	}
	look := r.Look(c.Level, c.At)
	if !c.AwaitData {
		return c.Feed.Fill(ctx, look, b.take)
	}
	wait := defaultAwait
	if a.await != nil {
		wait = *a.await
	}
	if r.Is(mood.Early) {
		wait = 0
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		if ctx.Err() != nil { // before data left by a rollback is read
			return false, dispatch.Interrupted(ctx)
		}
		// Channels first: changes after the read must end the wait.
		changed := r.Server.Config.Store.Changed()
		committed := r.Server.Config.Node.CommittedChanged()
		end, err = c.Feed.Fill(ctx, look, b.take)
		if err != nil || b.n > 0 {
			return end, err
		}
		if a.known != nil && r.Server.Config.Node.View().Committed.After(*a.known) {
			return end, nil
		}
		if a.known == nil && c.Level != dispatch.Majority {
			committed = nil
		}
		select {
		case <-changed:
		case <-committed:
		case <-timeout.C:
			return end, nil
		case <-ctx.Done():
			return end, dispatch.Interrupted(ctx)
		}
	}
}

// WithKnown returns the getMore with another commit point in it.
func WithKnown(cmd bson.Raw, known oplog.OpTime) bson.Raw {
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

// sawTerm learns the term that a request on the oplog carries. A newer one than
// ours ends the command.
func sawTerm(r *dispatch.Request, ns oplog.Namespace, term *int64) error {
	if term == nil || ns != dispatch.OplogNamespace {
		return nil
	}
	node := r.Server.Config.Node
	known := node.View().Term
	node.SawTerm(*term)
	if *term > known {
		return servererr.New(servererr.StaleTerm, "Replication term of this node was stale; retry query")
	}
	return nil
}
