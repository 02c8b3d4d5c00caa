package mongosim_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

const keyfile = "bm8gcGVyc29uIGtub3dzIHRoaXMga2V5"

// secured has a user of each kind that matters to replication.
func secured(t *testing.T) *mongosim.Set {
	t.Helper()
	return mongosim.StartTest(t, mongosim.Options{
		Members: 3, Seed: 1, Keyfile: keyfile,
		Users: []mongosim.User{
			{Name: "root", Password: "r:o/o@t", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}},
			{Name: "app", Password: "app", DB: "app", Roles: []mongosim.Role{{Name: "readWrite", DB: "app"}}},
			{Name: "tail", Password: "tail", Roles: []mongosim.Role{{Name: "read", DB: "local"}, {Name: "clusterMonitor", DB: "admin"}}},
			{Name: "nobody", Password: "nobody"},
		},
	})
}

func wantUnauthorized(t *testing.T, what string, err error) {
	t.Helper()
	if e, ok := errors.AsType[mongo.ServerError](err); !ok || !e.HasErrorCode(13) {
		t.Errorf("%s: %v, want code 13, Unauthorized", what, err)
	}
}

// TestAuthMembers: members talk to each other although nobody may without a login.
func TestAuthMembers(t *testing.T) {
	t.Parallel()
	set := secured(t)
	ctx := t.Context()
	root := connect(t, set.URIFor("root"), options.Client().SetWriteConcern(writeconcern.Majority()))
	coll := root.Database("app").Collection("c")
	must.Get(coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}))(t)
	must.Succeed(t, set.StepDown(ctx))
	must.Get(coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 2}}))(t)
	added := must.Get(set.AddMember(ctx, mongosim.MemberOptions{}))(t)
	must.Get(coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 3}}))(t)
	must.Succeed(t, set.AwaitSynced(ctx))
	if v, ok := added.Status(); !ok || v.State != oplog.MemberSecondary {
		t.Errorf("the added member is %s", v.State)
	}
}

// TestAuthLogin: a right password lets in, by SCRAM-SHA-256 too, a wrong one or an
// unknown name does not, and says nothing more.
func TestAuthLogin(t *testing.T) {
	t.Parallel()
	set := secured(t)
	ctx := t.Context()
	var status struct {
		AuthInfo struct {
			AuthenticatedUsers []struct{ User, DB string }
		}
	}
	for name, db := range map[string]string{"root": "admin", "app": "app"} {
		for _, mechanism := range []string{"", "SCRAM-SHA-256"} {
			uri := set.URIFor(name)
			if mechanism != "" {
				uri += "&authMechanism=" + mechanism
			}
			err := connect(t, uri).Database(db).RunCommand(ctx, bson.D{{Key: "connectionStatus", Value: 1}}).Decode(&status)
			users := status.AuthInfo.AuthenticatedUsers
			if err != nil || len(users) != 1 || users[0].User != name || users[0].DB != db {
				t.Errorf("%s by %q: %+v, %v", name, mechanism, status, err)
			}
		}
	}
	for what, uri := range map[string]string{
		"a wrong password":  strings.Replace(set.URIFor("tail"), "tail:tail@", "tail:wrong@", 1),
		"an unknown name":   strings.Replace(set.URIFor("tail"), "tail:tail@", "tale:tail@", 1),
		"another database":  strings.Replace(set.URIFor("app"), "authSource=app", "authSource=admin", 1),
		"a wrong key":       system(set, "wrong"),
		"an unknown scheme": set.URIFor("root") + "&authMechanism=PLAIN",
	} {
		short, cancel := context.WithTimeout(ctx, 60*time.Second)
		err := connect(t, uri).Ping(short, nil)
		cancel()
		if err == nil {
			t.Errorf("%s: let in", what)
			continue
		}
		if what == "an unknown scheme" {
			continue
		}
		// The driver's error of the handshake holds the server's as text.
		if !strings.Contains(err.Error(), "(AuthenticationFailed) Authentication failed.") {
			t.Errorf("%s: %v, want AuthenticationFailed", what, err)
		}
	}
}

// system is the connection string of the user that a keyfile stands for.
func system(set *mongosim.Set, key string) string {
	user := url.UserPassword("__system", key).String()
	return strings.Replace(set.URI(), "mongodb://", "mongodb://"+user+"@", 1) + "&authSource=local&authMechanism=SCRAM-SHA-256"
}

func TestAuthPrivileges(t *testing.T) {
	t.Parallel()
	set := secured(t)
	ctx := t.Context()
	status := bson.D{{Key: "replSetGetStatus", Value: 1}}
	insert := func(c *mongo.Client, db string) error {
		_, err := c.Database(db).Collection("c").InsertOne(ctx, bson.D{})
		return err
	}
	tail := func(c *mongo.Client) error {
		cur, err := c.Database("local").Collection("oplog.rs").Find(ctx, bson.D{}, options.Find().SetCursorType(options.TailableAwait))
		if err != nil {
			return err
		}
		defer cur.Close(ctx) //nolint:errcheck // it was read from
		if !cur.Next(ctx) {
			return cur.Err()
		}
		return nil
	}
	run := func(c *mongo.Client, cmd bson.D) error { return c.Database("admin").RunCommand(ctx, cmd).Err() }
	applyOps := bson.D{{Key: "applyOps", Value: bson.A{bson.D{
		{Key: "op", Value: "i"}, {Key: "ns", Value: "app.c"}, {Key: "o", Value: bson.D{{Key: "_id", Value: "applied"}}},
	}}}}

	// Without a login one may shake hands, and no more.
	anyone := connect(t, set.URI())
	if err := anyone.Ping(ctx, nil); err != nil {
		t.Errorf("ping without a login: %v", err)
	}
	for what, err := range map[string]error{
		"insert": insert(anyone, "app"), "status": run(anyone, status), "tail": tail(anyone), "applyOps": run(anyone, applyOps),
	} {
		wantUnauthorized(t, what+" without a login", err)
	}
	for _, c := range []struct {
		who, uri                  string
		insert, status, tail, ops bool
	}{
		{"root", set.URIFor("root"), true, true, true, true},
		{"app", set.URIFor("app"), true, false, false, false},
		{"tail", set.URIFor("tail"), false, true, true, false},
		{"nobody", set.URIFor("nobody"), false, false, false, false},
		{"__system", system(set, keyfile), true, true, true, true},
	} {
		client := connect(t, c.uri)
		if c.who == "tail" {
			wantUnauthorized(t, "tail: insert into local", insert(client, "local"))
		}
		for _, try := range []struct {
			what  string
			may   bool
			error error
		}{
			{"insert into app", c.insert, insert(client, "app")},
			{"replSetGetStatus", c.status, run(client, status)},
			{"tail the oplog", c.tail, tail(client)},
			{"applyOps", c.ops, run(client, applyOps)},
		} {
			switch {
			case !try.may:
				wantUnauthorized(t, c.who+": "+try.what, try.error)
			case try.error != nil:
				t.Errorf("%s: %s: %v", c.who, try.what, try.error)
			}
		}
	}
}
