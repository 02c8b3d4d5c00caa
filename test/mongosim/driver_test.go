package mongosim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// connect connects the official driver without any special option.
func connect(t *testing.T, uri string, more ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, more...)...)
	if err != nil {
		t.Fatalf("connect %s: %v", uri, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Errorf("disconnect: %v", err)
		}
	})
	return client
}

// dialects are all server versions that are played.
var dialects = []string{"4.4", "5.0", "6.0", "7.0", "8.0"}

func TestDriverCRUD(t *testing.T) {
	for _, dialect := range dialects {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			set := mongosim.StartTest(t, mongosim.Options{Dialect: dialect, Seed: 1})
			ctx := t.Context()
			coll := connect(t, set.URI()).Database("app").Collection("people")

			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "name", Value: "ada"}}); err != nil {
				t.Fatal(err)
			}
			many := make([]any, 1000)
			for i := range many {
				many[i] = bson.D{{Key: "_id", Value: 1000 + i}, {Key: "x", Value: i % 10}}
			}
			must.Get(coll.InsertMany(ctx, many))(t)
			up := must.Get(coll.UpdateMany(ctx, bson.D{{Key: "x", Value: 3}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: 100}}}}))(t)
			if up.MatchedCount != 100 || up.ModifiedCount != 100 {
				t.Errorf("UpdateMany matched %d and modified %d, want 100", up.MatchedCount, up.ModifiedCount)
			}
			del := must.Get(coll.DeleteMany(ctx, bson.D{{Key: "x", Value: bson.D{{Key: "$gte", Value: 100}}}}))(t)
			if del.DeletedCount != 100 {
				t.Errorf("DeleteMany deleted %d, want 100", del.DeletedCount)
			}
			if n := must.Get(coll.CountDocuments(ctx, bson.D{}))(t); n != 901 {
				t.Errorf("CountDocuments is %d, want 901", n)
			}
			if n := must.Get(coll.EstimatedDocumentCount(ctx))(t); n != 901 {
				t.Errorf("EstimatedDocumentCount is %d, want 901", n)
			}
			cur := must.Get(coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetBatchSize(100)))(t)
			var all []bson.Raw
			if err := cur.All(ctx, &all); err != nil || len(all) != 901 {
				t.Errorf("Find returned %d documents (%v), want 901", len(all), err)
			}
			_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
			if !mongo.IsDuplicateKeyError(err) {
				t.Errorf("second insert of _id 1: %v, want a duplicate key error", err)
			}
			var got struct{ Name string }
			err = coll.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "name", Value: "grace"}}}},
				options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&got)
			if err != nil || got.Name != "grace" {
				t.Errorf("FindOneAndUpdate gave %+v, %v", got, err)
			}
			models := []mongo.WriteModel{
				mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: "b1"}}),
				mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: "b2"}}).SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "y", Value: 1}}}}).SetUpsert(true),
				mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: "b1"}}),
				mongo.NewReplaceOneModel().SetFilter(bson.D{{Key: "_id", Value: "b2"}}).SetReplacement(bson.D{{Key: "z", Value: 2}}),
			}
			bulk := must.Get(coll.BulkWrite(ctx, models))(t)
			if bulk.InsertedCount != 1 || bulk.UpsertedCount != 1 || bulk.DeletedCount != 1 || bulk.ModifiedCount != 1 {
				t.Errorf("BulkWrite result %+v", bulk)
			}
			name := must.Get(coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "name", Value: 1}}, Options: options.Index().SetSparse(true)}))(t)
			if name != "name_1" {
				t.Errorf("index name %q", name)
			}
			specs := must.Get(coll.Indexes().ListSpecifications(ctx))(t)
			if len(specs) != 2 {
				t.Errorf("%d indexes, want 2", len(specs))
			}
		})
	}
}

func TestDriverTransaction(t *testing.T) {
	for _, dialect := range dialects {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			set := mongosim.StartTest(t, mongosim.Options{Members: 3, Dialect: dialect, Seed: 2})
			ctx := t.Context()
			client := connect(t, set.URI(), options.Client().SetWriteConcern(writeconcern.Majority()))
			db := client.Database("bank")
			must.Get(db.Collection("a").InsertMany(ctx, []any{
				bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 100}}, bson.D{{Key: "_id", Value: 2}, {Key: "n", Value: 100}},
			}))(t)
			session := must.Get(client.StartSession())(t)
			defer session.EndSession(ctx)
			transfer := func(ctx context.Context) (any, error) {
				for id, by := range map[int]int{1: -10, 2: 10} {
					if _, err := db.Collection("a").UpdateByID(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: by}}}}); err != nil {
						return nil, err
					}
				}
				return nil, nil
			}
			if _, err := session.WithTransaction(ctx, transfer); err != nil {
				t.Fatalf("transaction: %v", err)
			}
			boom := errors.New("boom")
			_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
				if _, err := db.Collection("a").DeleteMany(ctx, bson.D{}); err != nil {
					return nil, err
				}
				return nil, boom
			})
			if !errors.Is(err, boom) {
				t.Errorf("aborted transaction: %v", err)
			}
			majority := db.Collection("a", options.Collection().SetReadConcern(readconcern.Majority()))
			var docs []struct {
				ID int `bson:"_id"`
				N  int
			}
			cur := must.Get(majority.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))(t)
			must.Succeed(t, cur.All(ctx, &docs))
			if len(docs) != 2 || docs[0].N != 90 || docs[1].N != 110 {
				t.Errorf("after the transactions: %+v", docs)
			}
		})
	}
}

// TestDriverConflict has many clients move money at once: conflicts abort, the
// driver retries, and nothing is lost or made.
func TestDriverConflict(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 3})
	ctx := t.Context()
	client := connect(t, set.URI())
	coll := client.Database("bank").Collection("a")
	const accounts, workers, rounds = 4, 6, 20
	for i := range accounts {
		must.Get(coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 100}}))(t)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			session, err := client.StartSession()
			if err != nil {
				t.Error(err)
				return
			}
			defer session.EndSession(ctx)
			for r := range rounds {
				from, to := (w+r)%accounts, (w+r+1)%accounts
				_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
					if _, err := coll.UpdateByID(ctx, from, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: -1}}}}); err != nil {
						return nil, err
					}
					return coll.UpdateByID(ctx, to, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
				})
				if err != nil {
					t.Errorf("worker %d round %d: %v", w, r, err)
				}
			}
		})
	}
	wg.Wait()
	cur := must.Get(coll.Aggregate(ctx, mongo.Pipeline{{{Key: "$group", Value: bson.D{
		{Key: "_id", Value: nil}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$n"}}},
	}}}}))(t)
	var sums []struct{ Sum int }
	if err := cur.All(ctx, &sums); err != nil || len(sums) != 1 || sums[0].Sum != 100*accounts {
		t.Errorf("sum %+v, %v, want %d", sums, err, 100*accounts)
	}
}

// TestDriverFailover writes through changes of the primary with retryable writes:
// every acknowledged write is there once.
func TestDriverFailover(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 4})
	ctx := t.Context()
	client := connect(t, set.URI(), options.Client().SetWriteConcern(writeconcern.Majority()))
	coll := client.Database("app").Collection("log")
	stop := make(chan struct{})
	var acknowledged []int
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err == nil {
				acknowledged = append(acknowledged, i)
			} else if mongo.IsDuplicateKeyError(err) {
				t.Errorf("insert %d was executed twice: %v", i, err)
			}
		}
	})
	for range 3 {
		if err := set.StepDown(ctx); err != nil {
			t.Error(err)
			break
		}
	}
	primary := must.Get(set.AwaitPrimary(ctx))(t)
	if err := primary.Kill(); err != nil {
		t.Error(err)
	}
	must.Get(set.AwaitPrimary(ctx))(t)
	if err := primary.Start(); err != nil {
		t.Error(err)
	}
	if err := set.AwaitSynced(ctx); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	n := must.Get(coll.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: acknowledged}}}}))(t)
	if int(n) != len(acknowledged) || n == 0 {
		t.Errorf("%d of %d acknowledged inserts are there", n, len(acknowledged))
	}
	t.Logf("%d inserts acknowledged over four changes of the primary", len(acknowledged))
}

func TestDriverReadPreference(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 5, MemberOptions: []mongosim.MemberOptions{
		{Tags: map[string]string{"dc": "a"}}, {Tags: map[string]string{"dc": "b"}}, {Tags: map[string]string{"dc": "c"}},
	}})
	ctx := t.Context()
	asked := make(chan string, 100)
	monitor := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "find" {
			asked <- e.ConnectionID
		}
	}}
	client := connect(t, set.URI(), options.Client().SetMonitor(monitor), options.Client().SetWriteConcern(writeconcern.Majority()))
	must.Get(client.Database("app").Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}))(t)
	must.Succeed(t, set.AwaitSynced(ctx))
	primary := slices.Index(set.Members(), set.Primary())
	one, two := (primary+1)%3, (primary+2)%3
	dc := func(i int) readpref.Option { return readpref.WithTags("dc", string(rune('a'+i))) }
	for _, c := range []struct {
		pref *readpref.ReadPref
		want []int
	}{
		{readpref.Primary(), []int{primary}},
		{readpref.PrimaryPreferred(), []int{primary}},
		{readpref.Secondary(), []int{one, two}},
		{readpref.Secondary(dc(two)), []int{two}},
		{readpref.Nearest(dc(one)), []int{one}},
	} {
		coll := client.Database("app").Collection("c", options.Collection().SetReadPreference(c.pref))
		if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: 1}}).Err(); err != nil {
			t.Errorf("%s: %v", c.pref, err)
			continue
		}
		host := <-asked
		ok := false
		for _, i := range c.want {
			ok = ok || host[:len(set.Member(i).Host())] == set.Member(i).Host()
		}
		if !ok {
			t.Errorf("%s asked %s, want a member of %v", c.pref, host, c.want)
		}
	}
}

// TestDriverCausal reads its own writes from secondaries that lag.
func TestDriverCausal(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 6})
	ctx := t.Context()
	client := connect(t, set.URI(), options.Client().SetReadPreference(readpref.Secondary()),
		options.Client().SetReadConcern(readconcern.Majority()), options.Client().SetWriteConcern(writeconcern.Majority()))
	session := must.Get(client.StartSession(options.Session().SetCausalConsistency(true)))(t)
	defer session.EndSession(ctx)
	err := mongo.WithSession(ctx, session, func(ctx context.Context) error {
		coll := client.Database("app").Collection("c")
		for i := range 50 {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
				return err
			}
			if err := coll.FindOne(ctx, bson.D{{Key: "_id", Value: i}}).Err(); err != nil {
				return fmt.Errorf("read own write %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDriverTail tails the oplog as an ordinary client does.
func TestDriverTail(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 7})
	ctx := t.Context()
	client := connect(t, set.URI())
	oplog := client.Database("local").Collection("oplog.rs", options.Collection().SetReadConcern(readconcern.Majority()))
	var last struct{ TS bson.Timestamp }
	err := oplog.FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Decode(&last)
	if err != nil {
		t.Fatal(err)
	}
	cur := must.Get(oplog.Find(ctx, bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: last.TS}}}},
		options.Find().SetCursorType(options.TailableAwait).SetMaxAwaitTime(5*time.Second)))(t)
	defer cur.Close(ctx) //nolint:errcheck // the test is over
	for i := range 20 {
		must.Get(client.Database("app").Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: i}}))(t)
		for {
			if !cur.Next(ctx) {
				t.Fatalf("the tail ended: %v", cur.Err())
			}
			if ns, _ := cur.Current.Lookup("ns").StringValueOK(); ns == "app.c" {
				break
			}
		}
		if id := cur.Current.Lookup("o", "_id").AsInt64(); id != int64(i) && cur.Current.Lookup("op").StringValue() == "i" {
			t.Fatalf("entry %s, want the insert of %d", cur.Current, i)
		}
	}
}
