package e2e

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// TestWaitsForTheMirror: a member is added to the source that nobody runs, the
// mirror reports in its place, and writes with w: "mirror" are acknowledged when
// they are in the target, and not before.
func TestWaitsForTheMirror(t *testing.T) {
	eachProvider(t, []string{"5.0", "8.0"}, func(t *testing.T, p provider) {
		source := p.open(t, clusterOptions{name: "source", members: 3, seed: 1, elects: time.Hour})
		target := p.open(t, clusterOptions{name: "target", members: 1, seed: 2})
		from := connect(t, source.uriFor(admin))
		config, err := feedback.ReadConfig(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		with, id, err := feedback.AddMember(config, feedback.NewMember{ID: -1, Host: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, feedback.Reconfigure(t.Context(), from, with))
		everything, err := scope.New(scope.Config{})
		if err != nil {
			t.Fatal(err)
		}
		m := &mirror{t: t, source: source.uriFor(admin), target: target.uriFor(admin), cfg: pipeline.Config{
			Link: "feedback", Scope: everything, Await: time.Second, Feedback: feedback.Member, MemberID: id, KeepAlive: time.Second,
		}}
		if e := insertMirrored(t, from, "before", 0, 500); e == nil || e.Code != servererr.WriteConcernTimeout {
			t.Fatalf("acknowledged with no mirror: %v", e)
		}
		m.begin()
		defer m.end(errEnd)
		// The link begins after the writes before it.
		m.await(time.Minute, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
		// The entries in the target from the start are reported as well, although there
		// are no new ones.
		reply := command(t, from, "feedback", bson.D{
			{Key: "delete", Value: "c"},
			{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: 60_000}}},
		})
		if e := mongo.ConcernError(reply); e != nil {
			m.fail("the beginning is not reported: %v", e)
		}
		for n := range 20 {
			if e := insertMirrored(t, from, "c", n, 60_000); e != nil {
				m.fatal("write %d is not acknowledged: %v", n, e)
			}
		}
		if docs := natural(t, connect(t, target.uriFor(admin)), "feedback", "c"); len(docs) < 20 {
			t.Errorf("the target has %d of 20 documents that were acknowledged", len(docs))
		}
		m.end(errEnd)
		if e := insertMirrored(t, from, "c", 20, 500); e == nil || e.Code != servererr.WriteConcernTimeout {
			t.Errorf("acknowledged without the mirror: %v", e)
		}
		if config, err = feedback.ReadConfig(t.Context(), from); err != nil {
			t.Fatal(err)
		}
		without, err := feedback.RemoveMember(config, id)
		if err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, feedback.Reconfigure(t.Context(), from, without))
	})
}

// insertMirrored inserts a document and waits for the mirror, up to a number of
// milliseconds.
func insertMirrored(t *testing.T, c mongo.Caller, coll string, id, wait int) *servererr.Error {
	t.Helper()
	reply := command(t, c, "feedback", bson.D{
		{Key: "insert", Value: coll},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: wait}}},
	})
	if refused, err := mongo.WriteErrors(reply); err != nil || len(refused) > 0 {
		t.Fatalf("insert %d into %s: %s", id, coll, reply)
	}
	return mongo.ConcernError(reply)
}

// TestRolesReadViews: with the roles of docs/privileges.md the target's collections
// can be read also where there are views and time series, whose own collections
// hardly anybody may look into.
func TestRolesReadViews(t *testing.T) {
	_, roles := rolesOnPage(t)
	eachProvider(t, dialects("5.0", "8.0"), func(t *testing.T, p provider) {
		c := p.open(t, clusterOptions{name: "target", members: 1, users: []mongotest.User{{Name: mirrorUser, Password: "p", Roles: roles}}})
		conn := connect(t, c.uriFor(mirrorUser))
		command(t, conn, "views", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
		series := bson.D{{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}}
		if p.real {
			p.major = majorOf(t, c)
		}
		if p.major >= 5 {
			command(t, conn, "views", series)
		}
		cat, err := catalog.Load(t.Context(), conn, []string{"views"})
		if err != nil {
			t.Fatal(err)
		}
		all, err := cat.Database(t.Context(), "views")
		if err != nil || len(all) < 2 {
			t.Errorf("read %v, %v", all, err)
		}
	})
}
