package ends

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// First is the optime before the first entry of every log that is made here.
var First = oplog.NewOpTime(1_700_000_000, 1, 1)

// MetaDB is the metadata database of all links made for measurements: not the one
// of links in production.
const MetaDB = "replicator_bench"

// End is a connected set.
type End struct {
	Set *driver.Set
	URI string
	// Is says what it is, as reported by its servers.
	Is result.End

	// sim is the embedded set if it runs in this process; stop ends one that runs in
	// another.
	sim  *mongosim.Set
	stop func()
}

func parse(uri string) (*driver.Options, error) {
	opts, err := driver.Parse(driver.Config{URI: uri, AppName: "replicator-bench"})
	if err != nil {
		return nil, fmt.Errorf("connect to an end: %w", err)
	}
	return opts, nil
}

// CheckURI returns an error for an invalid connection string. It does not connect.
func CheckURI(uri string) error {
	_, err := parse(uri)
	return err
}

// Open connects to the set that uri names.
func Open(ctx context.Context, uri string) (*End, error) {
	opts, err := parse(uri)
	if err != nil {
		return nil, err
	}
	e := &End{URI: uri}
	if e.Set, err = driver.Open(ctx, opts); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", opts, err)
	}
	if err := e.look(ctx); err != nil {
		e.Set.Close()
		return nil, fmt.Errorf("connect to %s: %w", opts, err)
	}
	return e, nil
}

// Start starts an Empty or a Played end: in a process of its own by serve, or in this
// one where that is nil. Last is the newest entry of a Played one.
func Start(ctx context.Context, serve Serve, what What) (end *End, last oplog.OpTime, err error) {
	if serve != nil {
		return startServed(ctx, serve, what)
	}
	switch what.Kind {
	case Empty:
		end, err = startSim(ctx, mongosim.Options{
			Seed: what.Seed, OplogBytes: what.OplogBytes, Members: what.Members, TTLInterval: -1,
		})
		return end, oplog.OpTime{}, err
	case Played:
		return startPlayed(ctx, what)
	case Acknowledging:
	}
	return nil, oplog.OpTime{}, fmt.Errorf("start an end: its kind is %q, not %q or %q", what.Kind, Empty, Played)
}

// startServed starts an end in a process of its own.
func startServed(ctx context.Context, serve Serve, what What) (*End, oplog.OpTime, error) {
	served, err := serve(ctx, what)
	if err != nil {
		return nil, oplog.OpTime{}, fmt.Errorf("start an end of kind %q in a process of its own: %w", what.Kind, err)
	}
	e, err := Open(ctx, served.URI)
	if err != nil {
		served.Stop()
		return nil, oplog.OpTime{}, err
	}
	e.stop = served.Stop
	return e, served.Last, nil
}

// StartEmbedded starts an embedded set of one member and connects to it. Seeds of
// two sets must differ. An oplog of zero bytes has the embedded set's default.
func StartEmbedded(ctx context.Context, seed int64, oplogBytes int64) (*End, error) {
	end, _, err := Start(ctx, nil, What{Kind: Empty, Seed: seed, OplogBytes: oplogBytes})
	return end, err
}

func startSim(ctx context.Context, opts mongosim.Options) (*End, error) {
	sim, err := mongosim.Start(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start an embedded set: %w", err)
	}
	e, err := Open(ctx, sim.URI())
	if err != nil {
		sim.Close()
		return nil, err
	}
	e.sim = sim
	return e, nil
}

const (
	// playAtOnce is the number of bytes of entries passed to the set at a time.
	playAtOnce = 8 << 20
	// spareOplog is added to the size of a log, so that it is not truncated, and
	// perEntry for each entry.
	spareOplog = 64 << 20
	perEntry   = 64
)

// startPlayed starts an embedded set that has the log of a workload after First, and
// the workload's initial documents. Last is the newest entry.
func startPlayed(ctx context.Context, what What) (end *End, last oplog.OpTime, err error) {
	before, err := collectionsOf(what.Workload)
	if err != nil {
		return nil, oplog.OpTime{}, err
	}
	size := what.OplogBytes
	if size == 0 {
		err := eachEntry(what.Workload, func(entry bson.Raw, _ int) error {
			size += int64(len(entry)) + perEntry
			return ctx.Err()
		})
		if err != nil {
			return nil, oplog.OpTime{}, err
		}
		size += spareOplog
	}
	stored := make([]mongosim.StoredCollection, 0, len(before))
	for _, c := range before {
		stored = append(stored, mongosim.StoredCollection{
			NS: c.NS, UUID: c.UUID, Options: emptyDocument, Indexes: c.Indexes, Documents: c.Documents,
		})
	}
	e, err := startSim(ctx, mongosim.Options{
		Seed: what.Seed, TTLInterval: -1, OplogBytes: size,
		Recording: &mongosim.Recording{First: First, Collections: stored},
	})
	if err != nil {
		return nil, oplog.OpTime{}, err
	}
	last, err = e.play(ctx, what.Workload)
	if err != nil {
		e.Close()
		return nil, oplog.OpTime{}, err
	}
	return e, last, nil
}

var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

// play plays the log of a workload, and returns its newest entry.
func (e *End) play(ctx context.Context, w workload.Workload) (oplog.OpTime, error) {
	member := e.sim.Member(0)
	var entries []bson.Raw
	bytes := 0
	flush := func() error {
		if err := member.Play(entries); err != nil {
			return fmt.Errorf("play the log of %s: %w", w.Name, err)
		}
		entries, bytes = entries[:0], 0
		return context.Cause(ctx)
	}
	log, err := workload.NewLog(w, First)
	if err != nil {
		return oplog.OpTime{}, fmt.Errorf("make the log of %s: %w", w.Name, err)
	}
	for {
		entry, _, ok, err := log.Next()
		if err != nil {
			return oplog.OpTime{}, fmt.Errorf("make the log of %s: %w", w.Name, err)
		}
		if !ok {
			return log.Last(), flush()
		}
		entries = append(entries, entry)
		if bytes += len(entry); bytes >= playAtOnce {
			if err := flush(); err != nil {
				return oplog.OpTime{}, err
			}
		}
	}
}

// eachEntry calls f with each entry of a workload's log.
func eachEntry(w workload.Workload, f func(entry bson.Raw, ops int) error) error {
	log, err := workload.NewLog(w, First)
	if err != nil {
		return fmt.Errorf("make the log of %s: %w", w.Name, err)
	}
	for {
		entry, ops, ok, err := log.Next()
		if err != nil {
			return fmt.Errorf("make the log of %s: %w", w.Name, err)
		}
		if !ok {
			return nil
		}
		if err := f(entry, ops); err != nil {
			return err
		}
	}
}

func collectionsOf(w workload.Workload) ([]workload.Collection, error) {
	gen, err := workload.New(w)
	if err == nil {
		var list []workload.Collection
		if list, err = gen.Collections(); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("make the collections of %s: %w", w.Name, err)
}

// Close disconnects, and ends an embedded set.
func (e *End) Close() {
	e.Set.Close()
	if e.sim != nil {
		e.sim.Close()
	}
	if e.stop != nil {
		e.stop()
	}
}

// Started reports whether the set was started here, so that nothing else uses
// it.
func (e *End) Started() bool { return e.sim != nil || e.stop != nil }

// Here reports whether it runs in this process.
func (e *End) Here() bool { return e.sim != nil }

// run runs a command on the primary.
func (e *End) run(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build the command %s: %w", cmd[0].Key, err)
	}
	return e.Set.Call(ctx, mongo.Command{DB: db, Body: body})
}
