package preflight

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// Another process creates the link while this one checks, and has begun to copy: its data are
// no reason to end.
func TestLinkCreatedMeanwhile(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	sc, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{cfg: Config{Link: "l", MetaDB: "replicator", Scope: sc, Copy: true}, source: &server{name: "rs0"}}
	s := &server{caller: target}
	if err := c.link(t.Context(), s); err != nil || c.report.Found {
		t.Fatal(err, c.report)
	}
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "l"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := bson.Marshal(bson.D{{Key: "create", Value: "a"}})
	if err == nil {
		_, err = target.Call(t.Context(), mongo.Command{DB: "shop", Body: body})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.existing(t.Context(), s); err != nil || c.report.Err() == nil {
		t.Fatal("without the link, the data are a reason: ", err, c.report.Findings)
	}
	at := oplog.NewOpTime(100, 1, 1)
	if err := store.Create(t.Context(), checkpoint.State{
		Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1"}, Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at,
	}); err != nil {
		t.Fatal(err)
	}
	c.report.Findings = nil
	if err := c.existing(t.Context(), s); err != nil || c.report.Err() != nil || !c.report.Found {
		t.Errorf("%v, found %t: %v", err, c.report.Found, c.report.Findings)
	}
}

// A link continues only with the source and the settings that it was created with.
func TestLinkOfOthers(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	setID := func(s string) bson.RawValue { return bson.RawValue{Type: bson.TypeObjectID, Value: []byte(s)} }
	const mine, other = "123456789012", "210987654321"
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "l"})
	if err != nil {
		t.Fatal(err)
	}
	at := oplog.NewOpTime(100, 1, 1)
	if err := store.Create(t.Context(), checkpoint.State{
		Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: setID(mine)}, Writers: 1,
		Fingerprint: "f", Applied: at, AppliedWall: 100_000, FetchFrom: at,
	}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		source, fingerprint string
		level               Level
		err                 error
	}{
		"the same":       {mine, "f", OK, nil},
		"other settings": {mine, "g", Fail, nil},
		"another source": {other, "f", OK, checkpoint.ErrOtherSource},
	} {
		t.Run(name, func(t *testing.T) {
			c := &checker{cfg: Config{Link: "l", MetaDB: "replicator", Fingerprint: tt.fingerprint}, source: &server{name: "rs0", setID: setID(tt.source)}}
			err := c.link(t.Context(), &server{caller: target})
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if tt.err != nil {
				return
			}
			if f := c.report.Findings; len(f) != 1 || f[0].Level != tt.level || (tt.level == Fail) != strings.Contains(f[0].Detail, "other settings") {
				t.Errorf("found %v", f)
			}
		})
	}
}

// TestCutoverUnknownSource: a server that does not say which set it is proves nothing about a link.
func TestCutoverUnknownSource(t *testing.T) {
	t.Parallel()
	id := bson.RawValue{Type: bson.TypeObjectID, Value: []byte("123456789012")}
	for name, tt := range map[string]struct {
		found     bool
		link, set bson.RawValue
		want      error
	}{
		"a set":                 {true, id, id, nil},
		"a mongos":              {true, id, bson.RawValue{}, checkpoint.ErrOtherSource},
		"a link without a set":  {true, bson.RawValue{}, bson.RawValue{}, nil},
		"no link to compare it": {false, bson.RawValue{}, bson.RawValue{}, nil},
	} {
		c := &checker{source: &server{setID: tt.set}}
		c.report.Found, c.report.Link.Source = tt.found, checkpoint.Source{SetName: "rs0", ReplicaSetID: tt.link}
		if err := c.knownSource(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestLinkElected: a link that exists is found, and its data are no reason to end, also if the target's primary was just elected, and does not
// know yet that a majority has the link.
func TestLinkElected(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := &client.Elected{Caller: client.Open(t, driver.Config{URI: set.URI()})}
	must.Get(target.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Marshal(t, bson.D{{Key: "create", Value: "a"}})}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	for name, check := range map[string]func(*checker, context.Context, *server) error{"first": (*checker).link, "data": (*checker).existing} {
		store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name}))(t)
		must.Succeed(t, store.Prepare(t.Context()))
		target.Elect(t)
		must.Succeed(t, store.Create(t.Context(), checkpoint.State{
			Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1"}, Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at,
		}))
		learnt := time.AfterFunc(100*time.Millisecond, target.Learn)
		c := &checker{cfg: Config{Link: name, MetaDB: "replicator", Scope: must.Get(scope.New(scope.Config{}))(t), Copy: true}, source: &server{name: "rs0"}}
		if err := check(c, t.Context(), &server{caller: target}); err != nil || c.report.Err() != nil || !c.report.Found {
			t.Errorf("%s: %v, found %t: %v", name, err, c.report.Found, c.report.Findings)
		}
		learnt.Stop()
		target.Learn()
	}
}
