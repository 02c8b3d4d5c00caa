package mirrored

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"


	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/compare"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// Connect opens a connection as the program does.
func Connect(ctx context.Context, uri string) (*mdb.Set, error) {
	o, err := mdb.Parse(mdb.Config{URI: uri})
	if err != nil {
		return nil, err
	}
	return mdb.Open(ctx, o)
}

// errTooLong is the cause of a run that does not end.
var errTooLong = errors.New("it took too long")

// glance is how often it is looked how far a run is.
const glance = 2 * time.Millisecond

// Follow runs a pipeline until everything up to an entry is applied, drains it,
// and returns what it did. An attempt that failed and was tried again is an
// error, unless the run has failed otherwise.
func Follow(ctx context.Context, cfg pipeline.Config, source, target pipeline.Cluster, until oplog.OpTime) (pipeline.Snapshot, error) {
	var warned warnings
	cfg.Observer = warned.observe(cfg.Observer)
	p, err := pipeline.New(cfg, source, target)
	if err != nil {
		return pipeline.Snapshot{}, err
	}
	soft, drain := context.WithCancelCause(context.WithoutCancel(ctx))
	defer drain(nil)
	done := make(chan error, 1)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { done <- p.Run(ctx, soft) })
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for soft.Err() == nil {
		select {
		case err := <-done:
			return p.Snapshot(), warned.explain(err, p.Snapshot())
		case <-tick.C:
			if !p.Snapshot().Progress.Applied.Before(until) {
				drain(nil)
			}
		}
	}
	err = <-done
	s := p.Snapshot()
	if err == nil && s.LastError != "" {
		err = fmt.Errorf("an attempt ended: %s", s.LastError)
	}
	return s, warned.explain(err, s)
}

// warnings keeps the first events that are above Info.
type warnings struct {
	mu   sync.Mutex // guards said
	said []string
}

func (w *warnings) observe(next event.Observer) event.Observer {
	return func(e event.Event) {
		next.Tell(e)
		if e.Level() < slog.LevelWarn {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.said) < 5 {
			w.said = append(w.said, e.Message()+" "+e.LogValue().String())
		}
	}
}

// explain adds to an error what else is known.
func (w *warnings) explain(err error, s pipeline.Snapshot) error {
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = fmt.Errorf("%w (applied %s, fetched %s)", err, s.Progress.Applied, s.Fetched)
	for _, text := range w.said {
		err = fmt.Errorf("%w; %s", err, text)
	}
	return err
}

// Variant is with which settings a recording is mirrored.
type Variant struct {
	// Writers is the number of lanes, BatchOps the limit of a batch in operations.
	Writers, BatchOps int
	// Relaxed is how transactions are applied.
	Relaxed bool
	// Unique is what is done with unique indexes.
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

// linkName is that of all links here.
const linkName = "mirrored"

// Mirror mirrors all that the source has played, or will have, into a new target,
// and compares that with the recording. A run that takes longer than limit is an
// error.
func (s *Source) Mirror(ctx context.Context, v Variant, limit time.Duration, observer event.Observer) (compare.Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLong)
	defer cancel()
	set, err := mongosim.Start(ctx, mongosim.Options{SetName: "target", TTLInterval: -1})
	if err != nil {
		return compare.Report{}, err
	}
	defer set.Close()
	from, err := Connect(ctx, s.URI())
	if err != nil {
		return compare.Report{}, err
	}
	defer from.Close()
	to, err := Connect(ctx, set.URI())
	if err != nil {
		return compare.Report{}, err
	}
	defer to.Close()
	if err := Fill(ctx, to, s.Before); err != nil {
		return compare.Report{}, err
	}
	everything, err := scope.New(scope.Config{})
	if err != nil {
		return compare.Report{}, err
	}
	cfg := pipeline.Config{
		Link: linkName, Scope: everything, StartAt: pipeline.StartAt{Timestamp: s.First.TS},
		Writers: v.Writers, BatchOps: v.BatchOps, Relaxed: v.Relaxed, UniqueIndexes: v.Unique, Observer: observer,
	}
	if s.Moving {
		cfg.CopiedUntil = s.Last
	}
	if _, err := Follow(ctx, cfg, pipeline.Connected(from), pipeline.Connected(to), s.Last); err != nil {
		return compare.Report{}, err
	}
	held, err := ddl.Held(ctx, to, scope.DefaultMetaDB, linkName)
	if err != nil {
		return compare.Report{}, err
	}
	return compare.Compare(ctx, compare.Recorded(s.After), compare.Cluster(to), compare.Options{Held: held})
}

