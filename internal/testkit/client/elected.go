package client

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// Elected is a set whose primary was just elected, and does not know yet that a majority has the last writes, though each was confirmed by
// one: with read concern majority it returns what a majority had before, and blocks if it is to have a later time.
type Elected struct {
	mongo.Caller

	mu sync.Mutex // guards at
	at bson.Timestamp
}

// looksEvery is how often a read that blocks looks whether the primary knows by now.
const looksEvery = 5 * time.Millisecond

// Elect is called before the writes that the primary is not to know: it takes effect with the first read after them, if Learn was not called.
func (e *Elected) Elect(t T) {
	t.Helper()
	e.ElectAt(must.Get(mongo.OperationTime(t.Context(), e.Caller))(t))
}

// ElectAt makes the primary one that does not know that a majority has anything later than at.
func (e *Elected) ElectAt(at bson.Timestamp) {
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
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level != "majority" {
		return e.Caller.Call(ctx, cmd)
	}
	for {
		e.mu.Lock()
		at := e.at
		e.mu.Unlock()
		t, i, waits := cmd.Body.Lookup("readConcern", "afterClusterTime").TimestampOK()
		switch {
		case at.IsZero():
			return e.Caller.Call(ctx, cmd)
		case !waits || !(bson.Timestamp{T: t, I: i}).After(at):
			cmd.Body = readAt(cmd.Body, at, cmd.DB == "local")
			return e.Caller.Call(ctx, cmd)
		}
		if err := mongo.Pause(ctx, looksEvery); err != nil {
			return nil, err
		}
	}
}

// readAt returns a command that reads as of a timestamp, or the oplog up to that.
func readAt(body bson.Raw, at bson.Timestamp, log bool) bson.Raw {
	list, err := body.Elements()
	if err != nil {
		return body
	}
	upTo := bson.Raw(bsoncore.NewDocumentBuilder().AppendDocument("ts", bsoncore.NewDocumentBuilder().AppendTimestamp("$lte", at.T, at.I).Build()).Build())
	changed := bsoncore.NewDocumentBuilder()
	for _, e := range list {
		switch v := e.Value(); {
		case e.Key() == "readConcern", e.Key() == "filter" && log:
			if was, ok := v.DocumentOK(); ok && e.Key() == "filter" {
				upTo = bson.Raw(bsoncore.NewDocumentBuilder().AppendArray("$and",
					bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(was)).AppendDocument(bsoncore.Document(upTo)).Build()).Build())
			}
		default:
			changed.AppendValue(e.Key(), bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
		}
	}
	concern := bsoncore.NewDocumentBuilder().AppendString("level", "snapshot").AppendTimestamp("atClusterTime", at.T, at.I).Build()
	if log {
		changed.AppendDocument("filter", bsoncore.Document(upTo))
		concern = bsoncore.NewDocumentBuilder().AppendString("level", "majority").Build()
	}
	return bson.Raw(changed.AppendDocument("readConcern", concern).Build())
}
