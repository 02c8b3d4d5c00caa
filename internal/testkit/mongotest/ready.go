package mongotest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	pollEvery = 50 * time.Millisecond
	// The client's default of 30 s would hide for that long that a server has
	// not come up, and why.
	selectWithin = 2 * time.Second
)

// poll calls probe until it returns nil. Where ctx ends first the error has
// both its cause and probe's last answer.
func poll(ctx context.Context, what string, probe func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// connect returns a client for the time of the set's start. It does not dial.
func connect(uri string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(selectWithin))
}

// direct returns the connection string for one member, whatever its state.
func direct(host string) string { return "mongodb://" + host + "/?directConnection=true" }

type helloReply struct {
	SetName           string `bson:"setName"`
	IsWritablePrimary bool   `bson:"isWritablePrimary"`
}

func hello(ctx context.Context, client *mongo.Client) (helloReply, error) {
	var reply helloReply
	err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&reply)
	return reply, err
}

// waitAnswering returns once the server at host answers.
func waitAnswering(ctx context.Context, t testing.TB, host string) error {
	client, err := connect(direct(host))
	if err != nil {
		return err
	}
	defer disconnect(ctx, t, client)
	return poll(ctx, "the server answers", func(ctx context.Context) error {
		_, err := hello(ctx, client)
		return err
	})
}

// initiate makes the members at hosts a replica set, by way of the first one.
func initiate(ctx context.Context, first *mongo.Client, setName string, hosts []string, electionTimeout time.Duration) error {
	members := make(bson.A, len(hosts))
	for i, host := range hosts {
		members[i] = bson.D{{Key: "_id", Value: i}, {Key: "host", Value: host}}
	}
	config := bson.D{{Key: "_id", Value: setName}, {Key: "members", Value: members}}
	if electionTimeout > 0 {
		config = append(config, bson.E{Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: electionTimeout.Milliseconds()}}})
	}
	cmd := bson.D{{Key: "replSetInitiate", Value: config}}
	if err := first.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
		return fmt.Errorf("initiate replica set %s: %w", setName, err)
	}
	return nil
}

// waitReady returns once the set behind uri has a writable primary and count
// members that can be read from, with the primary's version.
func waitReady(ctx context.Context, uri, setName string, count int) (v Version, err error) {
	client, err := connect(uri)
	if err != nil {
		return Version{}, fmt.Errorf("connect to %s: %w", setName, err)
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()

	err = poll(ctx, "there is a writable primary", func(ctx context.Context) error {
		reply, err := hello(ctx, client)
		switch {
		case err != nil:
			return err
		case reply.SetName != setName:
			return fmt.Errorf("the server says it is in set %q", reply.SetName)
		case !reply.IsWritablePrimary:
			return errors.New("the server says it is not a writable primary")
		}
		return nil
	})
	if err != nil {
		return Version{}, err
	}
	err = poll(ctx, "all members are readable", func(ctx context.Context) error {
		return readable(ctx, client, count)
	})
	if err != nil {
		return Version{}, err
	}
	return readVersion(ctx, client)
}

// readable returns nil if the set has count members, each of them a primary or
// a secondary.
func readable(ctx context.Context, client *mongo.Client, count int) error {
	const primary, secondary = 1, 2
	var status struct {
		Members []struct {
			Name  string `bson:"name"`
			State int    `bson:"state"`
		} `bson:"members"`
	}
	cmd := bson.D{{Key: "replSetGetStatus", Value: 1}}
	if err := client.Database("admin").RunCommand(ctx, cmd).Decode(&status); err != nil {
		return err
	}
	if len(status.Members) != count {
		return fmt.Errorf("the set has %d members of %d", len(status.Members), count)
	}
	for _, m := range status.Members {
		if m.State != primary && m.State != secondary {
			return fmt.Errorf("member %s is in state %d", m.Name, m.State)
		}
	}
	return nil
}
