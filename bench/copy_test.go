package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"              //nolint:depguard // It is what we compare with.
	"go.mongodb.org/mongo-driver/v2/mongo/options"      //nolint:depguard // As above.
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern" //nolint:depguard // As above.
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// perInsert is how many documents the bare loop reads and writes at once.
	perInsert = 1000
	// lanes is how many writers a link has by default.
	lanes = 16
)

// end is a set, by our connection and by the driver's.
type end struct {
	set    *mdb.Set
	client *mongo.Client
}

// copying is a source with a collection d.c, and a target.
type copying struct {
	testing.TB
	source, target end
	store          *checkpoint.Store
	// docs is how many documents there are, all of them of size bytes.
	docs, size int
	// number counts the copies of the link.
	number int64
}

func connect(t testing.TB, seed int64) end {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, TTLInterval: -1, OplogBytes: 256 << 20})
	o, err := mdb.Parse(mdb.Config{URI: set.URI()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := mdb.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()).SetWriteConcern(writeconcern.W1()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return end{set: s, client: client}
}

// newCopying fills a source with documents of size bytes, each with an ObjectId, a
// number, a date, and random text that makes up the rest.
func newCopying(t testing.TB, docs, size int) *copying {
	t.Helper()
	c := &copying{TB: t, source: connect(t, 41), target: connect(t, 42), docs: docs, size: size}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, size-docOverhead)
	coll := c.source.client.Database("d").Collection("c")
	for part := range slices.Chunk(make([]struct{}, docs), perInsert) {
		list := make([]any, 0, len(part))
		for range part {
			for i := range text {
				text[i] = byte('a' + rnd.IntN(26))
			}
			list = append(list, bson.D{
				{Key: "_id", Value: bson.NewObjectID()},
				{Key: "n", Value: rnd.Int32()},
				{Key: "at", Value: bson.DateTime(1_700_000_000_000)},
				{Key: "text", Value: string(text)},
			})
		}
		if _, err := coll.InsertMany(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	c.createLink()
	return c
}

// docOverhead is what a document has beside its text, in bytes.
const docOverhead = 4 + (1 + 4 + 12) + (1 + 2 + 4) + (1 + 3 + 8) + (1 + 5 + 4 + 1) + 1

func (c *copying) createLink() {
	c.Helper()
	var err error
	if c.store, err = checkpoint.New(checkpoint.Config{Target: c.target.set, Link: "bench"}); err != nil {
		c.Fatal(err)
	}
	at := oplog.NewOpTime(100, 1, 1)
	if err := c.store.Create(c.Context(), checkpoint.State{
		Source:  checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: bson.RawValue{Type: bson.TypeObjectID, Value: []byte("123456789012")}},
		Writers: lanes, Fingerprint: "f", Applied: at, AppliedWall: 100_000, FetchFrom: at,
		Copy: &checkpoint.Copy{Number: 1, Phase: checkpoint.Copying, Host: "a:1", RBID: 1, FetchFrom: at, Begin: at, Started: time.UnixMilli(1_700_000_000_000)},
	}); err != nil {
		c.Fatal(err)
	}
	c.number = 1
}

// empty makes the target's collection anew.
func (c *copying) empty() {
	c.Helper()
	db := c.target.client.Database("d")
	if err := db.Collection("c").Drop(c.Context()); err != nil {
		c.Fatal(err)
	}
	if err := db.CreateCollection(c.Context(), "c"); err != nil {
		c.Fatal(err)
	}
}

// collection is d.c as it would be listed.
func (c *copying) collection() *checkpoint.CopyCollection {
	c.Helper()
	specs, err := c.source.client.Database("d").ListCollectionSpecifications(c.Context(), bson.D{{Key: "name", Value: "c"}})
	if err != nil || len(specs) != 1 {
		c.Fatalf("list d.c: %v, %v", specs, err)
	}
	id, err := bson.Marshal(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}})
	if err != nil {
		c.Fatal(err)
	}
	return &checkpoint.CopyCollection{
		UUID: oplog.UUID(specs[0].UUID.Data), NS: "d.c", Options: specs[0].Options, IDIndex: id,
		Docs: int64(c.docs), Bytes: int64(c.docs * c.size), State: checkpoint.CollectionCreated,
	}
}

// ours copies d.c as a link does, from the division into ranges to the note that it
// is all there.
func (c *copying) ours(workers int) time.Duration {
	c.Helper()
	ctx := c.Context()
	hold := c.hold()
	coll := c.collection()
	c.empty()
	cloner, err := clone.New(clone.Config{
		Source: c.source.set, Target: c.target.set, ReadConcern: clone.Majority,
		// So that all workers have something to do, and one of them all of it.
		RangeBytes: int64(c.docs * c.size / workers),
	})
	if err != nil {
		c.Fatal(err)
	}
	if err := hold.AddCollections(ctx, []checkpoint.CopyCollection{*coll}); err != nil {
		c.Fatal(err)
	}

	start := time.Now()
	ranges, err := cloner.Split(ctx, coll, coll.NS)
	if err == nil {
		err = hold.Lane(0).SaveCollection(ctx, coll, ranges)
	}
	if err != nil {
		c.Fatal(err)
	}
	g, within := errgroup.WithContext(ctx)
	next := make(chan checkpoint.CopyRange, len(ranges))
	for _, r := range ranges {
		next <- r
	}
	close(next)
	for i := range workers {
		g.Go(func() error {
			for r := range next {
				if _, err := cloner.Copy(within, hold.Lane(i), coll, coll.NS, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		c.Fatal(err)
	}
	coll.State = checkpoint.CollectionFilled
	if err := hold.Lane(0).SaveCollection(ctx, coll, nil); err != nil {
		c.Fatal(err)
	}
	took := time.Since(start)
	c.check()
	return took
}

// hold takes hold of the link, with another copy, so that it is nothing done.
func (c *copying) hold() *checkpoint.Hold {
	c.Helper()
	hold, err := c.store.Begin(c.Context(), 0)
	if err != nil {
		c.Fatal(err)
	}
	old := *hold.Copy()
	old.Number++
	if err := hold.BeginCopy(c.Context(), old, 100_000); err != nil {
		c.Fatal(err)
	}
	if hold, err = c.store.Begin(c.Context(), 0); err != nil {
		c.Fatal(err)
	}
	if err := hold.DropCopies(c.Context(), old.Number); err != nil {
		c.Fatal(err)
	}
	return hold
}

// bare copies d.c by loops that read a cursor of the driver and write what it
// gives with InsertMany.
func (c *copying) bare(loops int) time.Duration {
	c.Helper()
	c.empty()
	filters := c.filters(loops)
	start := time.Now()
	g, ctx := errgroup.WithContext(c.Context())
	for _, f := range filters {
		g.Go(func() error { return c.loop(ctx, f) })
	}
	if err := g.Wait(); err != nil {
		c.Fatal(err)
	}
	took := time.Since(start)
	c.check()
	return took
}

func (c *copying) loop(ctx context.Context, filter bson.D) error {
	from, to := c.source.client.Database("d").Collection("c"), c.target.client.Database("d").Collection("c")
	cursor, err := from.Find(ctx, filter, options.Find().SetBatchSize(perInsert))
	if err != nil {
		return err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has been read to its end, or something else is wrong
	batch := make([]any, 0, perInsert)
	for cursor.Next(ctx) {
		// Current is the cursor's, and what it was read from serves the next one.
		batch = append(batch, slices.Clone(cursor.Current))
		if len(batch) == perInsert || cursor.RemainingBatchLength() == 0 {
			if _, err := to.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false)); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return cursor.Err()
}

// filters divide the collection.
func (c *copying) filters(n int) []bson.D {
	c.Helper()
	if n == 1 {
		return []bson.D{{}}
	}
	cursor, err := c.source.client.Database("d").Collection("c").Find(c.Context(), bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}).SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		c.Fatal(err)
	}
	var ids []struct {
		ID bson.ObjectID `bson:"_id"`
	}
	if err := cursor.All(c.Context(), &ids); err != nil {
		c.Fatal(err)
	}
	var list []bson.D
	for i := range n {
		cond := bson.D{{Key: "$gte", Value: ids[i*len(ids)/n].ID}}
		if i < n-1 {
			cond = append(cond, bson.E{Key: "$lt", Value: ids[(i+1)*len(ids)/n].ID})
		}
		list = append(list, bson.D{{Key: "_id", Value: cond}})
	}
	return list
}

// check counts what is in the target.
func (c *copying) check() {
	c.Helper()
	reply, err := c.target.set.Call(c.Context(), call.Command{DB: "d", Body: must(bson.Marshal(bson.D{{Key: "count", Value: "c"}}))})
	if err != nil {
		c.Fatal(err)
	}
	if n, _ := reply.Lookup("n").AsInt64OK(); n != int64(c.docs) {
		c.Fatalf("%d documents were copied of %d", n, c.docs)
	}
}

func must(body []byte, err error) []byte {
	if err != nil {
		panic(fmt.Sprintf("marshal a command: %v", err))
	}
	return body
}
