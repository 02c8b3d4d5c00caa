package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// patience is how long the member has to show all entries up to the time of the lists.
const patience = time.Minute

type builder = bsoncore.DocumentBuilder

func document() *builder { return bsoncore.NewDocumentBuilder() }

// source reads from the member that is copied.
type source struct {
	caller mongo.Caller
	// lsid is a session of our own: a cursor can be used only in the session that
	// created it.
	lsid  bsoncore.Document
	began time.Time
	// unmarked is set if the member does not report which indexes are being built.
	unmarked atomic.Bool

	// heard is the newest time in any reply.
	heard mongo.Clock

	// invalid are the views whose definitions the server rejects; guarded by mu.
	mu      sync.Mutex
	invalid []mongo.InvalidView
}

func newSource(caller mongo.Caller) *source {
	return &source{caller: caller, lsid: bsoncore.Document(mongo.NewSessionID()), began: time.Now()}
}

// run sends a command that a secondary may answer too.
func (s *source) run(ctx context.Context, db string, cmd *builder) (bson.Raw, error) {
	body := cmd.AppendDocument("lsid", s.lsid).
		AppendDocument("$readPreference", document().AppendString("mode", "secondaryPreferred").Build()).Build()
	reply, err := s.caller.Call(ctx, mongo.Command{DB: db, Body: bson.Raw(body)})
	if err == nil {
		s.heard.Reply(reply)
	}
	return reply, err
}

// present returns the time of an entry that is not before anything that the replies
// have shown until now.
func (s *source) present(ctx context.Context) (bson.Timestamp, error) {
	latest := s.heard.Time()
	concern := document().AppendString("level", "local")
	if !latest.IsZero() {
		concern.AppendTimestamp("afterClusterTime", latest.T, latest.I)
	}
	cmd := document().AppendString("find", "oplog.rs").
		AppendDocument("sort", document().AppendInt32("$natural", -1).Build()).
		AppendDocument("projection", document().AppendInt32("ts", 1).Build()).
		AppendInt32("limit", 1).
		AppendBoolean("singleBatch", true).
		AppendDocument("readConcern", concern.Build()).
		AppendInt64("maxTimeMS", patience.Milliseconds())
	docs, err := s.all(ctx, "local", cmd)
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("read the newest entry: %w", err)
	}
	if len(docs) == 0 {
		return bson.Timestamp{}, errors.New("read the newest entry: the oplog is empty")
	}
	e, _ := rawbson.Lookup(docs[0], "ts")
	ts, ok := e.Timestamp()
	if !ok {
		return bson.Timestamp{}, errors.New("read the newest entry: it has no timestamp")
	}
	return ts, nil
}

// all runs a command that returns a cursor and returns all of its documents, as views
// into the replies.
func (s *source) all(ctx context.Context, db string, cmd *builder) ([]bson.Raw, error) {
	reply, err := s.run(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	return mongo.ReadCursor(reply, func(db string, more *builder) (bson.Raw, error) { return s.run(ctx, db, more) })
}

// end ends the session. Otherwise it would time out.
func (s *source) end(ctx context.Context) {
	list := bsoncore.NewArrayBuilder().AppendDocument(s.lsid).Build()
	cmd := document().AppendArray("endSessions", list).Build()
	_, _ = s.caller.Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(cmd)})
}
