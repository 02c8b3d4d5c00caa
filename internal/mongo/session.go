package mongo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// NumberBits is the number of low bits of a transaction number that count. The bits
// above are the prefix, and stay those of the first number of a Session.
const NumberBits = 40

// MaxPrefix is the largest prefix.
const MaxPrefix = math.MaxInt64 >> NumberBits

// errNumbers reports that a session has used all transaction numbers of its prefix.
var errNumbers = errors.New("the session has no transaction numbers left")

// ErrTxnEnded reports the use of a transaction after an error, after its end, or after
// its session has started another one.
var ErrTxnEnded = errors.New("the transaction has ended")

// errCommitted is made once, so that a commit does not allocate it.
var errCommitted = fmt.Errorf("%w: it was committed, or its commit was tried", ErrTxnEnded)

// UnconfirmedError reports a commit that one server executed, but whose write concern is
// not known to be satisfied: it may roll back.
type UnconfirmedError struct {
	// Err is the write concern error.
	Err *servererr.Error
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("commit not confirmed, its outcome is unknown: %v", e.Err)
}

// Unwrap returns the write concern error.
func (e *UnconfirmedError) Unwrap() error { return e.Err }

// Kind returns Unconfirmed.
func (e *UnconfirmedError) Kind() servererr.Kind { return servererr.Unconfirmed }

// FirstNumber returns the first transaction number of a prefix, such as a term.
func FirstNumber(prefix int64) (int64, error) {
	if prefix < 0 || prefix > MaxPrefix {
		return 0, fmt.Errorf("transaction number prefix %d: not between 0 and %d", prefix, int64(MaxPrefix))
	}
	return prefix << NumberBits, nil
}

// SessionID returns a session id ({id: UUID}) that depends only on parts, and is
// different for other parts.
func SessionID(parts ...string) bson.Raw {
	h := sha256.New()
	for _, p := range parts {
		// The length keeps ("ab", "c") and ("a", "bc") apart.
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	id := h.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x80 // version 8: custom
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendBinary("id", bson.TypeBinaryUUID, id).Build())
}

// NewSessionID returns a random session id, {id: UUID}. It is for cursors: each can only
// be used in the session that created it.
func NewSessionID() bson.Raw {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails.
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendBinary("id", bson.TypeBinaryUUID, id[:]).Build())
}

// Session is a logical session with an id and transaction numbers that the program
// chooses, not the driver. Its numbers only grow. It is for one goroutine at a time.
type Session struct {
	caller Caller
	id     bson.Raw
	lsid   []byte // the element lsid
	number int64  // the last one used
	last   int64  // the last one of the prefix
	wrote  bool   // number is that of a Write
	bodies []byte // reused by Txn.CallAll
}

// NewSession returns a session with the id lsid ({id: UUID}); its first transaction or
// retryable write has the number first. Once the numbers with the prefix of first are
// used up, its methods return an error.
func NewSession(caller Caller, lsid bson.Raw, first int64) *Session {
	return &Session{
		caller: caller,
		id:     lsid,
		lsid:   bsoncore.AppendDocumentElement(nil, "lsid", lsid),
		number: first - 1,
		last:   first | (1<<NumberBits - 1),
	}
}

// ID returns the session's id, {id: UUID}.
func (s *Session) ID() bson.Raw { return s.id }

// next takes the next number, and reports false if there is none.
func (s *Session) next() bool {
	if s.number >= s.last {
		return false
	}
	s.number++
	return true
}

// Write runs a write command as a retryable write, under the next number. It sends the
// command once; Again repeats it under the same number, and the server does not execute
// it twice.
func (s *Session) Write(ctx context.Context, cmd Command) (bson.Raw, error) {
	s.wrote = s.next()
	if !s.wrote {
		return nil, fmt.Errorf("write under number %d: %w", s.number, errNumbers)
	}
	return s.send(ctx, cmd, nil)
}

// Again repeats the last Write. The session must not have been used since.
func (s *Session) Again(ctx context.Context, cmd Command) (bson.Raw, error) {
	if !s.wrote {
		return nil, errors.New("retry a write: the session's last transaction number was not used by a write")
	}
	return s.send(ctx, cmd, nil)
}

// send adds the session's fields, and extra ones, to a command and runs it.
func (s *Session) send(ctx context.Context, cmd Command, extra []byte) (bson.Raw, error) {
	body, err := s.appendBody(make([]byte, 0, len(cmd.Body)+len(s.lsid)+len("txnNumber")+10+len(extra)), cmd.Body, extra)
	if err != nil {
		return nil, err
	}
	cmd.Body = body
	return s.caller.Call(ctx, cmd)
}

// Begin starts a transaction under the next number. It sends nothing; with the first
// command the server aborts an earlier transaction of the session that is still open.
func (s *Session) Begin() *Txn {
	s.wrote = false
	t := &Txn{session: s, start: time.Now()}
	if !s.next() {
		t.err = fmt.Errorf("start a transaction after number %d: %w", s.number, errNumbers)
	}
	t.number = s.number
	return t
}

// Txn is a transaction of a Session.
type Txn struct {
	session *Session
	number  int64
	start   time.Time
	// started reports that a command was sent, so the server may know the transaction.
	started bool
	// err is the reason why the transaction can only be aborted, or nil.
	err error
}

var (
	// startFields are added to the first command of a transaction, and fields to every
	// other one, in addition to the session.
	startFields = bsoncore.AppendBooleanElement(slices.Clip(fields), "startTransaction", true)
	fields      = bsoncore.AppendBooleanElement(nil, "autocommit", false)
	// localFields are startFields with the default read concern of transactions. Without it a
	// cluster's own default (setDefaultRWConcern) would apply: under majority a transaction can
	// create no collection, and under available there are no transactions at all.
	localFields = bsoncore.AppendDocumentElement(slices.Clip(startFields), "readConcern",
		bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "level", "local")))
)

// begin returns the fields that are added to the first command of a transaction.
func begin(body bson.Raw) []byte {
	if _, given := rawbson.Lookup(body, "readConcern"); given {
		return startFields
	}
	return localFields
}

// Call runs a command in the transaction. After an error the transaction must only be
// aborted, and also after a reply with write errors: the server has aborted it then.
func (t *Txn) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	extra := fields
	if !t.started {
		t.started, extra = true, begin(cmd.Body)
	}
	reply, err := t.session.send(ctx, cmd, extra)
	if err != nil {
		return nil, t.fail(err)
	}
	return reply, nil
}

// check returns the reason why the transaction cannot continue, or nil.
func (t *Txn) check() error {
	if t.err == nil && t.session.number != t.number {
		t.err = fmt.Errorf("%w: its session is at number %d, it had %d", ErrTxnEnded, t.session.number, t.number)
	}
	return t.err
}

var (
	commitOne      = endCommand("commitTransaction", bsoncore.AppendInt32Element(nil, "w", 1))
	commitMajority = endCommand("commitTransaction", bsoncore.AppendStringElement(nil, "w", "majority"))
	abort          = endCommand("abortTransaction", nil)
)

// endCommand returns a command that ends a transaction, with a write concern.
func endCommand(name string, concern []byte) Command {
	b := bsoncore.NewDocumentBuilder().AppendInt32(name, 1)
	if concern != nil {
		b.AppendDocument("writeConcern", bsoncore.BuildDocument(nil, concern))
	}
	return Command{DB: "admin", Body: bson.Raw(b.Build())}
}

// Commit commits, with the write concern {w: "majority"} or {w: 1}. After a *LostError or
// an *UnconfirmedError the outcome is unknown: it may be committed, and may still roll
// back. If nothing was sent in the transaction, Commit does nothing and returns nil.
func (t *Txn) Commit(ctx context.Context, majority bool) (bson.Raw, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	t.err = errCommitted
	if !t.started {
		return nil, nil
	}
	cmd := commitOne
	if majority {
		cmd = commitMajority
	}
	reply, err := t.session.send(ctx, cmd, fields)
	if err != nil {
		return nil, err
	}
	if e := ConcernError(reply); e != nil {
		return reply, &UnconfirmedError{Err: e}
	}
	return reply, nil
}

// Abort aborts the transaction. It ignores errors: the session's next number aborts the
// transaction, too.
func (t *Txn) Abort(ctx context.Context) {
	if !t.started || t.session.number != t.number {
		return
	}
	t.started = false
	t.err = fmt.Errorf("%w: it was aborted", ErrTxnEnded)
	_, _ = t.session.send(ctx, abort, fields)
}
