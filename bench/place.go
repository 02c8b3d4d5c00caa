package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/mongod"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// The seeds of embedded sets, which must differ.
const (
	sourceSeed = 41
	targetSeed = 42
)

// linkName is a name that no link had before: the target's session records
// outlive those of the link.
func linkName(kind string, round int) string {
	return fmt.Sprintf("%s-%s-%d", kind, strconv.FormatInt(time.Now().UnixNano(), 36), round)
}

// collectionsOf returns the initial collections of a workload.
func collectionsOf(w workload.Workload) ([]workload.Collection, error) {
	g, err := workload.New(w)
	if err != nil {
		return nil, err
	}
	return g.Collections()
}

// only is a scope of databases.
func only(dbs []string) (*scope.Scope, error) {
	return scope.New(scope.Config{Include: dbs, MetaDB: ends.MetaDB})
}

// place is an end, and the databases that a run may use there.
type place struct {
	*ends.End
	// uri is the connection string that names it, empty where it was started here.
	uri string
	// mine is true if the workload's databases were made by this run.
	mine bool
	// dbs are the databases that the workload writes to.
	dbs []string
	// close disconnects, and stops servers that were started.
	close func()
}

// openPlace connects to what a connection string names, or else starts a set of the
// given number of members: real servers where c.Mongod is set, else an embedded set.
func openPlace(ctx context.Context, c Config, uri string, seed int64, members int) (*place, error) {
	dbs, err := databases(c.Workload)
	if err != nil {
		return nil, err
	}
	if uri != "" {
		end, err := ends.Open(ctx, uri)
		if err != nil {
			return nil, err
		}
		return &place{End: end, uri: uri, dbs: dbs, close: end.Close}, nil
	}
	if c.Mongod == "" {
		end, _, err := ends.Start(ctx, c.Serve, ends.What{Kind: ends.Empty, Seed: seed, Members: members})
		if err != nil {
			return nil, err
		}
		return &place{End: end, dbs: dbs, close: end.Close}, nil
	}
	set, err := mongod.Start(ctx, c.realSet(members))
	if err != nil {
		return nil, err
	}
	end, err := ends.Open(ctx, set.URI)
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return &place{End: end, dbs: dbs, close: func() {
		end.Close()
		_ = set.Close() // the measurement is complete; the system removes the rest
	}}, nil
}

// realOplogMB is the oplog of a real server: it must hold a backlog.
const realOplogMB = 4096

// realSet starts a set of real servers.
func (c *Config) realSet(members int) mongod.Config {
	return mongod.Config{
		Binary: c.Mongod, Members: members, OplogMB: realOplogMB, CacheGB: cacheGB(meter.Machine("").Memory),
	}
}

// cacheGB is a server's cache on a machine with the given memory: half of the server's
// default, as two servers are busy at any time. A smaller one would change its behaviour:
// it begins to write out what a backlog changes when a twentieth of its cache is changed,
// and lets the writers do so at a fifth. Zero, where the memory is not known, is its
// default.
func cacheGB(memory int64) float64 {
	const least = 0.25
	if memory == 0 {
		return 0
	}
	alone := (float64(memory)/(1<<30) - 1) / 2
	return max(alone/2, least)
}

// free returns an error if the place has databases that a run would drop without
// permission: not made by this run, at a connection string, without overwrite.
func (p *place) free(ctx context.Context, overwrite bool, collections []workload.Collection) error {
	if p.uri == "" || p.mine || overwrite {
		return nil
	}
	there, err := p.Existing(ctx, p.touched(collections))
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return &ExistsError{Hosts: p.Set.Hosts(), Databases: there}
	}
	return nil
}

// touched are the databases of a run: the workload's, and those of more collections.
func (p *place) touched(collections []workload.Collection) []string {
	dbs := append(ends.Databases(collections), p.dbs...)
	slices.Sort(dbs)
	return slices.Compact(dbs)
}

// prepare sets up the initial data of a workload. Databases of the workload that are
// there are dropped, if it is free.
func (p *place) prepare(ctx context.Context, overwrite bool, collections []workload.Collection) error {
	if err := p.free(ctx, overwrite, collections); err != nil {
		return err
	}
	p.mine = true
	for _, db := range p.touched(collections) {
		if err := p.Drop(ctx, db); err != nil {
			return err
		}
	}
	return p.Fill(ctx, collections)
}

// tidyTime is the time limit of cleaning up.
const tidyTime = 30 * time.Second

// errTidy is the cause of its end.
var errTidy = errors.New("it took too long")

// tidy removes everything of a run from a place that a connection string names: the
// workload's databases and the records of links.
func (p *place) tidy(ctx context.Context, collections []workload.Collection) error {
	if p == nil || p.uri == "" || !p.mine {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), tidyTime, errTidy)
	defer cancel()
	left := &LeftError{Hosts: p.Set.Hosts()}
	for _, db := range append(p.touched(collections), ends.MetaDB) {
		if err := p.Drop(ctx, db); err != nil {
			left.Databases, left.Err = append(left.Databases, db), errors.Join(left.Err, err)
		}
	}
	if left.Err != nil {
		return left
	}
	return nil
}

// databases are those that a workload writes to.
func databases(w workload.Workload) ([]string, error) {
	if w.File == "" {
		return []string{workload.Database}, nil
	}
	gen, err := workload.New(w)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for {
		op, ok, err := gen.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return slices.Sorted(maps.Keys(found)), nil
		}
		found[op.NS.DB()] = true
	}
}

// openBoth opens the ends of a link, which must be two sets, and checks that the
// collections may be created in the target. A source started here has the given number
// of members. Opened ends are returned with an error too, to be closed.
func openBoth(ctx context.Context, c Config, members int, collections []workload.Collection) (source, target *place, err error) {
	if source, err = openPlace(ctx, c, c.Source, sourceSeed, members); err != nil {
		return nil, nil, fmt.Errorf("the source: %w", err)
	}
	if target, err = openPlace(ctx, c, c.Target, targetSeed, 1); err != nil {
		return source, nil, fmt.Errorf("the target: %w", err)
	}
	return source, target, errors.Join(distinct(source, target), target.free(ctx, c.Overwrite, collections))
}

// distinct returns an error if two places are one set.
func distinct(source, target *place) error {
	for _, host := range source.Set.Hosts() {
		if slices.Contains(target.Set.Hosts(), host) {
			return &ConfigError{fmt.Errorf("the source and the target are the same set: %s is of both", host)}
		}
	}
	return nil
}

// newest is the newest entry of a set's log, once a majority has it: a link
// neither starts after an uncommitted entry nor applies one.
func newest(ctx context.Context, set mongo.Caller) (oplog.OpTime, error) {
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
func newestAt(ctx context.Context, set mongo.Caller, level string) (oplog.OpTime, error) {
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
func count(ctx context.Context, set mongo.Caller, ns oplog.Namespace) (int64, error) {
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
func ask(ctx context.Context, set mongo.Caller, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", cmd[0].Key, err)
	}
	return set.Call(ctx, mongo.Command{DB: db, Body: body})
}
