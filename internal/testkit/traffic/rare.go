package traffic

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	testclient "github.com/oplogrep/replicator/internal/testkit/client"
)

// rare is the client that writes what the others do not. Nobody else writes to its collections, so that each of them has an
// invariant: see Check.
type rare struct {
	*client
	number int64 // of what it did last
	// prepared is the session of prepared transactions, nil before the first; unprepared is true for a server that has none.
	prepared   bson.Raw
	unprepared bool
}

// The collections of rare.
const (
	pairs     = "pairs"     // a unique index; documents exchange their values
	accounts  = "accounts"  // prepared transactions move amounts
	groups    = "groups"    // applyOps, also nested, write three documents at once
	clustered = "clustered" // a clustered collection, where the server has them
	storm     = "storm"     // collMod, again and again
	expiring  = "expiring"  // documents that expire, and others that never do
	report    = "report"    // made as $out makes it
	summary   = "summary"   // written to as $merge does
)

const (
	pairsKeys    = 12
	accountsKeys = 10
	balance      = 1000
	groupsKeys   = 8
	membersOf    = 3
)

// past is when documents have expired, future when they do not yet.
var past, future = time.UnixMilli(1_000_000_000_000).UTC(), time.UnixMilli(4_000_000_000_000).UTC()

func fields(e ...any) bson.D {
	d := make(bson.D, 0, len(e)/2)
	for i := 0; i < len(e); i += 2 {
		d = append(d, bson.E{Key: e[i].(string), Value: e[i+1]}) //nolint:forcetypeassert // names
	}
	return d
}

// majority is what rare writes with: its invariants must survive failovers.
var majority = bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}

// prepare creates the collections.
func (o *rare) prepare(ctx context.Context) error {
	index := func(name string, key bson.D, more ...bson.E) bson.D {
		return append(fields("key", key, "name", name), more...)
	}
	docs := func(n int, of func(i int) bson.D) (list bson.A) {
		for i := range n {
			list = append(list, of(i))
		}
		return list
	}
	for _, cmd := range []bson.D{
		fields("createIndexes", pairs, "indexes", bson.A{index("v_1", one("v", int32(1)), bson.E{Key: "unique", Value: true})}),
		fields("insert", pairs, "documents", docs(pairsKeys, func(i int) bson.D { return fields("_id", int32(i), "v", int32(i)) })),
		fields("insert", accounts, "documents", docs(accountsKeys, func(i int) bson.D { return fields("_id", int32(i), "amount", int64(balance)) })),
		fields("insert", groups, "documents", docs(groupsKeys*membersOf, func(i int) bson.D { return fields("_id", int32(i), "stamp", int64(0)) })),
		o.createClustered("name", "clustered"),
		fields("createIndexes", storm, "indexes", bson.A{index("k_1", one("k", int32(1))), index("at_1", one("at", int32(1)), bson.E{Key: "expireAfterSeconds", Value: int32(1 << 30)})}),
		fields("createIndexes", expiring, "indexes", bson.A{index("at_1", one("at", int32(1)), bson.E{Key: "expireAfterSeconds", Value: int32(10)})}),
	} {
		if _, err := o.all(ctx, o.cfg.DB, cmd); err != nil {
			return err
		}
	}
	return nil
}

// createClustered returns the command that creates the clustered collection, which is a plain one where there can be no other.
func (o *rare) createClustered(more ...any) bson.D {
	if o.cfg.Before6 {
		return fields("create", clustered)
	}
	return fields("create", clustered, "clusteredIndex", fields(append([]any{"key", one("_id", int32(1)), "unique", true}, more...)...))
}

// all runs a command until a majority has what it did.
func (o *rare) all(ctx context.Context, db string, cmd bson.D) (bool, error) {
	ok, err := o.try(ctx, db, append(cmd, majority))
	if ok {
		o.w.stats.rare.Add(1)
	}
	return ok, err
}

// steps are what rare does.
var steps = []struct {
	name string
	do   func(*rare, context.Context) error
}{
	{"exchange", (*rare).exchange},
	{"transfer", (*rare).transfer},
	{"applyOps", (*rare).group},
	{"clustered", (*rare).rewrite},
	{"collMod", (*rare).modify},
	{"expire", (*rare).expire},
	{"out", (*rare).out},
	{"merge", (*rare).merge},
	{"buckets", (*rare).rebucket},
	{"users", (*rare).users},
}

func (o *rare) step(ctx context.Context) error {
	s := steps[o.rnd.IntN(len(steps))]
	if err := s.do(o, ctx); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// readsFor is how long reads are retried: on a loaded machine one election may follow another.
const readsFor = 5 * time.Minute

// read returns the documents of a collection in the order of _id.
func read(ctx context.Context, c mongo.Caller, db, coll string) ([]bson.Raw, error) {
	body, err := bson.Marshal(fields("find", coll, "sort", one("_id", int32(1)), "batchSize", int32(100_000), "singleBatch", true))
	if err != nil {
		return nil, err
	}
	reply, err := mongo.Patient{Caller: c, Retry: mongo.Retry{For: readsFor, Again: func(err error) bool {
		d := dispositionOf(err)
		return d == lost || d == conflict || testclient.Interrupted(err)
	}}}.Call(ctx, mongo.Command{DB: db, Body: body})
	if err != nil {
		return nil, fmt.Errorf("traffic: read %s.%s: %w", db, coll, err)
	}
	values, err := reply.Lookup("cursor", "firstBatch").Array().Values()
	var docs []bson.Raw
	for _, v := range values {
		docs = append(docs, v.Document())
	}
	return docs, err
}
