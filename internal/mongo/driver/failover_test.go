package driver_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim"
)

// isLost fails the test unless err is a LostError.
func isLost(t *testing.T, err error) {
	t.Helper()
	_ = lost(t, err)
}

func lost(t *testing.T, err error) *mongo.LostError {
	t.Helper()
	e, ok := errors.AsType[*mongo.LostError](err)
	if !ok {
		t.Fatalf("the error is %v (%T), want a LostError", err, err)
	}
	return e
}

// TestFailover: after each way to lose the primary, a call finds the next one as soon as
// it is elected, long before a heartbeat of 10 s.
func TestFailover(t *testing.T) {
	t.Parallel()
	// The only elections are those of the test.
	set := start(t, mongosim.Options{Members: 3, ElectionTimeout: 5 * time.Second})
	s := open(t, driver.Config{URI: set.URI()})
	must(t, s, "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 0}}})
	host, election := s.Primary()
	if host != set.Primary().Host() || election.IsZero() {
		t.Fatalf("the primary is %s of %s, want %s", host, election, set.Primary().Host())
	}
	elections := map[bson.ObjectID]bool{election: true}
	for i, hurt := range []func() error{
		func() error { return set.StepDown(t.Context()) },
		func() error { return set.Primary().Kill() },
		func() error { return set.StepDown(t.Context()) },
	} {
		if err := hurt(); err != nil {
			t.Fatal(err)
		}
		if _, err := set.AwaitPrimary(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var err error
		for try := range 3 {
			_, err = try2(t, s, "insert", "c", i+1)
			if err == nil {
				break
			}
			t.Logf("hurt %d, call %d: %v", i, try, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("hurt %d: it took %v", i, took)
		}
		host, election := s.Primary()
		if host != set.Primary().Host() || elections[election] {
			t.Errorf("hurt %d: the primary is %s, election %s", i, host, election)
		}
		elections[election] = true
	}
}

func try2(t *testing.T, c mongo.Caller, name, coll string, id int) (bson.Raw, error) {
	t.Helper()
	return try(t, c, name, coll, "documents", bson.A{bson.D{{Key: "_id", Value: id}}})
}

// TestKillDuringCall: a command whose server dies is lost, at once and with the
// server's name.
func TestKillDuringCall(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 3, ElectionTimeout: 5 * time.Second})
	s := open(t, driver.Config{URI: set.URI()})
	must(t, s, "create", "capped", "capped", true, "size", 4096)
	must(t, s, "insert", "capped", "documents", bson.A{bson.D{}})
	id := must(t, s, "find", "capped", "tailable", true, "awaitData", true).Lookup("cursor", "id").AsInt64()
	primary := set.Primary()
	member := s.Member(primary.Host())
	mid := must(t, member, "find", "capped", "tailable", true, "awaitData", true).Lookup("cursor", "id").AsInt64()

	// A fail point that only counts says when the server has both.
	entered := func() int32 {
		point := command(t, "configureFailPoint", "failCommand", "mode", "alwaysOn",
			"data", bson.D{{Key: "failCommands", Value: bson.A{"getMore"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 1}})
		point.DB = "admin"
		reply, err := member.Call(within(t), point)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Lookup("count").Int32()
	}
	if n := entered(); n != 0 {
		t.Fatalf("the fail point was met %d times before", n)
	}
	var calls sync.WaitGroup
	var errs [2]error
	for i, c := range []mongo.Caller{s, member} {
		cursor := []int64{id, mid}[i]
		more := command(t, "getMore", cursor, "collection", "capped", "maxTimeMS", 60_000)
		calls.Go(func() { _, errs[i] = c.Call(within(t), more) })
	}
	for entered() < 2 {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	calls.Wait()
	if took := time.Since(began); took > 30*time.Second { // they would wait for a minute
		t.Errorf("it took %v", took)
	}
	for _, err := range errs {
		if e, ok := errors.AsType[*servererr.Error](err); ok && e.Code == servererr.InterruptedAtShutdown {
			continue // it got its reply before the server died
		}
		if e := lost(t, err); e.Host != primary.Host() {
			t.Errorf("the lost host is %q, want %s", e.Host, primary.Host())
		}
	}
	must(t, s, "ping", 1)
}

// TestNoPrimary: the error has the state of each host, and is returned in time.
func TestNoPrimary(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 3})
	s := open(t, driver.Config{URI: set.URI(), SelectionTimeout: 700 * time.Millisecond})
	must(t, s, "ping", 1)
	up := set.Members()[0]
	for _, m := range set.Members()[1:] {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	// Without a majority it steps down by itself.
	for up.ID() == primaryID(set) {
		time.Sleep(10 * time.Millisecond)
	}
	// Until the driver notices the stepdown, calls go to the member; and it closes
	// connections when it steps down.
	var err error
	var took time.Duration
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		began := time.Now()
		_, err = try(t, s, "ping", 1)
		took = time.Since(began)
		if _, none := errors.AsType[*driver.NoServerError](err); none {
			break
		}
	}
	if e := lost(t, err); e.Host != "" {
		t.Errorf("the host is %q", e.Host)
	}
	if took > 20*time.Second { // the driver's own limit is 30 s
		t.Errorf("it took %v", took)
	}
	none, ok := errors.AsType[*driver.NoServerError](err)
	if !ok || len(none.Seen) != 3 {
		t.Fatalf("the error is %v", err)
	}
	for _, seen := range none.Seen {
		if down := seen.Host != up.Host(); down != (seen.State == "Unknown") || down != (seen.Err != nil) {
			t.Errorf("%s is %s: %v", seen.Host, seen.State, seen.Err)
		}
		if !strings.Contains(err.Error(), seen.Host) {
			t.Errorf("%s is not in %v", seen.Host, err)
		}
	}
	if !strings.Contains(err.Error(), "no primary of rs0") {
		t.Errorf("the error is %v", err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	if _, err := s.Call(ctx, command(t, "ping", 1)); !errors.Is(err, why) {
		t.Errorf("the error is %v, want its cause", err)
	}
}

// TestMisnamed: if the connection string names another set than the hosts, the error has both names.
func TestMisnamed(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 3})
	s := open(t, driver.Config{URI: strings.Replace(set.URI(), "replicaSet=rs0", "replicaSet=prod", 1), SelectionTimeout: 700 * time.Millisecond})
	_, err := try(t, s, "ping", 1)
	none, ok := errors.AsType[*driver.NoServerError](err)
	if !ok || !none.Misnamed() || none.Set != "prod" || none.Other != "rs0" {
		t.Fatalf("the error is %v", err)
	}
	if !strings.Contains(err.Error(), "no primary of prod in ") || !strings.HasSuffix(err.Error(), ": none of the hosts belongs to it, but to rs0") {
		t.Errorf("the error is %v", err)
	}
}

// TestMisnamedPartly: so does an error of a host that is asked directly, and where another host does not answer.
func TestMisnamedPartly(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1})
	prod := strings.Replace(set.URI(), "replicaSet=rs0", "replicaSet=prod", 1)
	for _, uri := range []string{prod + "&directConnection=true", strings.Replace(prod, "/?", ",127.0.0.1:1/?", 1)} {
		_, err := try(t, open(t, driver.Config{URI: uri, SelectionTimeout: 700 * time.Millisecond}), "ping", 1)
		none, ok := errors.AsType[*driver.NoServerError](err)
		if !ok || none.Misnamed() || none.Set != "prod" || none.Other != "rs0" {
			t.Errorf("%s: the error is %v", uri, err)
		}
	}
}

func primaryID(set *mongosim.Set) int {
	if p := set.Primary(); p != nil {
		return p.ID()
	}
	return -1
}

// TestSeeds: the hosts of the connection string stay known once members have answered under
// their own names: if all members are replaced, they lead to the new ones.
func TestSeeds(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{})
	m := set.Member(0)
	s := open(t, driver.Config{URI: "mongodb://alias.invalid/?replicaSet=rs0", HostMap: map[string]string{"alias.invalid:27017": m.Address()}})
	must(t, s, "ping", 1)
	if got, want := s.Seeds(), []string{m.Host(), "alias.invalid:27017"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestMember: a direct connection fails at once while its host is down, and works
// as soon as it is up again.
func TestMember(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{MemberOptions: []mongosim.MemberOptions{{}, {NoPriority: true, Hidden: true}}})
	s := open(t, driver.Config{URI: set.URI()})
	m := set.Member(1)
	must(t, s, "ping", 1)
	if hosts := s.Hosts(); len(hosts) != 1 || hosts[0] != set.Member(0).Host() {
		t.Errorf("hosts are %v", hosts)
	}
	hidden := s.Member(m.Host())
	if hidden != s.Member(m.Host()) {
		t.Error("a member is opened twice")
	}
	must(t, hidden, "find", "c")
	if _, err := try(t, hidden, "insert", "c", "documents", bson.A{bson.D{}}); err == nil {
		t.Error("a secondary took a write")
	}
	for range 2 {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			began := time.Now()
			_, err := try(t, hidden, "ping", 1)
			if e := lost(t, err); e.Host != m.Host() {
				t.Errorf("the lost host is %q", e.Host)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		}
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := try(t, hidden, "ping", 1); err != nil {
			t.Errorf("the first call after its start: %v", err)
		}
	}
}

// TestClosed: calls after Close, and those in flight, are lost with ErrClosed or a network
// error, and Close returns when all goroutines have ended.
func TestClosed(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1})
	s := open(t, driver.Config{URI: set.URI()})
	must(t, s, "create", "capped", "capped", true, "size", 4096)
	must(t, s, "insert", "capped", "documents", bson.A{bson.D{}})
	m := s.Member(set.Member(0).Host())
	id := must(t, m, "find", "capped", "tailable", true, "awaitData", true).Lookup("cursor", "id").AsInt64()
	more := command(t, "getMore", id, "collection", "capped", "maxTimeMS", 60_000)
	var calls sync.WaitGroup
	calls.Go(func() {
		if _, err := m.Call(within(t), more); err == nil {
			t.Error("a call outlived Close")
		} else {
			isLost(t, err)
		}
	})
	time.Sleep(50 * time.Millisecond)
	s.Close()
	calls.Wait()
	s.Close()
	for _, c := range []mongo.Caller{s, m, s.Member("127.0.0.1:1")} {
		_, err := try(t, c, "ping", 1)
		if isLost(t, err); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestWrongSet: a set of another name is an error.
func TestWrongSet(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1})
	s := open(t, driver.Config{URI: "mongodb://" + set.Member(0).Host() + "/?replicaSet=other", SelectionTimeout: 200 * time.Millisecond})
	_, err := try(t, s, "ping", 1)
	if isLost(t, err); !strings.Contains(err.Error(), "no primary of other") {
		t.Errorf("the error is %v", err)
	}
}

// TestOtherDeployments: a standalone server and a mongos answer commands, so that their
// caller finds out what they are.
func TestOtherDeployments(t *testing.T) {
	t.Parallel()
	for name, hello := range map[string]bson.D{"standalone": nil, "mongos": {{Key: "msg", Value: "isdbgrid"}}} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.hello = hello
			f.start()
			must(t, open(t, driver.Config{URI: f.uri()}), "find", "c")
		})
	}
}
