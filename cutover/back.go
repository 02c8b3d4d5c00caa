package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// ErrTouched reports that something has written to the target of a way back since it stood still.
var ErrTouched = errors.New("the target is not what it was at the cutover")

// BackConfig says which way back is meant.
type BackConfig struct {
	// Source and Target run commands on the primary of each: the source of the way back is the
	// target of the link that has ended.
	Source, Target mongo.Caller
	// MetaDB is the metadata database of both.
	MetaDB string
	// Of is the link that has ended, empty for the only one between the two sets.
	Of string
}

// Back is a way back that has been found.
type Back struct {
	cfg  BackConfig
	set  checkpoint.Source
	over checkpoint.Over
	back checkpoint.Back
}

// FindBack finds the end of a link from Target to Source that has a way back. Nothing is written. It retries transient errors.
func FindBack(ctx context.Context, cfg *BackConfig) (back *Back, err error) {
	err = insist(ctx, func() error {
		back, err = findBack(ctx, cfg)
		return err
	})
	return back, err
}

// insist retries do, which must be idempotent, after transient errors such as those of a failover, for half a minute. It
// returns the last one.
func insist(ctx context.Context, do func() error) error {
	return mongo.Retry{Again: passing}.Last(ctx, do)
}

func findBack(ctx context.Context, cfg *BackConfig) (*Back, error) {
	source, err := replset.Identify(ctx, mongo.Reads(cfg.Source))
	if err != nil {
		return nil, fmt.Errorf("ask the source for its set: %w", err)
	}
	target, err := replset.Identify(ctx, mongo.Reads(cfg.Target))
	if err != nil {
		return nil, fmt.Errorf("ask the target for its set: %w", err)
	}
	links, err := checkpoint.List(ctx, cfg.Source, cfg.MetaDB)
	if err != nil {
		return nil, err
	}
	link, err := cfg.wayBackOf(links, source, target)
	if err != nil {
		return nil, err
	}
	store, err := checkpoint.New(checkpoint.Config{Target: cfg.Source, DB: cfg.MetaDB, Link: link})
	if err != nil {
		return nil, err
	}
	over, err := store.Over(ctx) // that which a majority has
	if err != nil {
		return nil, err
	}
	standing, found, err := store.Look(ctx, lease.NewWatch(""))
	switch {
	case err != nil:
		return nil, err
	case !found || over == nil || over.Reverse == nil:
		return nil, fmt.Errorf("%w: link %s is being changed", ErrNoWayBack, link)
	}
	return &Back{
		cfg: *cfg, set: checkpoint.Source(source), over: *over,
		back: checkpoint.Back{Link: link, Instance: standing.Instance, At: over.At, Start: over.Reverse.Start},
	}, nil
}

// wayBackOf returns the name of the link, of those on the new source, that was cut over from target to source
// with a way back.
func (cfg *BackConfig) wayBackOf(links []checkpoint.Listed, source, target replset.Identity) (string, error) {
	var names []string
	for i := range links {
		name, st, err := links[i].Link, &links[i].State, links[i].Err
		switch {
		case err != nil && (name == cfg.Of || cfg.Of == "" && isLater(err)):
			return "", fmt.Errorf("whether link %s was cut over is not known: %w", name, err)
		case err != nil, cfg.Of != "" && cfg.Of != name, st.Over == nil || st.Over.Reverse == nil, target.ReplicaSetID.IsZero():
		case st.Source.ReplicaSetID.Equal(target.ReplicaSetID) && st.Over.Reverse.Target.ReplicaSetID.Equal(source.ReplicaSetID):
			names = append(names, name)
		}
	}
	switch {
	case len(names) == 0 && cfg.Of != "":
		return "", fmt.Errorf("%w: %s of the source has no link %s from the target that was cut over with one", ErrNoWayBack, cfg.MetaDB, cfg.Of)
	case len(names) == 0:
		return "", fmt.Errorf("%w: %s of the source has no link from the target that was cut over with one", ErrNoWayBack, cfg.MetaDB)
	case len(names) > 1:
		return "", fmt.Errorf("%d links from the target were cut over: say which is meant by --start-at=cutover:%s", len(names), strings.Join(names, " or cutover:"))
	}
	return names[0], nil
}

// Filters are those of the way back.
func (b *Back) Filters() checkpoint.Filters { return b.over.Reverse.Filters }

// String names the link that it is the way back of.
func (b *Back) String() string {
	return fmt.Sprintf("the way back of link %s, cut over at %s: after %s", b.back.Link, b.over.At.UTC().Format("2006-01-02 15:04:05 UTC"), b.back.Start)
}

// Begin creates a link, by that name, on the target as the way back, unless it exists. There is no copy: the
// target is what the source was at the commit point. So nothing but the link may have written to it
// since it stood still; otherwise the error wraps ErrTouched, and names the write. TTL indexes
// and other options that expire documents on the target are deferred first.
//
//	examine the target's oplog since the freeze ──▶ defer expiration ──▶ examine again ──▶ create the link, consistent
//	  │ touched: nothing was changed                                        │ touched: restore expiration
//
// A link of that name that has begun there before, and has ended since, is a *checkpoint.OverError: applications may use
// the target. It may be interrupted, and called again, by several processes at a time: they have one intent
// ([checkpoint.Store.Intend]), so that either the link is created, or expiration is restored. Transient errors are retried.
func (b *Back) Begin(ctx context.Context, link string, state checkpoint.State, names *scope.Scope) error {
	store, err := checkpoint.New(checkpoint.Config{Target: b.cfg.Target, DB: b.cfg.MetaDB, Link: link})
	if err != nil {
		return err
	}
	return insist(ctx, func() error { return b.begin(ctx, store, state, names) })
}

// begin is one try of Begin.
func (b *Back) begin(ctx context.Context, store *checkpoint.Store, state checkpoint.State, names *scope.Scope) error {
	link := store.Link()
	if begun, err := b.begun(ctx, store); err != nil || begun {
		return err
	}
	mirrored := func(ns oplog.Namespace) bool {
		_, ok := names.Source(ns)
		return ok
	}
	gate := &guard.Gate{Target: b.cfg.Target, DB: b.cfg.MetaDB, Link: link}
	if err := store.Prepare(ctx); err != nil {
		return err
	}
	intent, err := store.Intend(ctx)
	if err != nil {
		return err
	}
	if begun, err := b.begun(ctx, store); err != nil || begun {
		return err // under an intent of before
	}
	open, err := b.open(ctx)
	if err != nil {
		return err
	}
	if _, err := b.examine(ctx, link, names); err != nil {
		return b.refused(ctx, store, link, err)
	}
	if err := b.hold(ctx, gate, store, intent, mirrored); err != nil {
		if begun, unread := b.begun(ctx, store); unread == nil && begun {
			return nil // another process was faster
		}
		return err
	}
	upTo, err := b.examine(ctx, link, names)
	if err != nil {
		return b.refused(ctx, store, link, err)
	}
	state.Source, state.Applied, state.AppliedWall, state.FetchFrom = b.set, b.back.Start, b.over.Reverse.Wall, b.back.Start
	filters := b.Filters()
	state.Filters, state.Back = &filters, &b.back
	// The guard continues where the examination has ended. It is told so in the same transaction: otherwise it would begin with
	// the newest entry after a start that ended before it could tell it.
	known := guard.Store{Target: b.cfg.Target, DB: b.cfg.MetaDB, Link: link}
	err = store.CreateAgain(ctx, state, intent, func(txn mongo.Caller, term int64) error {
		upTo.Term = term
		if err := b.carry(ctx, txn, link, open); err != nil {
			return err
		}
		return known.WriteWithin(ctx, txn, &upTo)
	})
	if err != nil {
		return b.notCreated(ctx, store, err)
	}
	return nil
}

// Used reports whether a link has begun where this way back begins, or has been past it, and has ended: it
// does not begin there again.
func (b *Back) Used(st *checkpoint.State) bool {
	return st.Over != nil && !b.back.Start.After(st.Applied)
}

// begun reports whether the link exists, and has not ended.
func (b *Back) begun(ctx context.Context, store *checkpoint.Store) (bool, error) {
	st, found, err := store.Load(ctx)
	switch {
	case err != nil || !found:
		return false, err
	case b.Used(&st):
		return false, &checkpoint.OverError{Link: store.Link(), Over: *st.Over}
	}
	return st.Over == nil, nil
}

// notCreated returns nil if another process has created the link.
func (b *Back) notCreated(ctx context.Context, store *checkpoint.Store, err error) error {
	switch {
	case errors.Is(err, checkpoint.ErrExists):
		return nil
	case !errors.Is(err, checkpoint.ErrWithdrawn):
		return err
	}
	if begun, err := b.begun(ctx, store); err != nil || begun {
		return err
	}
	return ddl.ErrExpiryRestored
}

// hold defers the options that expire documents on the target, as long as the intent is not withdrawn.
func (b *Back) hold(ctx context.Context, gate *guard.Gate, store *checkpoint.Store, intent string, mirrored func(oplog.Namespace) bool) error {
	free := func(ctx context.Context) error {
		begun, err := b.begun(ctx, store)
		if err == nil && begun {
			err = ddl.ErrLinkBegun
		}
		if err == nil {
			err = store.Intended(ctx, intent)
		}
		if errors.Is(err, checkpoint.ErrWithdrawn) {
			err = ddl.ErrExpiryRestored
		}
		return err
	}
	dbs, err := databases(ctx, b.cfg.Target)
	if err != nil {
		return err
	}
	for _, db := range dbs {
		if _, err := ddl.HoldExpiry(ctx, gate, b.cfg.MetaDB, store.Link(), db, mirrored, free); err != nil {
			return err
		}
	}
	return nil
}

// foundAtMost is how many writes to a target that does not stand still are counted: not all of its oplog is read.
const foundAtMost = 1000

// examine reads the target's oplog since the target stood still. It returns the optime up to which
// it contains no write to a mirrored namespace, or ErrTouched.
func (b *Back) examine(ctx context.Context, link string, names *scope.Scope) (guard.State, error) {
	newest, err := replset.NewestCommitted(ctx, mongo.Reads(b.cfg.Target))
	if err != nil {
		return guard.State{}, err
	}
	found, st, err := guard.Examine(ctx, b.cfg.Target, guard.WatchConfig{
		Link: link, MetaDB: b.cfg.MetaDB, Scope: names,
		Sessions: func(string, string) []bson.Raw { return nil },
		// Documents that have expired since then count as well.
		Deletes: func(context.Context, oplog.Namespace, oplog.UUID) (bool, error) { return false, nil },
	}, guard.State{At: b.over.Source}, newest.OpTime, nil, func(found []guard.Write) bool { return len(found) >= foundAtMost })
	switch {
	case errors.Is(err, guard.ErrNotReached):
		return st, fmt.Errorf("%w: the writes to it since %s cannot be known: %w", ErrTouched, b.over.Source, err)
	case err != nil:
		return st, err
	case len(found) > 0:
		many := strconv.Itoa(len(found))
		if len(found) >= foundAtMost {
			many += " or more"
		}
		return st, fmt.Errorf("%w: since %s it has %s writes that no link made, the first: %s", ErrTouched, b.over.Source, many, found[0].String())
	}
	if oplog.CompareTimestamps(st.At.TS, newest.OpTime.TS) < 0 {
		st.At, st.Wall = newest.OpTime, newest.Wall
	}
	return st, nil
}

// databases returns the databases of a set that have data of users.
func databases(ctx context.Context, set mongo.Caller) ([]string, error) {
	names, err := mongo.Databases(ctx, set)
	return slices.DeleteFunc(names, oplog.IsServerDB), err
}
