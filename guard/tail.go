package guard

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
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
		AwaitTime: g.cfg.Await, Without: Flushes(cfg.DB, cfg.Link, lanesOf(g.link), until),
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
	switch found, is := errors.AsType[*ForeignError](err); {
	case is:
		return found // where it was read does not matter
	case err != nil:
		return &tailError{err}
	}
	return nil
}

// tailError is the error of a reader of the target's oplog, which names itself after the stage that reads the source's.
type tailError struct{ err error }

// Error implements error.
func (e *tailError) Error() string {
	return "the target's oplog: " + strings.TrimPrefix(e.err.Error(), "fetcher: ")
}

// Unwrap returns the reader's error.
func (e *tailError) Unwrap() error { return e.err }

// primary returns the target's primary.
func (g *Guard) primary(ctx context.Context) (string, error) {
	if g.cfg.Target.Direct() {
		return g.cfg.Target.Hosts()[0], nil
	}
	reply, err := mongo.Hello(ctx, g.cfg.Target)
	if err != nil {
		return "", err
	}
	host, ok := reply.Lookup("primary").StringValueOK()
	if !ok {
		return "", &mongo.LostError{Err: errors.New("the target names no primary")} // as in an election
	}
	return host, nil
}

// lanesOf returns the sessions of a link's lanes. Its own session is not among them: it advances the
// checkpoint, and so tells how far the oplog is examined.
func lanesOf(h *checkpoint.Link) []bson.Raw {
	cfg := h.Config()
	all := checkpoint.Sessions(cfg.DB, cfg.Link, h.Instance(), h.State().Writers)
	return all[:len(all)-1]
}
