package guard

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// tailPause and longestPause are the shortest and longest pause before the target's oplog is read again.
	tailPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// mostSlow is how often in a row the target may exceed the time limit for the next entry before what
	// precedes it is given up. It examines from the same entry each time.
	mostSlow = 3
)

// heard is a member. It calls then after each reply of a cursor.
type heard struct {
	mongo.Caller
	then func()
}

// Call implements mongo.Caller.
func (h heard) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := h.Caller.Call(ctx, cmd)
	it := rawbson.NewIter(cmd.Body)
	if it.Next(); err == nil && (it.Is("find") || it.Is("getMore")) {
		h.then()
	}
	return reply, err
}

// tailLoop reads the target's oplog, again after each error.
func (g *Guard) tailLoop(ctx context.Context) error {
	slow := 0
	for pause := tailPause; ; pause = min(2*pause, longestPause) {
		began := g.at()
		err := g.tail(ctx, oplog.OpTime{})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // It was told to end.
		}
		if isForeign(err) || errors.Is(err, lease.ErrFenced) {
			return err
		}
		if slow++; servererr.Classify(err) != servererr.Expired || g.at().After(began) {
			slow = 0
		}
		if g.isGone(err) || slow == mostSlow {
			slow, err = 0, g.gap(ctx, err)
		}
		if g.at().After(began) {
			pause = tailPause
		}
		if err != nil {
			g.blind(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// isGone reports whether the oplog cannot be read on from the last examined entry.
func (g *Guard) isGone(err error) bool {
	_, unknown := errors.AsType[*oplog.EntryError](err)
	return unknown || errors.Is(err, fetcher.ErrTooStale) || errors.Is(err, fetcher.ErrStartMissing)
}

// tail reads the oplog of the target's primary, up to the entry until unless that is null; then it
// returns errExamined.
func (g *Guard) tail(ctx context.Context, until oplog.OpTime) error {
	if !until.IsNull() && !g.at().Before(until) {
		return errExamined
	}
	host, err := g.primary(ctx)
	if err != nil {
		return err
	}
	cfg := g.link.Config()
	reader, err := fetcher.NewReader(fetcher.ReaderConfig{
		AwaitTime: g.cfg.Await, Without: flushes(cfg.DB, cfg.Link, g.link, until),
	})
	if err != nil {
		return err
	}
	member := heard{g.cfg.Target.Member(host), func() { g.set(func(now *Status) { now.Watching, now.Why = true, "" }) }}
	_, err = reader.Tail(ctx, host, member, g.at(), false, func(ctx context.Context, r oplog.Reply) error {
		err := g.see(ctx, r)
		if err == nil && !until.IsNull() && !r.Entries[len(r.Entries)-1].OpTime.Before(until) {
			err = errExamined
		}
		return err
	})
	return err
}

// primary returns the target's primary.
func (g *Guard) primary(ctx context.Context) (string, error) {
	if g.cfg.Target.Direct() {
		return g.cfg.Target.Hosts()[0], nil
	}
	reply, err := g.cfg.Target.Call(ctx, mongo.Command{DB: "admin", Body: metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendInt32Element(dst, "hello", 1)
	})})
	if err != nil {
		return "", err
	}
	host, ok := reply.Lookup("primary").StringValueOK()
	if !ok {
		return "", errors.New("the target names no primary")
	}
	return host, nil
}

// flushes is the filter of the entries that a link's lanes write, and of what every link writes all
// the time: flushes, whose first statement moves a lane, checkpoints of other links, and updates of
// their documents in the metadata. It does not match the entry but.
func flushes(db, link string, h *checkpoint.Link, but oplog.OpTime) bson.Raw {
	lanes := checkpoint.Sessions(db, link, h.Instance(), h.State().Writers)
	lanes = lanes[:len(lanes)-1] // The link's own session advances the checkpoint: where the oplog is examined up to.
	ids := bsoncore.NewArrayBuilder()
	for _, lane := range lanes {
		_, id := lane.Lookup("id").Binary()
		ids.AppendBinary(bson.TypeBinaryUUID, id)
	}
	doc := bsoncore.NewDocumentBuilder
	another := doc().AppendString("$ne", link).Build()
	const first = "o.applyOps.0."
	some := bsoncore.NewArrayBuilder().
		AppendDocument(doc().AppendDocument("lsid.id", doc().AppendArray("$in", ids.Build()).Build()).Build()).
		AppendDocument(doc().AppendString("ns", "admin.$cmd").AppendString(first+"ns", db+"."+metadata.Lanes).Build()).
		AppendDocument(doc().AppendString("ns", "admin.$cmd").AppendString(first+"ns", db+"."+metadata.Links).
			AppendString(first+"op", "u").AppendDocument(first+"o2._id", another).Build()).
		AppendDocument(doc().AppendString("op", "u").
			AppendDocument("ns", doc().AppendString("$gte", db+".").AppendString("$lt", db+"/").Build()). // The slash follows the dot.
			AppendDocument("o2._id", another).Build()).
		Build()
	return bson.Raw(doc().
		AppendDocument("ts", doc().AppendTimestamp("$ne", but.TS.T, but.TS.I).Build()).
		AppendArray("$or", some).
		Build())
}
