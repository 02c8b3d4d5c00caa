package dispatch

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/oplog"
)

// Nobody is the uid of sessions without a user: the digest of the empty name.
var Nobody = sha256.Sum256(nil)

// sessionKey is a logical session id as a key.
type sessionKey struct {
	id  oplog.UUID
	uid [32]byte
}

// session is a logical session that has had a txnNumber.
type session struct {
	lsid *LSID
	// users, dropping and used belong to the [sessionTable].
	users    int
	dropping bool
	used     time.Time
	// token is taken by the command that has checked the session out.
	token chan struct{}

	// Mu guards the fields below. The data of a txn are guarded by the store's lock:
	// see [Request.withTxn].
	Mu sync.Mutex
	// interrupt ends the command that has checked the session out; nil if none has.
	interrupt context.CancelCauseFunc
	// loaded is true once the fields are read from config.transactions.
	loaded bool
	// active is the newest txnNumber, -1 if there has been none.
	active int64
	State  txnState
	txn    *opwrite.Txn
	// prepared is the optime of the prepare entry.
	prepared oplog.OpTime
	// ended is the optime of the commit.
	ended oplog.OpTime
	// Lifetime ends a transaction that is open for too long; nil if none is.
	Lifetime *time.Timer
}

// txnState is the state of the transaction with a session's newest txnNumber.
type txnState uint8

// The states of a transaction.
const (
	// noTxn: the newest txnNumber is that of retryable writes.
	noTxn txnState = iota
	TxnInProgress
	TxnPrepared
	txnCommitted
	txnAborted
)

func (l *LSID) clone() *LSID {
	c := *l
	return &c
}

// Text prints the id as the server does in messages.
func (l *LSID) Text(s *Server) string {
	text := fmt.Sprintf("%s - %s", l.id, base64.StdEncoding.EncodeToString(l.uid[:]))
	if s.AtLeast(5, 3) {
		text += " -  - " // where a child of the session would be named
	}
	return text
}

// NewLSID makes the id of a session of a user.
func NewLSID(id oplog.UUID, uid [32]byte) *LSID {
	i, doc := bsoncore.AppendDocumentStart(make([]byte, 0, 96))
	doc = bsoncore.AppendBinaryElement(doc, "id", bson.TypeBinaryUUID, id[:])
	doc = bsoncore.AppendBinaryElement(doc, "uid", bson.TypeBinaryGeneric, uid[:])
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return &LSID{id: id, uid: uid, Logged: doc}
}

// UserID is the uid of sessions of the connection's user.
func (r *Request) UserID() [32]byte {
	if r.Server.Config.Auth == nil || r.Conn.Internal {
		return Nobody
	}
	return r.Server.Config.Auth.UserID(r.Conn)
}

// parseLSID reads a logical session id: {id: UUID}, with the uid of the user
// only if the sender may speak for others.
func (r *Request) parseLSID(e *rawbson.Elem) (*LSID, error) {
	doc, ok := e.Document()
	if !ok {
		return nil, WrongType("OperationSessionInfo", "lsid", e.Type, "object")
	}
	uid := r.UserID()
	var id oplog.UUID
	found := false
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "id":
			subtype, data, ok := it.Binary()
			if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(id) {
				return nil, WrongType("lsid", "id", it.Type, "binData")
			}
			copy(id[:], data)
			found = true
		case "uid":
			_, data, ok := it.Binary()
			if !ok || len(data) != len(uid) {
				return nil, WrongType("lsid", "uid", it.Type, "binData")
			}
			given := [32]byte(data)
			if given != uid && r.Server.Config.Auth != nil && !r.Conn.Internal {
				return nil, servererr.New(servererr.Unauthorized, "Not authorized to set user digest in LogicalSessionId")
			}
			uid = given
		case "txnNumber", "txnUUID":
			return nil, servererr.New(servererr.InvalidOptions, "Internal sessions are not enabled")
		default:
			return nil, UnknownField("lsid", it.Name())
		}
	}
	if !found {
		return nil, MissingField("lsid", "id")
	}
	return NewLSID(id, uid), nil
}

// transactionCommands end or prepare transactions.
var transactionCommands = map[string]bool{
	"commitTransaction": true, "abortTransaction": true, "prepareTransaction": true,
}

// retryableCommands take a txnNumber outside of transactions.
var retryableCommands = map[string]bool{
	"insert": true, "update": true, "delete": true, "findAndModify": true,
}

// checkSessionOptions checks lsid, txnNumber, autocommit and startTransaction
// against each other and the command, in the server's order.
func (r *Request) checkSessionOptions() error {
	if r.Spec.BeforeAuth && r.autocommit != nil {
		return servererr.New(servererr.OperationNotSupportedInTransaction, "This command is not supported in transactions")
	}
	if r.Spec.BeforeAuth && r.TxnNumber != nil {
		return servererr.New(50889, "It is illegal to provide a txnNumber for this command")
	}
	switch {
	case r.TxnNumber != nil && r.LSID == nil:
		return servererr.New(servererr.InvalidOptions, "Transaction number requires a session ID to also be specified")
	case r.TxnNumber != nil && *r.TxnNumber < 0:
		return servererr.New(servererr.InvalidOptions, "Transaction number cannot be negative")
	case r.TxnNumber == nil && r.autocommit != nil:
		return servererr.New(servererr.InvalidOptions, "'autocommit' field requires a transaction number to also be specified")
	case r.autocommit != nil && *r.autocommit:
		return servererr.New(servererr.InvalidOptions, "Specifying autocommit=true is not allowed.")
	case r.startTxn && r.autocommit == nil:
		return servererr.New(servererr.InvalidOptions, "'startTransaction' field requires 'autocommit' field to also be specified")
	}
	if r.InTxn() {
		if err := r.checkInTxn(); err != nil {
			return err
		}
	} else if r.TxnNumber != nil && !retryableCommands[r.Spec.Name] {
		return servererr.New(servererr.NotARetryableWriteCommand, "txnNumber may only be provided for multi-document transactions "+
			"and retryable write commands. autocommit:false was not provided, and %s is not a retryable write command.", r.Name)
	}
	if !r.startTxn {
		return nil
	}
	const first = servererr.OperationNotSupportedInTransaction
	switch r.Spec.Name {
	case "killCursors":
		return servererr.New(first, "Cannot run killCursors as the first operation in a multi-document transaction.")
	case "prepareTransaction":
		return servererr.New(first, "Cannot start a transaction with a prepare")
	case "commitTransaction":
		return servererr.New(first, "Cannot start a transaction with a commit")
	case "abortTransaction":
		return servererr.New(first, "Cannot start a transaction with an abort")
	}
	return nil
}

// checkInTxn refuses commands that are not permitted in a transaction.
func (r *Request) checkInTxn() error {
	const no = servererr.OperationNotSupportedInTransaction
	if r.Spec.Name == "count" {
		return servererr.New(no, "Cannot run 'count' in a multi-document transaction. Please see "+
			"http://dochub.mongodb.org/core/transaction-count for a recommended alternative.")
	}
	if !r.Spec.InTxn {
		return servererr.New(no, "Cannot run '%s' in a multi-document transaction.", r.Name)
	}
	if transactionCommands[r.Spec.Name] {
		return nil
	}
	switch r.DB {
	case "local", "admin", "config":
		return servererr.New(no, "Cannot run command against the '%s' database in a transaction.", r.DB)
	}
	return nil
}

// CheckOut checks the session out for this command, after those that have it.
// interrupt ends the command when the session is killed.
func (r *Request) CheckOut(ctx context.Context, interrupt context.CancelCauseFunc) (release func(), err error) {
	table := &r.Server.Sessions
	s := table.use(r.LSID)
	select {
	case s.token <- struct{}{}:
	default:
		select {
		case s.token <- struct{}{}:
		case <-ctx.Done():
			table.done(s)
			return nil, Interrupted(ctx)
		}
	}
	r.sess = s
	s.hold(interrupt)
	return func() {
		s.hold(nil)
		<-s.token
		table.done(s)
	}, nil
}

// hold records how to end the command that has the session.
func (s *session) hold(interrupt context.CancelCauseFunc) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.interrupt = interrupt
}

// kill ends the command that has the session, if there is one.
func (s *session) kill() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.interrupt != nil {
		s.interrupt(errKilled)
	}
}

// load reads the session's record from config.transactions, once.
func (r *Request) load() error {
	s := r.sess
	s.Mu.Lock()
	loaded := s.loaded
	s.Mu.Unlock()
	if loaded {
		return nil
	}
	return r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
		record, err := b.SessionRecord(s.lsid.Logged)
		if err != nil {
			return err
		}
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.loaded = true
		if !record.Exists || record.TxnNumber < s.active || s.State == TxnInProgress || s.State == TxnPrepared {
			return nil
		}
		s.active, s.ended = record.TxnNumber, record.LastWrite
		switch record.State {
		case "":
			s.State = noTxn
		case "committed":
			s.State = txnCommitted
		default: // a transaction in progress on another primary ended with it
			s.State = txnAborted
		}
		return nil
	})
}

// ForgetSessions makes every session be read again from config.transactions.
// Transactions in progress have been aborted before.
func (s *Server) ForgetSessions() {
	for _, sess := range s.Sessions.All() {
		sess.Mu.Lock()
		if sess.State != TxnInProgress && sess.State != TxnPrepared {
			sess.loaded, sess.active, sess.State = false, -1, noTxn
		}
		sess.Mu.Unlock()
	}
}

// loggedLSID reads an id in its logged form.
func loggedLSID(doc bson.Raw) (*LSID, error) {
	id, _ := rawbson.Lookup(doc, "id")
	uid, _ := rawbson.Lookup(doc, "uid")
	_, idData, ok := id.Binary()
	_, uidData, okUID := uid.Binary()
	if !ok || !okUID || len(idData) != 16 || len(uidData) != 32 {
		return nil, servererr.New(servererr.BadValue, "not a logical session id: %s", bsontext.Document(doc))
	}
	return NewLSID(oplog.UUID(idData), [32]byte(uidData)), nil
}
