package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestRivals: a link that exists warns of others that a process runs and that mirror to the same collections, not of ones that have ended, of
// copies of its own collections, or of ones that mirror elsewhere; a new link does not warn of the first and the last of these either. That they cannot be
// read does not end a link that ran before.
func TestRivals(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	must.Get(target.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Marshal(t, bson.D{{Key: "create", Value: "a"}})}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	for link, include := range map[string]string{"old": "shop", "rival": "shop.a", "over": "shop.a", "resync-0123456789abcdef": "shop.a", "elsewhere": "store", "bare": ""} {
		keeper := lease.NewKeeper(lease.KeeperConfig{Target: target, DB: "replicator", Collection: metadata.Links, ID: link, Holder: "another"})
		store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link, Process: "another", Keeper: keeper}))(t)
		filters := &checkpoint.Filters{Include: []string{include}}
		if include == "" { // an earlier release has made it
			filters = nil
		}
		must.Succeed(t, store.Create(t.Context(), checkpoint.State{
			Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1"}, Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at,
			Filters: filters,
		}))
		leading, over := keeper.Lead(t.Context())
		defer over()
		held := must.Get(store.AcquireBy(leading, 0, lease.Claim{TTL: time.Hour, Why: lease.ForCutover, TakeOver: true}))(t)
		if link == "over" {
			must.Succeed(t, held.End(leading, checkpoint.Over{At: time.UnixMilli(100_000), By: "me", Source: at}))
		}
	}
	check := func(caller mongo.Caller, ctx context.Context, found bool, want ...string) error {
		t.Helper()
		c := &checker{cfg: Config{Link: "old", MetaDB: "replicator", Scope: must.Get(scope.New(scope.Config{Include: []string{"shop"}}))(t)}, source: &server{name: "rs0"}}
		var err error
		if found {
			c.report.Found = true
			err = c.existing(ctx, &server{caller: caller})
		} else {
			err = c.twins(ctx, &server{caller: caller}, []string{"shop.a"})
		}
		var got []string
		for _, f := range c.report.Findings {
			if name, _, _ := strings.Cut(f.Detail, ","); f.Check == otherLinks {
				got = append(got, name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) || c.report.Err() != nil {
			t.Errorf("found before: %t: %v, want %v; %v", found, c.report.Findings, want, err)
		}
		return err
	}
	must.Succeed(t, check(target, t.Context(), true, `"rival"`))
	must.Succeed(t, check(target, t.Context(), false, `"resync-0123456789abcdef"`, `"rival"`))
	for _, name := range []string{metadata.Links, "listDatabases", "listCollections"} {
		must.Succeed(t, check(without{target, name}, t.Context(), true))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	must.Fail(t, check(target, ctx, true), context.Canceled)
}

// without is a target on which something must not be read.
type without struct {
	mongo.Caller
	what string
}

// Call implements mongo.Caller.
func (w without) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := cmd.Body.Index(0)
	if coll, _ := first.Value().StringValueOK(); first.Key() == w.what || coll == w.what {
		return nil, servererr.New(servererr.Unauthorized, "not authorized")
	}
	return w.Caller.Call(ctx, cmd)
}
