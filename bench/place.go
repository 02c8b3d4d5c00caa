package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/mongod"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// The seeds of embedded sets, which must differ.
const (
	sourceSeed = 41
	targetSeed = 42
)

// linkName is a name that no link had before: what the target keeps of a link's
// sessions outlives its records.
func linkName(kind string, round int) string {
	return fmt.Sprintf("%s-%s-%d", kind, strconv.FormatInt(time.Now().UnixNano(), 36), round)
}

// collectionsOf is what a workload begins with.
func collectionsOf(w workload.Workload) ([]workload.Collection, error) {
	g, err := workload.New(w)
	if err != nil {
		return nil, err
	}
	return g.Collections()
}

// only is a scope of a workload's collections.
func only(collections []workload.Collection) (*scope.Scope, error) {
	return scope.New(scope.Config{Include: ends.Databases(collections), MetaDB: ends.MetaDB})
}

// place is an end, and what may be done there.
type place struct {
	*ends.End
	// uri is the connection string that names it, empty where it was started here.
	uri string
	// mine tells that its databases of the workload were made here.
	mine bool
	// close disconnects, and ends what was started.
	close func()
}

// openPlace connects to what a connection string names, or starts what is used in
// place of one: a real server where c.Mongod is set, else an embedded set.
func openPlace(ctx context.Context, c Config, uri string, seed int64) (*place, error) {
	if uri != "" {
		end, err := ends.Open(ctx, uri)
		if err != nil {
			return nil, err
		}
		return &place{End: end, uri: uri, close: end.Close}, nil
	}
	if c.Mongod == "" {
		end, _, err := ends.Start(ctx, c.Serve, ends.What{Kind: ends.Empty, Seed: seed})
		if err != nil {
			return nil, err
		}
		return &place{End: end, close: end.Close}, nil
	}
	set, err := mongod.Start(ctx, c.Mongod, realOplogMB)
	if err != nil {
		return nil, err
	}
	end, err := ends.Open(ctx, set.URI)
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return &place{End: end, close: func() {
		end.Close()
		_ = set.Close() // what is measured is measured; the system clears what is left
	}}, nil
}

// realOplogMB is the oplog of a real server: it has to hold a backlog.
const realOplogMB = 4096

// shown is what a report says of it.
func (p *place) shown() string {
	if p.Embedded {
		return embeddedEnd
	}
	return p.Version
}

// prepare makes the place what a workload begins with. Databases of the workload that
// are there are dropped; where a connection string names the place and they were not
// made here, only if overwrite says so.
func (p *place) prepare(ctx context.Context, overwrite bool, collections []workload.Collection) error {
	dbs := ends.Databases(collections)
	if p.uri != "" && !p.mine && !overwrite {
		there, err := p.Existing(ctx, dbs)
		if err != nil {
			return err
		}
		if len(there) > 0 {
			return fmt.Errorf("prepare %s: databases that the workload would drop exist there (%s): choose another set, or allow it with --overwrite",
				strings.Join(p.Set.Hosts(), ","), strings.Join(there, ", "))
		}
	}
	p.mine = true
	return p.Fill(ctx, collections)
}

// tidy leaves nothing of a run at a place that a connection string names: neither the
// workload's databases nor the records of links.
func (p *place) tidy(ctx context.Context, dbs []string) error {
	if p == nil || p.uri == "" || !p.mine {
		return nil
	}
	var faults []error
	for _, db := range append(slices.Clone(dbs), ends.MetaDB) {
		faults = append(faults, p.Drop(context.WithoutCancel(ctx), db))
	}
	return errors.Join(faults...)
}

// newest is the newest entry of a set's log, once a majority has it: what is not
// committed no link begins behind, and none applies.
func newest(ctx context.Context, set call.Caller) (oplog.OpTime, error) {
	last, err := newestAt(ctx, set, "local")
	if err != nil {
		return last, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		committed, err := newestAt(ctx, set, "majority")
		if err != nil || !committed.Before(last) {
			return last, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last, fmt.Errorf("wait until a majority has %s, and not only %s: %w", last, committed, context.Cause(ctx))
		}
	}
}

// newestAt is the newest entry that is seen with a read concern.
func newestAt(ctx context.Context, set call.Caller, level string) (oplog.OpTime, error) {
	reply, err := ask(ctx, set, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: int32(-1)}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}}},
		{Key: "limit", Value: int32(1)},
		{Key: "singleBatch", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: level}}},
	})
	if err != nil {
		return oplog.OpTime{}, fmt.Errorf("read the newest entry: %w", err)
	}
	doc, ok := reply.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok {
		return oplog.OpTime{}, errors.New("read the newest entry: there is none")
	}
	t, i, ok := doc.Lookup("ts").TimestampOK()
	if !ok {
		return oplog.OpTime{}, errors.New("read the newest entry: it has no ts")
	}
	term, _ := doc.Lookup("t").AsInt64OK()
	return oplog.NewOpTime(t, i, term), nil
}

// count counts the documents of a collection.
func count(ctx context.Context, set call.Caller, ns oplog.Namespace) (int64, error) {
	reply, err := ask(ctx, set, ns.DB(), bson.D{
		{Key: "count", Value: ns.Collection()},
		{Key: "query", Value: bson.D{}},
	})
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", ns, err)
	}
	n, ok := reply.Lookup("n").AsInt64OK()
	if !ok {
		return 0, fmt.Errorf("count %s: the reply has no n", ns)
	}
	return n, nil
}

// ask runs a command that is made here.
func ask(ctx context.Context, set call.Caller, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", cmd[0].Key, err)
	}
	return set.Call(ctx, call.Command{DB: db, Body: body})
}
