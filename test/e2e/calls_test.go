package e2e

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

func connect(t *testing.T, uri string) *driver.Set {
	t.Helper()
	return client.Open(t, driver.Config{URI: uri, AppName: "test"}) // which meets no moods
}

// command runs a command, again if an election interrupts it, as an application does.
func command(t *testing.T, c mongo.Caller, db string, cmd bson.D) (reply bson.Raw) {
	t.Helper()
	body := must.Get(bson.Marshal(cmd))(t)
	again := false
	err := client.ThroughElections(t.Context(), func() (err error) {
		reply, err = c.Call(t.Context(), mongo.Command{DB: db, Body: body})
		if again {
			reply, err = done(reply, err)
		}
		again = true
		if e := mongo.ConcernError(reply); err == nil && e != nil && servererr.Classify(e) == servererr.NotPrimary {
			return e // it may be rolled back
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s on %s: %v", cmd[0].Key, db, err)
	}
	return reply
}

// done returns the outcome of a command that is tried again: a collection or a document that exists was made by the try before.
func done(reply bson.Raw, err error) (bson.Raw, error) {
	if servererr.IsNamespaceThere(err) {
		return bson.Marshal(bson.D{{Key: "ok", Value: 1}})
	}
	refused, bad := mongo.WriteErrors(reply)
	if err != nil || bad != nil || len(refused) == 0 {
		return reply, err
	}
	for i := range refused {
		if refused[i].Code != servererr.DuplicateKey {
			return reply, nil
		}
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	var rest bson.D
	for _, e := range doc {
		if e.Key != "writeErrors" {
			rest = append(rest, e)
		}
	}
	return bson.Marshal(rest)
}

// deferredOf reads the options that a link defers.
func deferredOf(t *testing.T, target mongo.Caller, link string) ddl.Specs {
	t.Helper()
	var deferred ddl.Specs
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		deferred, err = ddl.ReadDeferred(t.Context(), target, scope.DefaultMetaDB, link)
		return err
	}))
	return deferred
}
