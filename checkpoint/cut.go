package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// Cut is a consistent cut: at its cluster time Target, the target is the source as of
// Source. Every change up to Source is visible at Target, and no later one is.
//
//	dispatcher     last entry handed out = Source, lanes idle ─┐
//	barrier's lane                                  the cut's record, w: 1 ── lanes continue
//	                                                           └─ Confirm, w: majority ── told
//
// The record's transaction verifies the lanes' acknowledged positions, so that a failover
// that loses one of them cannot leave a cut without it. Its commit is Target: all that the
// lanes have written is before it in the target's oplog, and what they write later is
// after it. A rollback that removes the commit removes the record, too, so Confirm finds
// the record if, and only if, the cut exists.
type Cut struct {
	// Source is the source's optime, SourceWall its primary's clock in milliseconds since
	// the epoch.
	Source     oplog.OpTime
	SourceWall int64
	// Target is a cluster time of the target, At this program's clock when the commit was
	// acknowledged.
	Target bson.Timestamp
	At     time.Time
	// Stall is how long the lanes waited for it at most, as the applier has measured it; zero
	// for a cut that was read from the metadata.
	Stall time.Duration
	// term and number identify the record.
	term, number int64
}

// keptCuts is how many cuts the metadata list.
const keptCuts = 10

// Fields of a document of cuts.
const (
	fieldMade, fieldCuts              = "made", "cuts"
	fieldCutTerm, fieldCutNumber      = "term", "number"
	fieldCutSource, fieldCutWall      = "source", "wall"
	fieldCutTarget, fieldCutCommitted = "target", "at"
)

var (
	errNotBarrier = errors.New("only the barrier makes a cut")
	errNoTime     = errors.New("the reply to the commit has no operationTime")
)

// Cut commits the record of a cut at the source's optime at, with write concern 1, in a
// transaction that verifies the lease and the given positions of the writers' lanes.
// Everything up to at, and nothing after it, must be in the target, and no lane may write
// until Cut returns. Confirm has to be called before the cut may be told to anyone, and no
// other Cut before that has returned. Cut does not retry: it takes as long as the lanes wait.
func (l *Lane) Cut(ctx context.Context, at oplog.OpTime, wall int64, lanes []Position) (Cut, error) {
	c := Cut{Source: at, SourceWall: wall, term: l.link.lease.Term(), number: l.link.cuts.Add(1)}
	if l != l.link.barrier {
		return c, l.Fail(errNotBarrier, "cut at %s", at)
	}
	txn := l.session.Begin()
	err := l.cut(ctx, txn, &c, lanes)
	switch {
	case errors.Is(err, errNotMoved) && ctx.Err() != nil:
		err = context.Cause(ctx) // the reason cannot be read any more
	case errors.Is(err, errNotMoved):
		// A later command may have aborted the transaction, so the reason is read in another one.
		again := l.session.Begin()
		err = l.whyNotMoved(ctx, again)
		again.Abort(ctx)
	}
	reply, err := txn.EndWith(ctx, false, err)
	if err == nil {
		e, _ := rawbson.Lookup(reply, "operationTime")
		if ts, ok := e.Timestamp(); ok {
			c.Target, c.At = ts, time.Now()
			return c, nil
		}
		err = errNoTime
	}
	return c, l.Fail(err, "cut at %s", at)
}

func (l *Lane) cut(ctx context.Context, txn *mongo.Txn, c *Cut, lanes []Position) error {
	cfg, barrier := &l.link.store.cfg, l.link.barrierPosition()
	cmds := []mongo.Command{l.update(lease.AppendCount), lanesCommand(cfg.DB, cfg.Link, len(lanes)), l.link.recordCut(c)}
	return txn.CallAll(ctx, cmds, func(i int, reply bson.Raw) error {
		if i == 1 {
			return l.link.verifyReply(reply, lanes, barrier)
		}
		n, err := metadata.Written(reply)
		if err == nil && n != 1 {
			err = errNotMoved
		}
		return err
	})
}

// recordCut returns the command that writes the record of a cut.
func (h *Link) recordCut(c *Cut) mongo.Command {
	return metadata.Update(h.store.cfg.DB, metadata.Cuts, metadata.Statement{
		Upsert: true,
		Filter: metadata.ByID(h.store.cfg.Link),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				return metadata.AppendDoc(dst, fieldMade, func(dst []byte) []byte {
					dst = bsoncore.AppendInt64Element(dst, fieldCutTerm, c.term)
					dst = bsoncore.AppendInt64Element(dst, fieldCutNumber, c.number)
					return c.appendSource(dst)
				})
			})
		},
	})
}

func (c *Cut) appendSource(dst []byte) []byte {
	dst = metadata.AppendOpTime(dst, fieldCutSource, c.Source)
	return bsoncore.AppendDateTimeElement(dst, fieldCutWall, c.SourceWall)
}

// confirmFor is how long Confirm retries.
const confirmFor = 30 * time.Second

// Confirm adds a cut to the list in the metadata, with write concern majority, if the
// target still has its record: the list's write follows the record's in the oplog, so
// both are majority-committed when Confirm returns true. It returns false if the record is
// gone, because a failover of the target has rolled it back, or another process has made a
// cut since. Lanes may write meanwhile. It waits as long as the target has no majority.
func (h *Link) Confirm(ctx context.Context, c Cut) (bool, error) {
	list := append([]Cut{c}, h.listed...)
	list = list[:min(len(list), keptCuts)]
	cmd := metadata.Majority(metadata.Update(h.store.cfg.DB, metadata.Cuts, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", h.store.cfg.Link)
			dst = bsoncore.AppendInt64Element(dst, fieldMade+"."+fieldCutTerm, c.term)
			return bsoncore.AppendInt64Element(dst, fieldMade+"."+fieldCutNumber, c.number)
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendCuts(dst, list) })
		},
	}))
	var n int64
	// To repeat it has no other effect.
	repeatable := func(err error) bool {
		_, lost := errors.AsType[*mongo.LostError](err)
		_, unconfirmed := errors.AsType[*mongo.UnconfirmedError](err)
		return lost || unconfirmed || mongo.Passes(err) || servererr.Classify(err) == servererr.NotPrimary
	}
	err := mongo.Retry{For: confirmFor, Again: repeatable}.Do(ctx, func() error {
		reply, err := h.store.once.Call(ctx, cmd)
		if err == nil {
			n, err = metadata.Written(reply)
		}
		return err
	})
	if err != nil {
		return false, h.store.wrap(err, "confirm the cut at %s", c.Source)
	}
	if n == 1 {
		h.listed = list
	}
	return n == 1, nil
}

func appendCuts(dst []byte, list []Cut) []byte {
	i, dst := bsoncore.AppendArrayElementStart(dst, fieldCuts)
	for j := range list {
		c := &list[j]
		dst = metadata.AppendDoc(dst, strconv.Itoa(j), func(dst []byte) []byte {
			dst = c.appendSource(dst)
			dst = bsoncore.AppendTimestampElement(dst, fieldCutTarget, c.Target.T, c.Target.I)
			return bsoncore.AppendDateTimeElement(dst, fieldCutCommitted, c.At.UnixMilli())
		})
	}
	return metadata.CloseDoc(dst, i)
}

// OpenCuts prepares the metadata for cuts, and returns the cuts that they list, the newest
// first. It must be called before Cut.
func (h *Link) OpenCuts(ctx context.Context) ([]Cut, error) {
	if err := h.store.createCollection(ctx, metadata.Cuts); err != nil { // a link of an older release lacks it
		return nil, h.store.wrap(err, "prepare its cuts")
	}
	list, err := h.store.Cuts(ctx)
	h.listed = list
	return list, err
}

// Cuts returns the newest cuts of the link, the newest first. They are majority-committed.
func (s *Store) Cuts(ctx context.Context) ([]Cut, error) {
	docs, err := metadata.FindAll(ctx, s.patience(), s.once, nil, s.cfg.DB, metadata.Cuts, "majority", metadata.ByID(s.cfg.Link))
	if err != nil {
		return nil, s.wrap(err, "read its cuts")
	}
	if len(docs) == 0 {
		return nil, nil
	}
	list, err := readCuts(docs[0])
	if err != nil {
		what := fmt.Sprintf("a document of %s: field %v", metadata.Cuts, err)
		return nil, s.wrap(&metadata.DamagedError{Link: s.cfg.Link, What: what}, "read its cuts")
	}
	return list, nil
}

func readCuts(doc bson.Raw) (list []Cut, err error) {
	r := metadata.NewReader(doc)
	if !r.Has(fieldCuts) {
		return nil, nil // none is confirmed yet
	}
	r.Docs(fieldCuts, func(sub *metadata.Reader) {
		list = append(list, Cut{
			Source: sub.OpTime(fieldCutSource, false), SourceWall: sub.Date(fieldCutWall),
			Target: sub.Timestamp(fieldCutTarget), At: time.UnixMilli(sub.Date(fieldCutCommitted)).UTC(),
		})
	})
	return list, r.Err()
}
