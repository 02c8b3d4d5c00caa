package mongod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// pollEvery is the polling interval for a server's state.
	pollEvery = 5 * time.Millisecond
	// The client's default of 30 s would delay the error that long.
	selectTime = time.Second
)

// secondaryState is the state of a member that has synced.
const secondaryState = 2

// server is a direct connection to one server, whatever its state.
type server struct {
	address string
	client  *mongo.Client
}

// connect makes one. It does not dial.
func connect(address string) (*server, error) {
	client, err := mongo.Connect(options.Client().
		ApplyURI("mongodb://" + address + "/?directConnection=true").SetServerSelectionTimeout(selectTime))
	if err != nil {
		return nil, fmt.Errorf("connect to the server at %s: %w", address, err)
	}
	return &server{address: address, client: client}, nil
}

func (s *server) close(ctx context.Context) {
	_ = s.client.Disconnect(context.WithoutCancel(ctx)) // nothing is in flight
}

// run runs a command on admin and reads its reply into reply, unless that is nil.
func (s *server) run(ctx context.Context, cmd bson.D, reply any) error {
	answer := s.client.Database("admin").RunCommand(ctx, cmd)
	err := answer.Err()
	if err == nil && reply != nil {
		err = answer.Decode(reply)
	}
	if err != nil {
		return fmt.Errorf("%s at %s: %w", cmd[0].Key, s.address, err)
	}
	return nil
}

// status is a member's replSetGetStatus.
type status struct {
	State   int
	Applied oplog.OpTime
}

func (s *server) status(ctx context.Context) (status, error) {
	var reply struct {
		MyState int `bson:"myState"`
		Optimes struct {
			Applied struct {
				TS bson.Timestamp `bson:"ts"`
				T  int64          `bson:"t"`
			} `bson:"appliedOpTime"`
		} `bson:"optimes"`
	}
	if err := s.run(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}, &reply); err != nil {
		return status{}, err
	}
	applied := reply.Optimes.Applied
	return status{State: reply.MyState, Applied: oplog.OpTime{TS: applied.TS, Term: applied.T}}, nil
}

// await polls until probe returns nil. If ctx ends first the error has probe's
// last one.
func await(ctx context.Context, what string, probe func(context.Context) error) error {
	return awaitEvery(ctx, pollEvery, what, probe)
}

func awaitEvery(ctx context.Context, every time.Duration, what string, probe func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := probe(ctx)
		switch {
		case err == nil:
			return nil
		// The driver may notice the end of the time limit before ctx does.
		case ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded):
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, errors.Join(context.Cause(ctx), last))
		}
	}
}

// listens blocks until a server listens at an address. The driver, which checks for a
// missing server only twice a second, is used afterwards.
func listens(ctx context.Context, address string) error {
	return await(ctx, "the server at "+address+" listens", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// writable returns once the server accepts writes.
func (s *server) writable(ctx context.Context) error {
	return await(ctx, "the server at "+s.address+" is a writable primary", func(ctx context.Context) error {
		var reply struct {
			Primary bool `bson:"isWritablePrimary"`
		}
		err := s.run(ctx, bson.D{{Key: "hello", Value: 1}}, &reply)
		if err == nil && !reply.Primary {
			err = errors.New("it says that it is not")
		}
		return err
	})
}

// reaches returns once the server is a secondary and has applied an entry.
func (s *server) reaches(ctx context.Context, entry oplog.OpTime) error {
	return await(ctx, "the secondary at "+s.address+" has "+entry.String(), func(ctx context.Context) error {
		now, err := s.status(ctx)
		if err == nil && (now.State != secondaryState || now.Applied.Before(entry)) {
			err = fmt.Errorf("it is in state %d, at %s", now.State, now.Applied)
		}
		return err
	})
}

// entries counts the log after before up to last, without no-ops.
func (s *server) entries(ctx context.Context, before, last oplog.OpTime) (int64, error) {
	n, err := s.client.Database("local").Collection("oplog.rs").CountDocuments(ctx, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: before.TS}, {Key: "$lte", Value: last.TS}}},
		{Key: "op", Value: bson.D{{Key: "$ne", Value: "n"}}},
	})
	if err != nil {
		return 0, fmt.Errorf("count the entries of the server at %s: %w", s.address, err)
	}
	return n, nil
}
