package mongosim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestDefaults(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{})
	c := dial(t, s.Member(0))
	config := c.run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}).Lookup("config").Document()
	for path, want := range map[string]any{
		"_id": "rs0", "members.0.priority": 1.0, "members.0.votes": int32(1), "settings.heartbeatIntervalMillis": int32(100),
		"settings.electionTimeoutMillis": int32(1000), "settings.chainingAllowed": true,
	} {
		var got any
		succeed(t, config.Lookup(strings.Split(path, ".")...).Unmarshal(&got))
		if got != want {
			t.Errorf("%s is %v (%T), want %v", path, got, got, want)
		}
	}
	if v := c.run(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}}).Lookup("version").StringValue(); v != "5.0.7" {
		t.Errorf("version %s, want 5.0.7", v)
	}
	if n := len(s.Members()); n != 1 {
		t.Errorf("%d members, want 1", n)
	}
	if want := "mongodb://" + s.Member(0).Host() + "/?replicaSet=rs0"; s.URI() != want {
		t.Errorf("URI %s, want %s", s.URI(), want)
	}
}

func TestOptionFaults(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]Options{
		"dialect":              {Dialect: "3.6"},
		"has hello":            {NoHello: true},
		"at most 50":           {Members: 51},
		"below 0":              {Members: -1},
		"heartbeat interval":   {HeartbeatInterval: -time.Second},
		"election timeout":     {ElectionTimeout: time.Microsecond},
		"needs NoPriority":     {MemberOptions: []MemberOptions{{}, {Hidden: true}}},
		"member 1":             {MemberOptions: []MemberOptions{{}, {NonVoting: true}}},
		"without":              {MemberOptions: []MemberOptions{{}, {NoIndexes: true}}},
		"shorter than":         {HeartbeatInterval: time.Second, ElectionTimeout: 100 * time.Millisecond},
		"lifetime":             {TransactionLifetime: -1},
		"default read concern": {DefaultReadConcern: "snapshot"},
		"set name":             {SetName: "a b/c"},
		"name and a pass":      {Users: []User{{Name: "a"}}},
		"keyfile of 1":         {Keyfile: "x"},
		"whole seconds":        {MemberOptions: []MemberOptions{{}, {NoPriority: true, Delay: 1500 * time.Millisecond}}},
		"priority":             {MemberOptions: []MemberOptions{{Priority: -1}}},
		"an arbiter":           {MemberOptions: []MemberOptions{{}, {Arbiter: true, Tags: map[string]string{"a": "b"}}}},
		"no member may":        {MemberOptions: []MemberOptions{{NoPriority: true}}},
		"users":                {Users: []User{{Name: "a", Password: "b", Roles: []Role{{Name: "emperor", DB: "admin"}}}}},
		"no more than 7":       {Members: 8},
		"not an IP address":    {Address: "localhost"},
		"Hostname is":          {Address: "0.0.0.0"},
		"ports 65535 to 65537": {Members: 3, Port: 65535},
		"ports -1 to":          {Port: -1},
	} {
		s, err := Start(within(t), opts)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", opts, err, want)
		}
	}
	// All faults at once.
	_, err := Start(within(t), Options{Dialect: "1", Members: 60, JournalDelay: -1})
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three faults: %v", err)
	}
}

// TestStartCancelled cannot get a primary in time.
func TestStartCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if s, err := Start(ctx, Options{Members: 3}); !errors.Is(err, context.Canceled) {
		if err == nil {
			s.Close()
		}
		t.Errorf("Start with a context that is done: %v", err)
	}
}

func TestNoInitiate(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Members: 2, NoInitiate: true})
	c := dial(t, s.Member(0))
	_, err := c.call(ctx, "admin", bson.D{{Key: "replSetGetStatus", Value: 1}})
	wantCode(t, "status before the set was initiated", err, 94)
	members := bson.A{s.Member(0).config(), s.Member(1).config()}
	c.run(ctx, "admin", bson.D{{Key: "replSetInitiate", Value: bson.D{{Key: "_id", Value: "rs0"}, {Key: "members", Value: members}}}})
	must[*Member](t)(s.AwaitPrimary(ctx))
	succeed(t, s.AwaitReady(ctx))
}

func TestDialects(t *testing.T) {
	t.Parallel()
	for _, dialect := range Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			s := StartTest(t, Options{Dialect: dialect, MemberOptions: []MemberOptions{{}, {NoPriority: true, Hidden: true, Delay: time.Second}}})
			c := dial(t, s.Member(0))
			info := c.run(ctx, "admin", bson.D{{Key: "buildInfo", Value: 1}})
			if v := info.Lookup("version").StringValue(); !strings.HasPrefix(v, dialect) {
				t.Errorf("version %s", v)
			}
			fcv := c.run(ctx, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
			if v := fcv.Lookup("featureCompatibilityVersion", "version").StringValue(); v != dialect {
				t.Errorf("FCV %s", v)
			}
			delay := "secondaryDelaySecs"
			if dialect == "4.4" {
				delay = "slaveDelay"
			}
			config := c.run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
			if n, ok := config.Lookup("config", "members", "1", delay).AsInt64OK(); !ok || n != 1 {
				t.Errorf("%s is %d in %s", delay, n, config)
			}
		})
	}
}
