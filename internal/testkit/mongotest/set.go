package mongotest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ReplicaSet is a running replica set. Its methods are for one goroutine at a
// time, except for URI, URIFor, Version and Client.
type ReplicaSet struct {
	opts    Options
	version Version
	// members are those that faults can be injected into. A single container
	// has none.
	members []server
	// address is what follows the user in a connection string.
	address string
	// admin is the user to do all this with; the zero value without access control.
	admin User
}

// signal is a signal for a server's process.
type signal string

const (
	kill   signal = "KILL"
	freeze signal = "STOP"
	thaw   signal = "CONT"
)

// server is one member's process, wherever it runs.
type server interface {
	// host is host:port, for clients and for the other members.
	host() string
	// start starts the process, which is not running, with the data it has.
	start(ctx context.Context) error
	// signal sends the process a signal, and returns after a kill once it has ended.
	signal(ctx context.Context, s signal) error
}

// adminUser has every privilege, also internal ones.
func adminUser() User {
	return User{Name: "mongotest", Password: "mongotest", Roles: []string{"root", "__system"}}
}

// URI returns a connection string for the whole set, without a user. With a
// container of one member it asks for a direct connection, because that member
// knows itself by an address that may only mean something inside.
func (rs *ReplicaSet) URI() string { return "mongodb://" + rs.address }

// URIFor returns the connection string for one of Options.Users.
func (rs *ReplicaSet) URIFor(user string) string {
	for _, u := range rs.opts.Users {
		if u.Name == user {
			return rs.uriAs(rs.address, u)
		}
	}
	panic("mongotest: there is no user " + user)
}

// uriAs returns a connection string for a user, or without a login.
func (rs *ReplicaSet) uriAs(address string, u User) string {
	if u.Name == "" {
		return "mongodb://" + address
	}
	return "mongodb://" + url.UserPassword(u.Name, u.Password).String() + "@" + address + "&authSource=admin"
}

// AdminURI returns the connection string for a user that may do everything, which
// is there if there are other users.
func (rs *ReplicaSet) AdminURI() string { return rs.uriAs(rs.address, rs.admin) }

// Version returns the version of the server.
func (rs *ReplicaSet) Version() Version { return rs.version }

// Client returns a new client of the set that may do everything, and is
// disconnected when t ends.
func (rs *ReplicaSet) Client(t testing.TB) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(rs.AdminURI()))
	if err != nil {
		t.Fatalf("connect to %s: %v", rs.URI(), err)
	}
	t.Cleanup(func() { disconnect(t.Context(), t, client) })
	return client
}

// disconnect works with an ended context as well: the test's own has ended by the
// time its cleanup runs.
func disconnect(ctx context.Context, t testing.TB, client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTime)
	defer cancel()
	if err := client.Disconnect(ctx); err != nil {
		t.Logf("disconnect a client: %v", err)
	}
}

// Members returns the members' addresses, host:port. Their places are their
// numbers.
func (rs *ReplicaSet) Members() []string {
	hosts := make([]string, len(rs.members))
	for i, m := range rs.members {
		hosts[i] = m.host()
	}
	return hosts
}

// Kill ends a member's process at once, as kill -9 does. What it had not written
// is lost.
func (rs *ReplicaSet) Kill(ctx context.Context, member int) error {
	return rs.signal(ctx, member, kill)
}

// Freeze stops a member's process without ending it; Thaw resumes it.
func (rs *ReplicaSet) Freeze(ctx context.Context, member int) error {
	return rs.signal(ctx, member, freeze)
}

// Thaw ends Freeze.
func (rs *ReplicaSet) Thaw(ctx context.Context, member int) error {
	return rs.signal(ctx, member, thaw)
}

func (rs *ReplicaSet) signal(ctx context.Context, member int, s signal) error {
	m := rs.members[member]
	if err := m.signal(ctx, s); err != nil {
		return fmt.Errorf("send %s to the server at %s: %w", s, m.host(), err)
	}
	return nil
}

// Start starts a member again that was killed, with the data it has. It does not
// wait until the member answers: see AwaitReady.
func (rs *ReplicaSet) Start(ctx context.Context, member int) error {
	m := rs.members[member]
	if err := m.start(ctx); err != nil {
		return fmt.Errorf("start the server at %s again: %w", m.host(), err)
	}
	return nil
}

// Primary waits until there is a primary, and returns its number.
func (rs *ReplicaSet) Primary(ctx context.Context) (int, error) {
	found := -1
	err := poll(ctx, "there is a writable primary", func(ctx context.Context) error {
		var last error
		for i, m := range rs.members {
			reply, err := rs.helloOf(ctx, m.host())
			switch {
			case err != nil:
				last = err
			case reply.SetName != rs.opts.SetName:
				return fmt.Errorf("the server at %s says it is in set %q", m.host(), reply.SetName)
			case reply.IsWritablePrimary:
				found = i
				return nil
			}
		}
		return errors.Join(errors.New("none says that it is"), last)
	})
	return found, err
}

// helloOf runs hello on one member, without a login.
func (rs *ReplicaSet) helloOf(ctx context.Context, host string) (reply helloReply, err error) {
	err = withClient(ctx, direct(host), func(client *mongo.Client) (err error) {
		reply, err = hello(ctx, client)
		return err
	})
	return reply, err
}

// withClient calls f with a client that lives no longer.
func withClient(ctx context.Context, uri string, f func(*mongo.Client) error) (err error) {
	client, err := connect(uri)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	return f(client)
}

// StepDown makes the primary step down, for long enough that another one is
// elected, and returns once one was.
func (rs *ReplicaSet) StepDown(ctx context.Context) error {
	before, err := rs.Primary(ctx)
	if err != nil {
		return err
	}
	host := rs.members[before].host()
	// The server refuses while no other member has caught up, which passes.
	err = poll(ctx, "the primary steps down", func(ctx context.Context) error {
		return withClient(ctx, rs.uriAs(direct(host)[len("mongodb://"):], rs.admin), func(client *mongo.Client) error {
			cmd := bson.D{{Key: "replSetStepDown", Value: 15}, {Key: "secondaryCatchUpPeriodSecs", Value: 10}}
			err := client.Database("admin").RunCommand(ctx, cmd).Err()
			if err == nil {
				return nil
			}
			// It may have stepped down meanwhile, or the connection may be lost.
			if reply, helloErr := hello(ctx, client); helloErr == nil && !reply.IsWritablePrimary {
				return nil
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	_, err = rs.Primary(ctx)
	return err
}

// AwaitReady waits until one member is a writable primary and all others are
// secondaries.
func (rs *ReplicaSet) AwaitReady(ctx context.Context) error {
	if _, err := waitReady(ctx, rs.AdminURI(), rs.opts.SetName, max(1, len(rs.members))); err != nil {
		return err
	}
	// The primary has not missed a member yet that was ended just now.
	for _, m := range rs.members {
		err := poll(ctx, "the server at "+m.host()+" answers", func(ctx context.Context) error {
			reply, err := rs.helloOf(ctx, m.host())
			if err == nil && reply.SetName != rs.opts.SetName {
				err = fmt.Errorf("it says it is in set %q", reply.SetName)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// form makes a set of the members, which answer, with its users.
func (rs *ReplicaSet) form(ctx context.Context) error {
	hosts := rs.Members()
	rs.address = strings.Join(hosts, ",") + "/?replicaSet=" + rs.opts.SetName
	err := withClient(ctx, direct(hosts[0]), func(first *mongo.Client) error {
		return initiate(ctx, first, rs.opts.SetName, hosts, rs.opts.ElectionTimeout)
	})
	if err != nil {
		return err
	}
	if len(rs.opts.Users) > 0 {
		if err := rs.addUsers(ctx); err != nil {
			return err
		}
	}
	rs.version, err = waitReady(ctx, rs.AdminURI(), rs.opts.SetName, len(hosts))
	return err
}

// addUsers makes the users. The first one is made over loopback, which the server
// allows while there are none.
func (rs *ReplicaSet) addUsers(ctx context.Context) error {
	admin := adminUser()
	err := poll(ctx, "the first user is made", func(ctx context.Context) error {
		primary, err := rs.Primary(ctx)
		if err != nil {
			return err
		}
		return withClient(ctx, direct(rs.members[primary].host()), func(client *mongo.Client) error {
			err := createUser(ctx, client, admin)
			// One that was made before the primary was lost is as good.
			if refusal, ok := errors.AsType[mongo.CommandError](err); ok && refusal.Code == userExists {
				return nil
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	rs.admin = admin
	return withClient(ctx, rs.AdminURI(), func(client *mongo.Client) error {
		for _, u := range rs.opts.Users {
			if err := createUser(ctx, client, u); err != nil {
				return err
			}
		}
		return nil
	})
}

const userExists = 51003

func createUser(ctx context.Context, client *mongo.Client, u User) error {
	roles := make(bson.A, len(u.Roles))
	for i, role := range u.Roles {
		roles[i] = bson.D{{Key: "role", Value: role}, {Key: "db", Value: "admin"}}
	}
	cmd := bson.D{
		{Key: "createUser", Value: u.Name},
		{Key: "pwd", Value: u.Password},
		{Key: "roles", Value: roles},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int64(10 * time.Second / time.Millisecond)}}},
	}
	if err := client.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
		return fmt.Errorf("make the user %s: %w", u.Name, err)
	}
	return nil
}
