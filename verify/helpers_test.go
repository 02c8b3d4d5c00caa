package verify

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for what must happen: it costs nothing when it does.
const patience = 2 * time.Minute

// cluster starts a set and connects to it.
func cluster(t *testing.T) *driver.Set {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1})
	return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
}

func run(t *testing.T, c mongo.Caller, db string, cmd bson.D) {
	t.Helper()
	send(t, c, mongo.Command{DB: db, Body: must.Marshal(t, cmd)})
}

// send sends a write, again after transient errors: of an insert that is repeated, documents
// may be there already.
func send(t *testing.T, c mongo.Caller, cmd mongo.Command) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := mongo.Retry{For: patience, Again: mongo.RepeatsRead}.Do(ctx, func() error {
		reply, err := c.Call(ctx, cmd)
		if err != nil {
			return err
		}
		faults, err := mongo.WriteErrors(reply)
		if err == nil && len(faults) > 0 {
			t.Fatalf("%s: %v", cmd.Body, faults)
		}
		return err
	})
	must.Succeed(t, err)
}

func insertRaw(t *testing.T, c mongo.Caller, ns oplog.Namespace, docs ...bson.Raw) {
	t.Helper()
	for part := range slices.Chunk(docs, 1000) {
		send(t, c, mongo.Command{
			DB: ns.DB(), Body: must.Marshal(t, bson.D{{Key: "insert", Value: ns.Collection()}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}),
			Sequence: "documents", Docs: part,
		})
	}
}

// doc builds a document of elements, which no map or bson.D may hold.
func doc(elements ...[]byte) bson.Raw { return bson.Raw(bsoncore.BuildDocument(nil, elements...)) }

func element(t *testing.T, name string, v any) []byte {
	t.Helper()
	e := must.Marshal(t, bson.D{{Key: name, Value: v}})
	return e[4 : len(e)-1]
}

func everything(t *testing.T) *scope.Scope {
	t.Helper()
	return must.Get(scope.New(scope.Config{}))(t)
}

// check runs a verification.
func check(t *testing.T, cfg Config) (*Summary, []Difference) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var found []Difference
	if cfg.Scope == nil {
		cfg.Scope = everything(t)
	}
	cfg.Found = func(d *Difference) error { found = append(found, *d); return nil }
	s, err := must.Get(New(cfg))(t).Run(ctx)
	must.Succeed(t, err)
	return s, found
}
