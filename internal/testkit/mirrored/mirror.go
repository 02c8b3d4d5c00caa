package mirrored

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/scope"
)

// Variant has the settings with which a recording is mirrored.
type Variant struct {
	// Writers is the number of lanes, BatchOps the limit of a batch in operations.
	Writers, BatchOps int
	// Relaxed is how transactions are applied.
	Relaxed bool
	// Unique is the handling of unique indexes.
	Unique ddl.UniqueIndexes
}

// String names the variant.
func (v Variant) String() string {
	txns, unique := "atomic", "serialized"
	if v.Relaxed {
		txns = "relaxed"
	}
	if v.Unique == ddl.Relaxed {
		unique = "relaxed"
	}
	return fmt.Sprintf("writers=%d batch=%d transactions=%s unique=%s", v.Writers, v.BatchOps, txns, unique)
}

// RunOptions are how one run is made.
type RunOptions struct {
	// Target, if not nil, gives for each run the connection string of a set to
	// mirror into that is empty, in place of an embedded one.
	Target func(ctx context.Context) (string, error)
	// Members is how many members an embedded target has. Default 1.
	Members int
	// Limit is how long a run may take. Default one minute.
	Limit time.Duration
	// Change, if not nil, changes the link's settings, such as its filters and
	// renames.
	Change func(cfg *pipeline.Config)
	// Observer, if not nil, receives the pipeline's events.
	Observer event.Observer
}

func (o *RunOptions) setDefaults() {
	o.Members = max(o.Members, 1)
	if o.Limit == 0 {
		o.Limit = time.Minute
	}
}

// errTooLong is the cause of a run that does not end.
var errTooLong = errors.New("it took too long")

// linkName is that of all links here.
const linkName = "mirrored"

// Mirror mirrors the whole recording into a new target, and compares that with
// the recording's final state. Entries not played yet must be played
// concurrently.
func (s *Source) Mirror(ctx context.Context, v Variant, o RunOptions) (compare.Report, error) {
	o.setDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, errTooLong)
	defer cancel()
	uri, end, err := o.target(ctx)
	if err != nil {
		return compare.Report{}, err
	}
	defer end()
	from, err := Connect(ctx, s.URI())
	if err != nil {
		return compare.Report{}, err
	}
	defer from.Close()
	to, err := Connect(ctx, uri)
	if err != nil {
		return compare.Report{}, err
	}
	defer to.Close()
	everything, err := scope.New(scope.Config{})
	if err != nil {
		return compare.Report{}, err
	}
	cfg := pipeline.Config{
		Link: linkName, Scope: everything, StartAt: s.First.TS,
		Writers: v.Writers, BatchOps: v.BatchOps, Relaxed: v.Relaxed, UniqueIndexes: v.Unique, Observer: o.Observer,
	}
	if s.Moving {
		cfg.CopiedUntil = s.Last
	}
	if o.Change != nil {
		o.Change(&cfg)
	}
	if err := Fill(ctx, to, renamed(s.Before, cfg.Scope)); err != nil {
		return compare.Report{}, err
	}
	if _, err := Follow(ctx, cfg, from, to, s.Last); err != nil {
		return compare.Report{}, err
	}
	deferred, err := ddl.ReadDeferred(ctx, to, scope.DefaultMetaDB, linkName)
	if err != nil {
		return compare.Report{}, err
	}
	return compare.Compare(ctx, compare.Recorded(s.After), compare.Cluster(to), compare.Options{Map: cfg.Scope.Target, Deferred: deferred})
}

// target returns the URI of the target: of an embedded set, which end closes, unless
// the options say otherwise.
func (o *RunOptions) target(ctx context.Context) (uri string, end func(), err error) {
	if o.Target != nil {
		uri, err = o.Target(ctx)
		return uri, func() {}, err
	}
	// Nobody makes it fail over, a busy machine neither.
	set, err := mongosim.Start(ctx, mongosim.Options{SetName: "target", Members: o.Members, ElectionTimeout: time.Hour, TTLInterval: -1})
	if err != nil {
		return "", nil, err
	}
	return set.URI(), set.Close, nil
}

// renamed is what of a state a scope has, under the names of the target.
// Collections that views read must keep their names.
func renamed(state memstore.State, names resync.Scope) memstore.State {
	var in memstore.State
	for _, c := range state.Collections {
		var ok bool
		if c.NS, ok = names.Target(c.NS); ok {
			in.Collections = append(in.Collections, c)
		}
	}
	return in
}
