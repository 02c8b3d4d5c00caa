package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// Begin reads the State, before anything is written in a term. In mode Stop it examines the
// writes made since, and returns a [*ForeignError] if the link must not continue. After another error
// it may be called again; with [Guard.Blind] the term continues without.
func (g *Guard) Begin(ctx context.Context, link *checkpoint.Link) error {
	if link.Term() != g.last+1 {
		g.first = link.Term()
	}
	g.last, g.link = link.Term(), link
	g.examining.Lock()
	defer g.examining.Unlock()
	err := g.load(ctx)
	if err == nil {
		err = g.check(ctx)
	}
	switch {
	case err == nil && g.cfg.Mode == Stop:
		return g.catchUp(ctx)
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// Blind lets the term of the last Begin go on, without a watch, after Begin has returned an error.
func (g *Guard) Blind(why error) {
	g.examining.Lock()
	defer g.examining.Unlock()
	g.watch = nil
	if servererr.Classify(why) == servererr.Auth {
		why = fmt.Errorf("the user of the target may not read local.oplog.rs: %w", why)
	}
	g.blind(why)
}

// catchUp examines the writes made while no process was leading, before anything follows them.
// The caller has examining locked.
func (g *Guard) catchUp(ctx context.Context) error {
	newest, err := replset.NewestCommitted(ctx, g.cfg.Target)
	if err != nil {
		return err
	}
	g.examining.Unlock()
	for err == nil && ctx.Err() == nil {
		if err = g.tail(ctx, newest.OpTime); err == nil { // the member has ended the cursor
			_ = mongo.Pause(ctx, tailPause)
		}
	}
	g.examining.Lock()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isForeign(err), errors.Is(err, lease.ErrFenced):
		return err
	case errors.Is(err, errExamined):
		return nil
	}
	// A target may refuse for ever, or take too long each time: then the loop tries again, or records a gap.
	if kind := servererr.Classify(err); kind.Passes() && kind != servererr.Expired {
		return err
	}
	g.blind(err)
	return nil
}

// errExamined ends reading once the oplog is examined as far as it is to be.
var errExamined = errors.New("examined")

// check stores the state in the link's term, and returns the error of one with which it must not
// go on. The caller has examining locked.
func (g *Guard) check(ctx context.Context) error {
	if err := g.save(ctx, true); err != nil {
		return err
	}
	if st := g.watch.State(); g.cfg.Mode == Stop {
		return st.Err()
	}
	return nil
}

// load makes the Watch of a term.
func (g *Guard) load(ctx context.Context) error {
	stored, err := g.store.Read(ctx)
	if _, damaged := errors.AsType[*metadata.DamagedError](err); damaged {
		g.cfg.Observer.Log(slog.LevelWarn, "the record of foreign writes to the target is lost", slog.String(keyWhy, err.Error()))
		stored, err = nil, nil
	}
	if err != nil {
		return err
	}
	var st State
	switch {
	case stored == nil || stored.At.IsNull():
		err = g.startAtNewest(ctx, &st)
	default:
		st = *stored
		if st.Term < g.first-1 { // A process that announced nothing may have led.
			err = g.judgeFromNow(ctx, &st)
		}
	}
	if err != nil {
		return err
	}
	if err := g.store.Forget(ctx, time.Now()); err != nil {
		return err
	}
	cleared, err := g.store.Cleared(ctx)
	if err != nil {
		return err
	}
	st.Clear(cleared)
	left := g.link.Gaps().LeftOut
	copied := func(ns oplog.Namespace) Copy { // an attempt ends before that changes
		source, _ := g.cfg.Scope.Source(ns)
		for i := range left {
			if left[i].NS == source {
				return Copy{Asked: left[i].Asked, After: left[i].Target}
			}
		}
		return Copy{}
	}
	st.Copies(copied)
	st.Term = g.link.Term()
	cfg := g.link.Config()
	g.watch = NewWatch(WatchConfig{
		Link: cfg.Link, Instance: g.link.Instance(), MetaDB: cfg.DB, Scope: g.cfg.Scope,
		Sessions: func(link, instance string) []bson.Raw {
			return checkpoint.Sessions(cfg.DB, link, instance, checkpoint.MaxWriters)
		},
		Deletes: g.targetDeletes, Copied: copied,
	}, st)
	return nil
}

// named is a collection and the name that it had.
type named struct {
	ns oplog.Namespace
	id oplog.UUID
}

// targetDeletes is Deletes, once for each collection in a reply. The caller has examining
// locked.
func (g *Guard) targetDeletes(ctx context.Context, ns oplog.Namespace, id oplog.UUID) (bool, error) {
	of := named{ns, id}
	if does, known := g.deletes[of]; known {
		return does, nil
	}
	does, err := Deletes(ctx, g.cfg.Target, ns, id)
	if err == nil {
		g.deletes[of] = does
	}
	return does, err
}

// startAtNewest makes a state start at the newest entry of the target.
func (g *Guard) startAtNewest(ctx context.Context, st *State) error {
	from, err := replset.NewestCommitted(ctx, g.cfg.Target)
	if err != nil {
		return err
	}
	st.At, st.Wall = from.OpTime, from.Wall
	return g.judgeFromNow(ctx, st)
}

// judgeFromNow makes a state judge only the commands that follow.
func (g *Guard) judgeFromNow(ctx context.Context, st *State) error {
	open, parts, err := g.store.Announced(ctx)
	if err != nil {
		return err
	}
	// Commands announced before this entry are in open, later announcements follow in the oplog.
	newest, err := replset.NewestEntry(ctx, g.cfg.Target, replset.Local)
	if err != nil {
		return err
	}
	st.Open, st.CommandsFrom = open, newest.OpTime
	for _, p := range parts {
		st.AddPart(p)
	}
	return nil
}
