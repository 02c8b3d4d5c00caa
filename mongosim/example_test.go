package mongosim_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/mongosim/fault"
)

// timeout is for everything that one example does.
const timeout = time.Minute

// must ends an example that did not work.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// start starts a set of three members.
func start(ctx context.Context) *mongosim.Set {
	// What the examples do with a primary that is cut off takes less than that, on any machine.
	set, err := mongosim.Start(ctx, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: 3 * time.Second})
	must(err)
	return set
}

// collection returns a collection of a new client, which done disconnects.
func collection(uri string) (c *mongo.Collection, done func()) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	must(err)
	return client.Database("shop").Collection("orders"), func() { must(client.Disconnect(context.Background())) }
}

// only returns a collection of a new client that is connected to one member.
func only(ctx context.Context, m *mongosim.Member) (c *mongo.Collection, done func()) {
	c, done = collection("mongodb://" + m.Address() + "/?directConnection=true")
	must(c.Database().Client().Ping(ctx, nil))
	return c, done
}

// A set is started, a driver connects to it, writes and reads. In a test StartTest takes
// the place of Start and Close.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	set, err := mongosim.Start(ctx, mongosim.Options{Members: 3, Dialect: "7.0", Seed: 1})
	must(err)
	defer set.Close()

	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()))
	must(err)
	defer client.Disconnect(ctx) //nolint:errcheck // an example

	orders := client.Database("shop").Collection("orders")
	_, err = orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}, {Key: "total", Value: 9.5}})
	must(err)
	var order struct{ Total float64 }
	must(orders.FindOne(ctx, bson.D{{Key: "_id", Value: 1}}).Decode(&order))
	fmt.Println(order.Total)
	// Output: 9.5
}

// The primary steps down. The driver finds the new one, and retries the write.
func Example_stepDown() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()
	orders, done := collection(set.URI())
	defer done()

	old := set.Primary()
	must(set.StepDown(ctx))

	_, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	must(err)
	status, _ := set.Primary().Status()
	fmt.Println("another primary:", set.Primary() != old)
	fmt.Println("in a higher term:", status.Term > 1)
	// Output:
	// another primary: true
	// in a higher term: true
}

// The primary is cut off from the other members. It does not know yet, and accepts a
// write, but a majority cannot acknowledge it. The others elect a primary.
func Example_partition() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()

	old := set.Primary()
	orders, done := only(ctx, old)
	defer done()
	set.Isolate(old.ID())

	majority := &writeconcern.WriteConcern{W: "majority"}
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	_, err := orders.Clone(options.Collection().SetWriteConcern(majority)).InsertOne(short, bson.D{{Key: "_id", Value: 1}})
	fmt.Println("acknowledged by a majority:", err == nil)

	primary, err := set.AwaitNewPrimary(ctx, old)
	must(err)
	fmt.Println("the others have a primary:", primary != old)

	set.HealAll()
	must(set.AwaitSynced(ctx))
	status, _ := old.Status()
	fmt.Println("the old one is", status.State)
	// Output:
	// acknowledged by a majority: false
	// the others have a primary: true
	// the old one is SECONDARY
}

// A write that only the old primary has is rolled back when it rejoins the others, which
// have elected a primary and written to it meanwhile.
func Example_rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()

	old := set.Primary()
	before, _ := old.Status()
	orders, done := only(ctx, old)
	defer done()
	set.Isolate(old.ID())
	w1 := options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 1})
	_, err := orders.Clone(w1).InsertOne(ctx, bson.D{{Key: "_id", Value: "lost"}})
	must(err)

	primary, err := set.AwaitNewPrimary(ctx, old)
	must(err)
	others, done := only(ctx, primary)
	defer done()
	_, err = others.InsertOne(ctx, bson.D{{Key: "_id", Value: "kept"}})
	must(err)

	set.HealAll()
	must(set.AwaitSynced(ctx))
	after, _ := old.Status()
	fmt.Println("rolled back:", after.RollbackID > before.RollbackID)

	everywhere, done := collection(set.URI())
	defer done()
	err = everywhere.FindOne(ctx, bson.D{{Key: "_id", Value: "lost"}}).Err()
	fmt.Println("the write is gone:", errors.Is(err, mongo.ErrNoDocuments))
	fmt.Println("the other one is not:", everywhere.FindOne(ctx, bson.D{{Key: "_id", Value: "kept"}}).Err() == nil)
	// Output:
	// rolled back: true
	// the write is gone: true
	// the other one is not: true
}

// A fault from a scenario file makes the link to the clients slow.
func ExampleSet_Fault() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()
	orders, done := only(ctx, set.Primary())
	defer done()
	_, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	must(err)

	slow, err := fault.Parse("latency 100ms out")
	must(err)
	must(set.Fault(set.Primary().ID(), mongosim.Client, slow))

	began := time.Now()
	must(orders.FindOne(ctx, bson.D{{Key: "_id", Value: 1}}).Err())
	fmt.Println("later by 100ms:", time.Since(began) >= 100*time.Millisecond)
	// Output: later by 100ms: true
}

// The next insert is answered with an error: as if the primary were stepping down.
func ExampleMember_FailCommand() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()

	spec, err := bson.Marshal(bson.D{
		{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert"}}, {Key: "errorCode", Value: 11602}}},
	})
	must(err)
	must(set.Primary().FailCommand(ctx, spec))

	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()).SetRetryWrites(false))
	must(err)
	defer client.Disconnect(ctx) //nolint:errcheck // an example
	_, err = client.Database("shop").Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	if refusal, ok := errors.AsType[mongo.CommandError](err); ok {
		fmt.Println(refusal.Code, refusal.Name)
	}
	// Output: 11602 InterruptedDueToReplStateChange
}

// A line of a scenario file.
func ExampleSet_Do() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	set := start(ctx)
	defer set.Close()

	for _, line := range []string{"kill 2", "stepdown", "start 2"} {
		action, err := mongosim.ParseAction(line)
		must(err)
		must(set.Do(ctx, action))
	}
	must(set.AwaitSynced(ctx))
	status, up := set.Member(2).Status()
	fmt.Println(up, status.State)
	// Output: true SECONDARY
}
