package cutover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// ErrNoWayBack reports that a link from the target to the source could not begin without a copy.
var ErrNoWayBack = errors.New("there would be no way back")

// armConfig configures arm.
type armConfig struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// Link is the link, under its lease: nothing is applied any more. All that is to be converted on
	// the target has been.
	Link *checkpoint.Link
	// Cut is the cut at which it was drained.
	Cut checkpoint.Cut
}

// errLags reports a target of which no majority has had the newest entry in time.
var errLags = fmt.Errorf("no majority of the target had its newest entry within %s", armWithin)

const (
	// stillFor is the age that the state of foreign writes may have. From then on the target's oplog is examined.
	stillFor = time.Minute
	// armWithin is how long arm waits for a majority of the target.
	armWithin = 30 * time.Second
	// askEvery is how often it asks for it.
	askEvery = 20 * time.Millisecond
)

// arm returns the way back of a link that is about to end: a link from the target to the source may
// begin there without a copy, as the target has nothing there that the source has not. It writes
// nothing: that the way back exists is written with the end of the link, by [checkpoint.Link.End].
//
//	last cut ── nothing but the link's own writes, and its conversions ──▶ Start, which a majority has
//
// The error wraps ErrWritten if something else has written to a mirrored namespace since the cut, and
// names it; and ErrNoWayBack if there cannot be one.
func arm(ctx context.Context, cfg *armConfig) (*checkpoint.Reverse, error) {
	st := cfg.Link.State()
	if st.Filters == nil {
		return nil, fmt.Errorf("%w: what the link mirrors is not recorded in its document: start it once with this release", ErrNoWayBack)
	}
	names, err := scope.New(ScopeOf(st.Filters, cfg.Link.Config().DB))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoWayBack, err)
	}
	set, err := replset.Identify(ctx, mongo.Reads(cfg.Target))
	if err != nil {
		return nil, fmt.Errorf("ask the target for its set: %w", err)
	}
	start, err := startOf(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("find where the way back begins: %w", err)
	}
	if err := cfg.untouched(ctx, names, start.OpTime); err != nil {
		return nil, err
	}
	return &checkpoint.Reverse{
		Start: start.OpTime, Wall: start.Wall, Target: checkpoint.Source(set), Filters: st.Filters.Reverse(),
	}, nil
}

// ScopeOf returns the Scope of filters.
func ScopeOf(f *checkpoint.Filters, metaDB string) scope.Config {
	return scope.Config{
		Include: f.Include, Exclude: f.Exclude, Map: f.Map, UsersAndRoles: f.UsersAndRoles, Reversed: f.Reversed, MetaDB: metaDB,
	}
}

// startOf returns an entry that a majority of the target has, at or after all that the link has
// written: the primary has every write that was acknowledged with majority.
func startOf(ctx context.Context, cfg *armConfig) (replset.Entry, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, armWithin, errLags)
	defer cancel()
	set := mongo.Reads(cfg.Target)
	newest, err := replset.NewestEntry(ctx, set, replset.Local)
	for err == nil {
		var e replset.Entry
		if e, err = replset.NewestEntry(ctx, set, replset.Majority); err == nil && !e.OpTime.Before(newest.OpTime) {
			if oplog.CompareTimestamps(e.OpTime.TS, cfg.Cut.Target) < 0 {
				return e, fmt.Errorf("the target's newest entry is %s, and the link was drained at its %d:%d", e.OpTime, cfg.Cut.Target.T, cfg.Cut.Target.I)
			}
			return e, nil
		}
		if err == nil {
			err = mongo.Pause(ctx, askEvery)
		}
	}
	return replset.Entry{}, err
}

// untouched returns an error if something else than the link has written to namespaces that it mirrors, after
// its last cut and up to an entry.
func (cfg *armConfig) untouched(ctx context.Context, names *scope.Scope, upTo oplog.OpTime) error {
	link := cfg.Link.Config()
	store := guard.Store{Target: cfg.Target, DB: link.DB, Link: link.Link}
	from, err := store.Read(ctx)
	if err != nil {
		return err
	}
	cut := oplog.OpTime{TS: cfg.Cut.Target, Term: oplog.UninitializedTerm}
	if from == nil || from.At.IsNull() || int64(cut.TS.T)-int64(from.At.TS.T) > int64(stillFor/time.Second) {
		// The target is not watched.
		from = &guard.State{At: cut}
		if from.Open, from.Parts, err = store.Announced(ctx); err != nil {
			return err
		}
	}
	sessions := func(name, instance string) []bson.Raw {
		return checkpoint.Sessions(link.DB, name, instance, checkpoint.MaxWriters)
	}
	lanes := checkpoint.Sessions(link.DB, link.Link, cfg.Link.Instance(), cfg.Link.State().Writers)
	found, now, err := guard.Examine(ctx, cfg.Target, guard.WatchConfig{
		Link: link.Link, Instance: cfg.Link.Instance(), MetaDB: link.DB, Scope: names, Sessions: sessions,
		Deletes: func(ctx context.Context, ns oplog.Namespace, id oplog.UUID) (bool, error) {
			return guard.Deletes(ctx, cfg.Target, ns, id)
		},
	}, *from, upTo, guard.Flushes(link.DB, link.Link, lanes[:len(lanes)-1], oplog.OpTime{}), cfg.touched)
	if err != nil {
		return fmt.Errorf("find out whether something else has written to the target since it was drained: %w", err)
	}
	for _, w := range append(found, now.Writes...) {
		if cfg.touched([]guard.Write{w}) {
			return fmt.Errorf("%w: something else has written to the target: %s", ErrWritten, w.String())
		}
	}
	return nil
}

// touched reports whether the last one of some writes was made after the cut.
func (cfg *armConfig) touched(found []guard.Write) bool {
	return oplog.CompareTimestamps(found[len(found)-1].OpTime.TS, cfg.Cut.Target) > 0
}
