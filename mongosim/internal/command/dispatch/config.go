package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/mood"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// The limits that hello states: bytes of a document, operations of a write command.
const (
	MaxDocument = 16 << 20
	MaxBatch    = 100_000
)

// Config configures a Server. All fields are required unless stated otherwise.
type Config struct {
	// Host is the member's host:port as the set's configuration names it.
	Host string
	// Dialect is the emulated server version.
	Dialect opwrite.Dialect
	Store   *storage.Store
	Path    *opwrite.Path
	Node    Node
	// Auth checks the privileges of users; nil means that access control is
	// off.
	Auth Authorizer
	// Now is the member's clock; nil means time.Now.
	Now     func() time.Time
	NewUUID func() oplog.UUID
	// Seed is the seed of $sample.
	Seed int64
	// Log may be nil.
	Log *slog.Logger
	// DefaultReadConcern is the level of reads that name none; empty means local.
	DefaultReadConcern string
	// TransactionLifetime is how long a transaction may be open; 0 means forever.
	// The server's own default is 60 seconds.
	TransactionLifetime time.Duration
	// Moods decides which rare answers clients get; nil means none.
	Moods *mood.Temper
	// Shutdown is called by the command shutdown and must stop the member soon, but
	// not before it returns; nil means that the command is refused.
	Shutdown func()
}

func (c *Config) validate() error {
	var errs []error
	missing := func(what string, is bool) {
		if is {
			errs = append(errs, errors.New("command: configuration has no "+what))
		}
	}
	missing("Host", c.Host == "")
	missing("Store", c.Store == nil)
	missing("Path", c.Path == nil)
	missing("Node", c.Node == nil)
	missing("NewUUID", c.NewUUID == nil)
	if _, err := parseVersion(c.Dialect.Version); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Node is the member that the commands are run on. A [*repl.Node] implements it
// and documents the methods.
type Node interface {
	// View returns the member's present state.
	View() repl.View
	// Changed is closed at the next change that hello must report.
	Changed() <-chan struct{}
	// CommittedChanged is closed when the commit point moves.
	CommittedChanged() <-chan struct{}
	// Initiate is replSetInitiate.
	Initiate(ctx context.Context, config bson.Raw) error
	// Reconfig is replSetReconfig.
	Reconfig(ctx context.Context, config bson.Raw, force bool) error
	// StepDown is replSetStepDown.
	StepDown(ctx context.Context, stepDown, catchUp time.Duration, force bool) error
	// StepUp is replSetStepUp.
	StepUp(ctx context.Context) error
	// Freeze is replSetFreeze.
	Freeze(d time.Duration) error
	// Heartbeat is replSetHeartbeat.
	Heartbeat(cmd bson.Raw) (bson.Raw, error)
	// RequestVotes is replSetRequestVotes.
	RequestVotes(cmd bson.Raw) (bson.Raw, error)
	// UpdatePosition is replSetUpdatePosition.
	UpdatePosition(cmd bson.Raw) error
	// Status is replSetGetStatus.
	Status() (bson.Raw, error)
	// SawTerm learns a term that a request carried.
	SawTerm(term int64)
	// AwaitWriteConcern waits until the members asked for have the optime.
	AwaitWriteConcern(ctx context.Context, at oplog.OpTime, wc repl.WriteConcern) error
	// AwaitApplied waits until this member has applied the timestamp.
	AwaitApplied(ctx context.Context, ts bson.Timestamp) error
	// AwaitCommitted waits until the commit point has reached the timestamp.
	AwaitCommitted(ctx context.Context, ts bson.Timestamp) error
}

var _ Node = (*repl.Node)(nil)

// Authorizer is access control, kept by connection.
type Authorizer interface {
	// Start is saslStart.
	Start(c *Conn, db string, cmd bson.Raw) (reply bson.Raw, err error)
	// Continue is saslContinue.
	Continue(c *Conn, db string, cmd bson.Raw) (reply bson.Raw, err error)
	// Logout ends a login.
	Logout(c *Conn, db string)
	// Check returns Unauthorized, worded as the server does, unless a user of the
	// connection may do the action on the resource. coll "" is the whole database,
	// db "" the cluster. action "" only requires a login.
	Check(c *Conn, action, db, coll string, cmd bson.Raw) error
	// Status is authInfo of connectionStatus.
	Status(c *Conn, showPrivileges bool) bson.Raw
	// UserID is the uid part of logical session ids of this connection's user.
	UserID(c *Conn) [32]byte
}

// Conn is one client connection. It is used by one command at a time.
type Conn struct {
	// ID is the connectionId of hello, counted from 1.
	ID     int64
	Remote string
	// Internal is true for other members of the set in this process: they have
	// all privileges.
	Internal bool
	// Metadata is the client document of the first hello.
	Metadata bson.Raw
	// SupportsHello is true once the client has sent helloOk: messages about the
	// primary then do not use the older word.
	SupportsHello bool
	// Login is the Authorizer's own state.
	Login any

	// era is the connection's age for moods, and named caches the result of
	// app.
	era   int64
	named *string
}
