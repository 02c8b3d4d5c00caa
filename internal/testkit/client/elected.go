package client

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// Elected is a set whose primary was just elected, and does not know yet that a majority has the last writes, though each was confirmed by
// one: with read concern majority it returns what a majority had before. It does not change reads of the oplog.
type Elected struct {
	mongo.Caller

	mu sync.Mutex // guards at
	at bson.Timestamp
}

// Elect is called before the writes that the primary is not to know: it takes effect with the first read after them, if Learn was not called.
func (e *Elected) Elect(t T) {
	t.Helper()
	at := must.Get(mongo.OperationTime(t.Context(), e.Caller))(t)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
}

// Learn is called when an entry of the primary's own term is majority-committed.
func (e *Elected) Learn() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = bson.Timestamp{}
}

// Call implements mongo.Caller.
func (e *Elected) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	e.mu.Lock()
	at := e.at
	e.mu.Unlock()
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" && !at.IsZero() && cmd.DB != "local" {
		cmd.Body = readAt(cmd.Body, at)
	}
	return e.Caller.Call(ctx, cmd)
}

// readAt returns a command that reads as of a timestamp.
func readAt(body bson.Raw, at bson.Timestamp) bson.Raw {
	list, err := body.Elements()
	if err != nil {
		return body
	}
	changed := bsoncore.NewDocumentBuilder()
	for _, e := range list {
		if e.Key() != "readConcern" {
			changed.AppendValue(e.Key(), bsoncore.Value{Type: bsoncore.Type(e.Value().Type), Data: e.Value().Value})
		}
	}
	concern := bsoncore.NewDocumentBuilder().AppendString("level", "snapshot").AppendTimestamp("atClusterTime", at.T, at.I).Build()
	return bson.Raw(changed.AppendDocument("readConcern", concern).Build())
}
