package e2e

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// TestLoginRefusedForAWhile: a server that cannot read its users refuses every login
// as if the password were wrong. A link that was let in before goes on when that is
// over, on either side.
func TestLoginRefusedForAWhile(t *testing.T) {
	t.Parallel()
	onSource, onTarget := rolesOnPage(t)
	source := openEmbedded(t, "5.0", clusterOptions{
		name: "source", members: 1, users: []mongotest.User{{Name: mirrorUser, Password: "p", Roles: onSource}},
	})
	target := openEmbedded(t, "5.0", clusterOptions{
		name: "target", members: 1, users: []mongotest.User{{Name: mirrorUser, Password: "p", Roles: onTarget}},
	})
	everything, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{t: t, source: source.uriFor(mirrorUser), target: target.uriFor(mirrorUser), cfg: pipeline.Config{
		Link: "login", Scope: everything, Await: 200 * time.Millisecond, RetryMax: 500 * time.Millisecond,
	}}
	m.begin()
	defer m.end(errEnd)
	m.await(time.Minute, "it is steady", func(s monitor.Snapshot) bool { return s.State == monitor.Steady })
	sides := []*mongosim.Set{source.(embedded).Set, target.(embedded).Set}
	for _, set := range sides {
		refuse(t, set, bson.D{{Key: "mode", Value: "alwaysOn"}, {Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"saslStart", "saslContinue"}}, {Key: "errorCode", Value: 18},
		}}})
		set.Cut(mongosim.Client, 0)
		set.Heal(mongosim.Client, 0)
	}
	// Each thing that is written makes the link ask for the target again. A member
	// that did not answer is asked again after ten seconds.
	over := time.NewTimer(13 * time.Second)
	defer over.Stop()
	var last bson.Raw
	for n, done := 0, false; !done; n++ {
		last = insertWithin(t, sides[0], n)
		tick := time.NewTimer(200 * time.Millisecond)
		select {
		case err := <-m.ended:
			m.ended <- err
			m.fatal("it has ended: %v", err)
		case <-over.C:
			done = true
		case <-tick.C:
		}
		tick.Stop()
	}
	for _, set := range sides {
		refuse(t, set, bson.D{{Key: "mode", Value: "off"}})
	}
	seconds, i, _ := last.Lookup("operationTime").TimestampOK()
	m.drain(time.Minute, bson.Timestamp{T: seconds, I: i})
}

// insertWithin inserts a document without a login.
func insertWithin(t *testing.T, set *mongosim.Set, id int) bson.Raw {
	t.Helper()
	doc, err := bson.Marshal(bson.D{
		{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}, {Key: "$db", Value: "db"},
	})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := set.Member(0).Call(t.Context(), doc)
	if n, _ := reply.Lookup("n").AsInt64OK(); err != nil || n != 1 {
		t.Fatalf("insert: %s, %v", reply, err)
	}
	return reply
}

// refuse sets the fail point for commands.
func refuse(t *testing.T, set *mongosim.Set, spec bson.D) {
	t.Helper()
	doc := must.Get(bson.Marshal(spec))(t)
	must.Succeed(t, set.Member(0).FailCommand(t.Context(), doc))
}
