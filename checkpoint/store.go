package checkpoint

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrFenced is a link whose term was raised by another process: this one
	// must write no more.
	ErrFenced = errors.New("another process has taken over the link")
	// ErrRewound is a target that no longer has what it had acknowledged, after
	// a failover: the attempt has to begin again from what the lanes say.
	ErrRewound = errors.New("the target lost acknowledged writes")
)

// Source says which replica set a link follows.
type Source struct {
	// ReplicaSetID is settings.replicaSetId of its config, nil where it could
	// not be learned. A set with another one is another set.
	ReplicaSetID bson.RawValue
	SetName      string
	// RBID is the rollback id of Host, the member that was read last, -1 where
	// it is not known.
	RBID int64
	Host string
}

// State is what is known of a link.
type State struct {
	// Term counts the starts of the link, from 1.
	Term    int64
	Source  Source
	Writers int
	// Fingerprint is of the settings that must not change while a link lives
	// (filters, renames, policies).
	Fingerprint string
	// Applied, AppliedWall and FetchFrom are the checkpoint: everything up to
	// Applied is in the target, reading begins at FetchFrom.
	Applied     oplog.OpTime
	AppliedWall int64
	FetchFrom   oplog.OpTime
	// CopiedUntil: up to it the log meets a copy that was taken while writes
	// went on. Null where the data were exact from the start.
	CopiedUntil oplog.OpTime
	// Lanes are the positions of the writers' lanes; a lane that has not moved
	// yet has the position {Applied of the link's creation, AllOps}.
	Lanes []Position
	// Barrier is the position of the lane for what has to be alone: everything
	// before it, in any lane, is in the target. Begun, if not the zero Position,
	// is a command that was begun behind it and may or may not have been carried
	// out.
	Barrier Position
	Begun   Position
}

// Config says where a link is kept.
type Config struct {
	// Target runs commands on the target's primary.
	Target call.Caller
	// DB is the metadata database. Empty means "replicator".
	DB string
	// Link is the link's name.
	Link string
}

// Store reads links and takes hold of one.
type Store struct{ cfg Config }

// New checks cfg. It does no I/O.
func New(cfg Config) (*Store, error) { panic("not written yet") }

// Load reads the link, false where there is none. What it says may be rolled
// back by the target until Begin has returned.
func (s *Store) Load(ctx context.Context) (State, bool, error) { panic("not written yet") }

// Create makes the link with first (Term is ignored, Lanes, Barrier and Begun
// too). That it exists already is an error.
func (s *Store) Create(ctx context.Context, first State) error { panic("not written yet") }

// Begin raises the link's term by one and then fences every lane with it: after
// it returns no write of an older term can succeed any more, and everything that
// State says is committed by a majority. If after is not 0 it is the term that
// this process had before, and any other term is ErrFenced.
func (s *Store) Begin(ctx context.Context, after int64) (*Hold, error) { panic("not written yet") }

// Hold is a link under one term. Its methods are safe for concurrent use, its
// Lanes are each for one goroutine.
type Hold struct{}

// State returns what was found when the term was raised.
func (h *Hold) State() State { panic("not written yet") }

// Term returns the term.
func (h *Hold) Term() int64 { panic("not written yet") }

// Lane returns writer i's lane. It is the same one each time.
func (h *Hold) Lane(i int) *Lane { panic("not written yet") }

// Barrier returns the lane for what has to be alone.
func (h *Hold) Barrier() *Lane { panic("not written yet") }

// Advance moves the link's checkpoint to cp once all lanes are found at or
// behind... that is, not before, the positions given, in one transaction that is
// committed with majority. Lanes holds the positions that the lanes had
// acknowledged when cp was the watermark, or later ones. The error is ErrFenced,
// ErrRewound, or that of the target.
func (h *Hold) Advance(ctx context.Context, cp Progress, lanes []Position, src Source) error {
	panic("not written yet")
}

// Resize changes the number of lanes, at the checkpoint cp that all of the log up
// to it has been applied to and nothing behind it. The Hold is spent: Begin anew.
func (h *Hold) Resize(ctx context.Context, cp Progress, writers int) error { panic("not written yet") }

// Lane is a lane of the target: a document with a position, and a session.
type Lane struct{}

// Session returns the lane's session, to write with.
func (l *Lane) Session() *call.Session { panic("not written yet") }

// Position returns the position that the target acknowledged last.
func (l *Lane) Position() Position { panic("not written yet") }

// Move is to be the first thing in a transaction: it moves the lane's document
// from Position to next, with a filter on the term and the position. If nothing
// matches it finds out why: ErrFenced or ErrRewound. Moved is to be called once
// the transaction has committed.
func (l *Lane) Move(ctx context.Context, txn *call.Txn, next Position) error {
	panic("not written yet")
}

// Moved says that the transaction with Move to next has committed.
func (l *Lane) Moved(next Position) { panic("not written yet") }

// Verify, inside of a transaction, finds all writers' lanes not before the given
// positions, or returns ErrRewound (ErrFenced if their term is not ours).
func (h *Hold) Verify(ctx context.Context, txn *call.Txn, lanes []Position) error {
	panic("not written yet")
}

// BeginAlone records, with majority, that what is at next is being carried out
// by the lane outside of a transaction (a command, or writes that transactions
// refuse). For the barrier lane lanes are verified in the same transaction; a
// writer's lane gives nil. Everything acknowledged before is committed by a
// majority when it returns.
func (l *Lane) BeginAlone(ctx context.Context, next Position, lanes []Position) error {
	panic("not written yet")
}

// EndAlone records that what BeginAlone announced is done, and moves the lane.
// What was done has to be committed by a majority before.
func (l *Lane) EndAlone(ctx context.Context, next Position) error { panic("not written yet") }

// Begun returns what was begun by an earlier term and not ended: it may or may
// not have been carried out. The zero Position stands for nothing.
func (l *Lane) Begun() Position { panic("not written yet") }
