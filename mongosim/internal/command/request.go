package command

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

// request is one command being carried out.
type request struct {
	srv  *Server
	conn *Conn
	spec *spec
	// cmd is the body; name its first field's name; db its $db.
	cmd  bson.Raw
	name string
	db   string
	// docs are the document sequences by name, and the arrays of the body that
	// could have been one (documents, updates, deletes), where the spec names it.
	docs map[string][]bson.Raw
	generic
	// exhaust says that the client takes several replies.
	exhaust bool

	// self is the member as it was when the command began.
	self repl.View
	// sess is the session that the command has checked out: nil without txnNumber.
	sess *session
	// txn is the open transaction that the command is part of. It may be used only
	// through [request.withTxn].
	txn *opwrite.Txn
	// fresh says that the txnNumber was new to the session.
	fresh bool
	// read is the timestamp of the newest data that a read has seen.
	read bson.Timestamp
	// saw is the newest committed timestamp that a read of the level majority used.
	saw bson.Timestamp
	// failing is the fail point that the command has met, and mood the mood.
	failing *failure
	mood    *mood.Strike
}

// generic are the arguments that every command may have.
type generic struct {
	lsid        *lsid
	txnNumber   *int64
	autocommit  *bool
	startTxn    bool
	maxTime     time.Duration
	readConcern readConcern
	// writeConcern is the default where wcGiven is false.
	writeConcern repl.WriteConcern
	wcGiven      bool
	// readPref is the mode of $readPreference, "" if there was none.
	readPref   string
	replData   bool
	oplogQuery bool
	comment    bson.RawValue
}

// lsid is a logical session id as sent, and as it is logged.
type lsid struct {
	id     oplog.UUID
	uid    [32]byte
	logged bson.Raw
}

type readConcern struct {
	level            string // "" is the default, local
	afterClusterTime *bson.Timestamp
	atClusterTime    *bson.Timestamp
	given            bool
}

// inTxn reports whether the command is part of a multi-document transaction.
func (r *request) inTxn() bool { return r.autocommit != nil && !*r.autocommit }

// reply is built field by field; the dispatcher adds ok and the common fields.
// Append with bsoncore's Append…Element functions to Buf, which begins with the
// four bytes of the document's length.
type reply struct {
	Buf []byte
	// more asks, on an exhaust request, for the next reply without a request; next
	// is the body of the request that this stands for, nil for the same again.
	more bool
	next bson.Raw
	// hasOK is true if the command has appended ok itself.
	hasOK bool
	// wrote is the optime that the write concern is about. The null optime means
	// the newest one, as for a write that changed nothing.
	wrote oplog.OpTime
	// unmet is the writeConcernError, and unmetCode its code, if there is one.
	unmet     bson.Raw
	unmetCode servererr.Code
}

// spec says how a command is called.
type spec struct {
	name    string
	aliases []string
	run     func(ctx context.Context, r *request, out *reply) error
	// structName is the name that the server gives the command's arguments in
	// messages about unknown fields ("FindCommandRequest"), default the name.
	structName string
	// fields are the arguments of the command besides its name and the generic
	// ones; nil means that unknown ones are not refused.
	fields []string
	// sequence names the argument that may come as a document sequence.
	sequence string
	// adminOnly commands run against the database admin.
	adminOnly bool
	// secondary says where it runs: never on a secondary, always, or if the read
	// preference allows it.
	secondary secondaryRule
	// inTxn commands are allowed in multi-document transactions.
	inTxn bool
	// writes commands take a write concern.
	writes bool
	// snapshot commands take readConcern snapshot outside of transactions;
	// concern commands take the levels majority and linearizable.
	snapshot, concern bool
	// beforeAuth commands need no login. check, if set, says what is needed;
	// nil with beforeAuth false means any login will do.
	beforeAuth bool
	check      func(r *request) error
	// ownMaxTime commands use maxTimeMS for something else than a limit of their
	// run (getMore: how long to wait for data).
	ownMaxTime bool
	// test commands exist only with Config.TestCommands.
	test bool

	known map[string]int
}

type secondaryRule uint8

const (
	primaryOnly secondaryRule = iota
	anyMember
	optIn
)

// specs lists the commands, one function per file that implements some.
func specs() []spec {
	var all []spec
	for _, part := range [][]spec{
		writeSpecs(), readSpecs(), cursorSpecs(), txnSpecs(), sessionSpecs(), failPointSpecs(),
		listSpecs(), ddlSpecs(), indexSpecs(), adminSpecs(), replSpecs(), authSpecs(),
	} {
		all = append(all, part...)
	}
	return all
}
