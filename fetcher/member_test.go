package fetcher

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// member is one member, read through the driver.
type member struct {
	host string
	mongo.Caller
}

// connect connects to a member, as a user where login is "NAME:PASSWORD@".
func connect(t testing.TB, m *mongosim.Member, login ...string) *member {
	t.Helper()
	opts, err := driver.Parse(driver.Config{
		URI: "mongodb://" + strings.Join(login, "") + m.Host() + "/?directConnection=true", AppName: mongosim.Stage,
	})
	must.Succeed(t, err)
	source, err := driver.Open(t.Context(), opts)
	must.Succeed(t, err)
	t.Cleanup(source.Close)
	return &member{m.Host(), source.Member(m.Host())}
}

// insert writes {_id: id} into app.c and waits for w members.
func insert(ctx context.Context, m *mongosim.Member, id, w any) error {
	reply, err := m.Call(ctx, marshal(bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}},
		{Key: "$db", Value: "app"},
	}))
	if err == nil {
		err = mongo.Check(reply)
	}
	if err == nil {
		if refused, _ := mongo.WriteErrors(reply); len(refused) > 0 {
			err = &refused[0].Error
		} else if e := mongo.ConcernError(reply); e != nil {
			err = e
		}
	}
	return err
}

// newest is the last entry that a member has applied.
func newest(t testing.TB, m *mongosim.Member) oplog.OpTime {
	t.Helper()
	v, ok := m.Status()
	if !ok {
		t.Fatalf("member %d is down", m.ID())
	}
	return v.LastApplied
}
