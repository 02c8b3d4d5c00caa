package dispatch

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

// Request is one command in execution.
type Request struct {
	Server *Server
	Conn   *Conn
	Spec   *Spec
	// Cmd is the body; name its first field's name; db its $db.
	Cmd  bson.Raw
	Name string
	DB   string
	// Docs are the document sequences by name, and the arrays of the body that
	// could have been one (documents, updates, deletes), where the spec names it.
	Docs map[string][]bson.Raw
	Generic
	// Exhaust is true if the client accepts several replies.
	Exhaust bool

	// Self is the member's state when the command started.
	Self repl.View
	// sess is the session that the command has checked out: nil without txnNumber.
	sess *session
	// txn is the open transaction that the command is part of. It may be used only
	// through [Request.withTxn].
	txn *opwrite.Txn
	// Fresh says that the txnNumber was new to the session.
	Fresh bool
	// read is the timestamp of the newest data that a read has seen.
	read bson.Timestamp
	// saw is the newest committed timestamp that a read of the level majority used.
	saw bson.Timestamp
	// Failing is the fail point that the command has met, and mood the mood.
	Failing *Failure
	mood    *mood.Strike
}

// Generic are the arguments that every command may have.
type Generic struct {
	LSID        *LSID
	TxnNumber   *int64
	autocommit  *bool
	startTxn    bool
	maxTime     time.Duration
	ReadConcern readConcern
	// writeConcern is the default where wcGiven is false.
	writeConcern repl.WriteConcern
	wcGiven      bool
	// readPref is the mode of $readPreference, "" if there was none.
	readPref   string
	replData   bool
	oplogQuery bool
}

// LSID is a logical session id as sent, and as it is logged.
type LSID struct {
	id     oplog.UUID
	uid    [32]byte
	Logged bson.Raw
}

type readConcern struct {
	Level            string // "" is the default, local
	afterClusterTime *bson.Timestamp
	atClusterTime    *bson.Timestamp
	given            bool
}

// InTxn reports whether the command is part of a multi-document transaction.
func (r *Request) InTxn() bool { return r.autocommit != nil && !*r.autocommit }

// Reply is built field by field; the dispatcher adds ok and the common fields.
// Append with bsoncore's Append…Element functions to Buf, which begins with the
// four bytes of the document's length.
type Reply struct {
	Buf []byte
	// More asks, on an exhaust request, for the next reply without a request; next
	// is the body of the request that this stands for, nil for the same again.
	More bool
	Next bson.Raw
	// HasOK is true if the command has appended ok itself.
	HasOK bool
	// Wrote is the optime to which the write concern applies. The null optime
	// means the newest one, as for a write that changed nothing.
	Wrote oplog.OpTime
	// unmet is the writeConcernError, and unmetCode its code, if there is one.
	unmet     bson.Raw
	unmetCode servererr.Code
}

// Spec describes a command.
type Spec struct {
	Name    string
	Aliases []string
	Run     func(ctx context.Context, r *Request, out *Reply) error
	// StructName is the name that the server gives the command's arguments in
	// messages about unknown fields ("FindCommandRequest"), default the name.
	StructName string
	// Fields are the arguments of the command other than its name and the generic
	// ones; nil means that unknown ones are not refused.
	Fields []string
	// Sequence names the argument that may come as a document sequence.
	Sequence string
	// AdminOnly commands run against the database admin.
	AdminOnly bool
	// Secondary says whether it runs on a secondary: never, always, or if the
	// read preference allows it.
	Secondary secondaryRule
	// InTxn commands are allowed in multi-document transactions.
	InTxn bool
	// Writes commands take a write concern.
	Writes bool
	// Snapshot commands take readConcern snapshot outside of transactions;
	// concern commands take the levels majority and linearizable.
	Snapshot, Concern bool
	// BeforeAuth commands need no login. check, if set, checks privileges; nil
	// with beforeAuth false means that any login is enough.
	BeforeAuth bool
	Check      func(r *Request) error
	// OwnMaxTime commands use maxTimeMS for something else than a limit of their
	// run (getMore: how long to wait for data).
	OwnMaxTime bool
	// Test commands are those that a server has with enableTestCommands only. They meet no
	// moods.
	Test bool

	known map[string]int
}

// secondaryRule says on which members a command runs.
type secondaryRule uint8

// The rules: on a primary only, on any member, where the read preference allows it.
const (
	primaryOnly secondaryRule = iota
	AnyMember
	OptIn
)
