package call

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Session is a logical session whose id and transaction numbers are chosen by
// us, not by a driver. Its transaction numbers only go up. It is for one
// goroutine at a time.
type Session struct {
	caller Caller
	lsid   bson.Raw
	mu     sync.Mutex
	number int64
}

// NewSession returns a session with the id lsid ({id: UUID}); the first
// transaction or retryable write has the number first.
func NewSession(caller Caller, lsid bson.Raw, first int64) *Session {
	return &Session{caller: caller, lsid: lsid, number: first - 1}
}

// Write runs a write command as a retryable write, under the next number. It is
// sent once; Again repeats it under the same number, which the server answers
// without carrying it out twice.
func (s *Session) Write(ctx context.Context, cmd Command) (bson.Raw, error) { panic("not written yet") }

// Again repeats the last Write.
func (s *Session) Again(ctx context.Context, cmd Command) (bson.Raw, error) { panic("not written yet") }

// Begin starts a transaction under the next number. Nothing is sent before its
// first command. What an earlier transaction of the session left open is aborted
// by the server then.
func (s *Session) Begin() *Txn { panic("not written yet") }

// Txn is a transaction of a Session.
type Txn struct {
	session *Session
	number  int64
	started bool
}

// Call runs a command inside of the transaction. After an error the transaction
// is not to be used but for Abort.
func (t *Txn) Call(ctx context.Context, cmd Command) (bson.Raw, error) { panic("not written yet") }

// Commit commits, with the write concern {w: w} ("majority" or 1). A *LostError,
// or a concern error, means that it may or may not be committed.
func (t *Txn) Commit(ctx context.Context, majority bool) (bson.Raw, error) {
	panic("not written yet")
}

// Abort gives the transaction up. That it could not be said to the server does
// not matter: the session's next number aborts it.
func (t *Txn) Abort(ctx context.Context) { panic("not written yet") }
