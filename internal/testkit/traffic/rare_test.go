package traffic_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
)

// rarities are fields of entries that the client for rare writes brings about, in every dialect or since one.
var rarities = []struct {
	what, since string
	filter      bson.D
}{
	{"prepared", "", bson.D{{Key: "o.prepare", Value: true}}},
	{"prepared, of several entries", "", bson.D{{Key: "o.prepare", Value: true}, {Key: "o.count", Value: exists}, {Key: "o.applyOps.ns", Value: "demo.accounts"}}},
	{"commit of a prepared one", "", bson.D{{Key: "o.commitTransaction", Value: exists}}},
	{"abort of a prepared one", "", bson.D{{Key: "o.abortTransaction", Value: exists}}},
	{"applyOps of a client", "", bson.D{{Key: "o.applyOps.ns", Value: "demo.groups"}, {Key: "o.prepare", Value: bson.D{{Key: "$exists", Value: false}}}}},
	{"exchange", "", bson.D{{Key: "o.applyOps.ns", Value: "demo.pairs"}}},
	{"expiry", "", bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: "demo.expiring"}}},
	{"collMod", "", bson.D{{Key: "o.collMod", Value: "storm"}, {Key: "o.validator", Value: exists}}},
	{"hidden index", "", bson.D{{Key: "o.collMod", Value: "storm"}, {Key: "o.index.hidden", Value: exists}}},
	{"out", "", bson.D{{Key: "o.to", Value: "demo.report"}, {Key: "o.dropTarget", Value: exists}}},
	{"merge", "", bson.D{{Key: "ns", Value: "demo.summary"}}},
	{"bucket without a measurement", "5.0", bson.D{{Key: "op", Value: "u"}, {Key: "ns", Value: "demo.system.buckets.series"}, {Key: "o.diff.sdata", Value: exists}}},
	{"bucket deleted", "5.0", bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: "demo.system.buckets.series"}}},
	{"users", "", bson.D{{Key: "ns", Value: "admin.system.users"}}},
	{"roles", "", bson.D{{Key: "ns", Value: "admin.system.roles"}}},
	{"image", "", either("postImageOpTime", "needsRetryImage", "image")},
	{"_id of a rare type", "", bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "demo.values"}, {Key: "o._id", Value: bson.D{{Key: "$type", Value: "minKey"}}}}},
	{"text index", "", either("o.weights", "o.indexes.weights")},
	{"hidden index, from the beginning", "", either("o.hidden", "o.indexes.hidden")},
	{"array by position", "", bson.D{{Key: "op", Value: "u"}, {Key: "ns", Value: "demo.lists"}}},
	{"capped by number", "", bson.D{{Key: "o.create", Value: "optioned"}, {Key: "o.max", Value: exists}}},
	{"another time series", "5.0", bson.D{{Key: "o.create", Value: "system.buckets.metered"}}},
	{"long name", "", bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: bson.Regex{Pattern: "^demo-n{58}.l{191}$"}}}},
	{"rename to a strange name", "", bson.D{{Key: "o.to", Value: bson.Regex{Pattern: "日本"}}}},
	{"document of the greatest size", "", bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "demo.huge"}}},
	{"function", "", bson.D{{Key: "ns", Value: "demo.system.js"}}},
	{"clustered", "6.0", bson.D{{Key: "o.create", Value: "clustered"}, {Key: "o.clusteredIndex", Value: exists}}},
}

// either is a filter for entries that have one of the fields.
func either(names ...string) bson.D {
	list := bson.A{}
	for _, name := range names {
		list = append(list, bson.D{{Key: name, Value: exists}})
	}
	return bson.D{{Key: "$or", Value: list}}
}

// TestRare: all that is rare is written, through failovers, and what Check says holds all the time.
func TestRare(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "6.0", "7.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			set := mongosim.StartTest(t, mongosim.Options{Members: 3, Dialect: dialect, TTLInterval: 100 * time.Millisecond, Users: []mongosim.User{
				{Name: "root", Password: "root", Roles: []mongosim.Role{{Name: "root", DB: "admin"}, {Name: "__system", DB: "admin"}}},
			}})
			cluster := client.Open(t, driver.Config{URI: set.URIFor("root"), AppName: mongosim.Stage})
			w := must.Get(traffic.New(traffic.Config{Cluster: cluster, Seed: 1, Clients: 1, KeeperPause: 4 * time.Millisecond, ChainBytes: 17 << 20, Rare: true, Embedded: true}))(t)
			missing := func() (list []string) {
				for _, r := range rarities {
					if r.since <= dialect && !hasLogged(t, cluster, r.filter) {
						list = append(list, r.what)
					}
				}
				return list
			}
			soft, stop := context.WithTimeout(t.Context(), 3*time.Minute)
			defer stop()
			var watch sync.WaitGroup
			watch.Go(func() {
				defer stop()
				look := time.NewTicker(50 * time.Millisecond)
				defer look.Stop()
				for n := 1; soft.Err() == nil && (n < 30 || len(missing()) > 0); n++ {
					<-look.C
					if n%29 == 0 {
						_ = set.StepDown(soft)
					}
				}
			})
			err := w.Run(t.Context(), soft)
			stop()
			watch.Wait()
			must.Succeed(t, err)
			t.Logf("%+v", w.Stats())
			must.Succeed(t, traffic.Check(t.Context(), cluster, "demo"))
			if list := missing(); len(list) > 0 {
				t.Errorf("not logged: %q", list)
			}
		})
	}
}

// hasLogged reports whether the oplog has an entry with such fields.
func hasLogged(t *testing.T, c mongo.Caller, filter bson.D) bool {
	body := must.Get(bson.Marshal(bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: filter}, {Key: "limit", Value: 1}}))(t)
	reply, err := c.Call(t.Context(), mongo.Command{DB: "local", Body: body})
	if err != nil {
		return false
	}
	found, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
	return len(found) > 0
}
