package verify

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo"
)

// closeTimeout limits how long closing a cursor or the session may take.
const closeTimeout = 5 * time.Second

type builder = bsoncore.DocumentBuilder

func document() *builder { return bsoncore.NewDocumentBuilder() }

// side is one of the two clusters.
type side struct {
	retrier *retrier
	name    clone.Side
	caller  mongo.Caller
	// lsid is a session of our own: a cursor can be used only in the session that created it,
	// and does not time out in one that is used.
	lsid bsoncore.Document
	// heard is the newest time in any reply.
	heard mongo.Clock
	// inTxn means that the server reads as of a time only in transactions, as before 5.0.
	inTxn atomic.Bool
	// uuids is whether reads name the UUID of their collection.
	uuids bool

	mu sync.Mutex
	// sessions are those of transactions, idle the ones that no stream uses.
	sessions, idle []*mongo.Session
}

func newSide(r *retrier, name clone.Side, c mongo.Caller) *side {
	return &side{retrier: r, name: name, caller: c, lsid: bsoncore.Document(mongo.NewSessionID())}
}

// takeSession returns a session for the transaction of one stream, which gives it back.
func (s *side) takeSession() *mongo.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		t := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return t
	}
	t := mongo.NewSession(s.caller, mongo.NewSessionID(), 1)
	s.sessions = append(s.sessions, t)
	return t
}

func (s *side) giveBack(t *mongo.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, t)
}

// call sends a command once.
func (s *side) call(ctx context.Context, db string, cmd *builder) (bson.Raw, error) {
	reply, err := s.caller.Call(ctx, mongo.Command{DB: db, Body: bson.Raw(cmd.AppendDocument("lsid", s.lsid).Build())})
	if err == nil {
		s.heard.Reply(reply)
	}
	return reply, err
}

// retry repeats a read after transient errors. Make builds the command for each try.
func (s *side) retry(ctx context.Context, try func() error) error {
	return s.retrier.retry().Do(ctx, try)
}

// run runs a read with a single reply, again after transient errors.
func (s *side) run(ctx context.Context, db string, makeCmd func() *builder) (reply bson.Raw, err error) {
	err = s.retry(ctx, func() (err error) {
		reply, err = s.call(ctx, db, makeCmd())
		return err
	})
	return reply, err
}

// all runs a command that returns a cursor and returns all of its documents, as views into the
// replies.
func (s *side) all(ctx context.Context, db string, makeCmd func() *builder) (docs []bson.Raw, err error) {
	err = s.retry(ctx, func() (err error) {
		docs, err = s.once(ctx, db, makeCmd())
		return err
	})
	return docs, err
}

func (s *side) once(ctx context.Context, db string, cmd *builder) ([]bson.Raw, error) {
	reply, err := s.call(ctx, db, cmd)
	if err != nil {
		return nil, err
	}
	return mongo.ReadCursor(reply, func(db string, more *builder) (bson.Raw, error) { return s.call(ctx, db, more) })
}

// open makes sure that the side can be asked, without waiting for one that cannot be reached.
func (s *side) open(ctx context.Context) error {
	reply, err := mongo.Hello(ctx, s.caller)
	if err != nil {
		return s.wrap(err, "connect")
	}
	s.heard.Reply(reply)
	s.uuids = mongo.ExpectsUUIDs(reply)
	return nil
}

// find begins a find on a collection.
func (s *side) find(coll *listed) *builder {
	cmd := document().AppendString("find", coll.ns.Collection())
	if s.uuids {
		cmd.AppendBinary("collectionUUID", bson.TypeBinaryUUID, coll.uuid[:])
	}
	return cmd
}

// end ends the sessions. Otherwise they would time out.
func (s *side) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	list := bsoncore.NewArrayBuilder().AppendDocument(s.lsid)
	s.mu.Lock()
	for _, t := range s.sessions {
		list.AppendDocument(bsoncore.Document(t.ID()))
	}
	s.mu.Unlock()
	body := document().AppendArray("endSessions", list.Build()).Build()
	_, _ = s.caller.Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(body)})
}

func (s *side) wrap(err error, format string, args ...any) error {
	return &sideError{fmt.Errorf("the %s: %s: %w", s.name, fmt.Sprintf(format, args...), err)}
}

// sideError is an error of reading a side: all others are of cuts, or of the metadata.
type sideError struct{ error }

func (e *sideError) Unwrap() error { return e.error }
