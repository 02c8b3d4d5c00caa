package cutover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrNotFrozen reports that writes to the source are not blocked.
	ErrNotFrozen = errors.New("writes to the source are not blocked")
	// ErrThawed reports that writes to the source were blocked, and are not any more.
	ErrThawed = errors.New("the write block of the source was lifted meanwhile")

	errNoTime = errors.New("its reply has no operationTime")
)

// answerWithin is how long the source may take to say whether writes to it are blocked.
const answerWithin = time.Minute

// answering returns a context that ends after that, as if the connection had broken then: a set that answers nothing any more on one
// connection is asked again, on another one.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, answerWithin, &mongo.SilentError{After: answerWithin, Read: true})
}

// Cutter makes consistent cuts of a link: a *request.Store.
type Cutter interface {
	// NextCut asks for a cut that is made after the call has begun, and waits until it is
	// majority-committed; see request.Store.
	NextCut(ctx context.Context, by, why string, within time.Duration, said func(string)) (checkpoint.Cut, error)
}

// DrainConfig configures Drain.
type DrainConfig struct {
	// Source runs commands on the source's primary.
	Source mongo.Caller
	// Cuts are those of the link with the name Link.
	Cuts Cutter
	Link string
	// By is the operator, as in a request.
	By string
	// WritesStopped: the operator states that no client writes to the source; otherwise its
	// write block has to be on from before until after the drain.
	WritesStopped bool
	// Within limits how long it takes.
	Within time.Duration
	// OnWait, if not nil, is called with the reason of each wait.
	OnWait func(string)
}

// Drained is the proof that the target has everything that was written to the source before
// writes were blocked.
type Drained struct {
	// Last is the entry that Drain has appended to the source's oplog: every write that the
	// source has acknowledged comes before it.
	Last bson.Timestamp
	// Cut is a cut at Last or after it: at its time the target is the source.
	Cut checkpoint.Cut
	// Took is how long it took.
	Took time.Duration
}

// Drain appends an entry to the oplog of a source whose writes are blocked, with write concern
// majority, and waits for a consistent cut of the link that includes it. The entry is a no-op,
// which changes no data; to call Drain again appends another one. It leaves the block as it is.
//
//	write block on ──▶ entry Last in the source's oplog ──▶ lanes idle at S ≥ Last, cut ──▶ block still on?
//
// Errors wrap ErrNotFrozen, ErrThawed, or request.ErrNoCut, which says why there is no cut.
func Drain(ctx context.Context, cfg *DrainConfig) (Drained, error) {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, cfg.Within)
	defer cancel()
	if err := cfg.frozen(limited, ErrNotFrozen); err != nil {
		return Drained{}, err
	}
	last, err := cfg.note(limited)
	if err != nil {
		return Drained{}, fmt.Errorf("append an entry to the source's oplog: %w", err)
	}
	d := Drained{Last: last}
	for {
		left := max(time.Second, cfg.Within-time.Since(begun))
		if d.Cut, err = cfg.Cuts.NextCut(ctx, cfg.By, "to drain the link", left, cfg.OnWait); err != nil {
			return Drained{}, err
		}
		if oplog.CompareTimestamps(d.Cut.Source.TS, last) >= 0 {
			break
		}
		at := fmt.Sprintf("the target has everything up to %s, the source's last entry is %d:%d", d.Cut.Source, last.T, last.I)
		cfg.say(at)
		if limited.Err() != nil {
			return Drained{}, fmt.Errorf("waited %s: %s: %w", cfg.Within, at, limited.Err())
		}
	}
	d.Took = time.Since(begun)
	return d, cfg.frozen(ctx, ErrThawed)
}

func (cfg *DrainConfig) say(what string) {
	if cfg.OnWait != nil {
		cfg.OnWait(what)
	}
}

// frozen returns an error if the source's write block is needed, and is not on.
func (cfg *DrainConfig) frozen(ctx context.Context, otherwise error) error {
	if cfg.WritesStopped {
		return nil
	}
	// Commit asks under the link's lease, so that no other process applies anything.
	ctx, cancel := answering(ctx)
	defer cancel()
	on, err := Blocked(ctx, cfg.Source)
	if err == nil && !on { // A primary that was just elected knows what a majority has once it has an entry of its own.
		if _, err = cfg.note(ctx); err != nil {
			return fmt.Errorf("append an entry to the source's oplog, after which its primary knows whether writes are blocked: %w", err)
		}
		on, err = Blocked(ctx, cfg.Source)
	}
	switch {
	case err != nil:
		return fmt.Errorf("ask whether writes to the source are blocked: %w", err)
	case !on:
		return otherwise
	}
	return nil
}

// Blocked reports whether a set blocks writes of users, with a block that it will not take back.
func Blocked(ctx context.Context, set mongo.Caller) (bool, error) {
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: "user_writes_critical_sections"},
		{Key: "filter", Value: bson.D{{Key: "blockUserWrites", Value: true}}},
		{Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return false, err
	}
	reply, err := mongo.Reads(set).Call(ctx, mongo.Command{DB: "config", Body: body})
	if err != nil {
		return false, err
	}
	batch, err := mongo.ReadBatch(reply)
	return len(batch.Docs) > 0, err
}

// note appends a no-op to the source's oplog, and returns a time at or after that of the entry.
func (cfg *DrainConfig) note(ctx context.Context) (at bson.Timestamp, err error) {
	body, err := bson.Marshal(bson.D{
		{Key: "appendOplogNote", Value: 1},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "replicator: drain of link " + cfg.Link}, {Key: "by", Value: cfg.By}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	})
	if err != nil {
		return at, err
	}
	// Another note does no harm, so a lost reply is not a reason to stop.
	err = mongo.Retry{For: cfg.Within, Again: passing}.Do(ctx, func() error {
		reply, err := cfg.Source.Call(ctx, mongo.Command{DB: "admin", Body: body})
		if err != nil {
			return err
		}
		if e := mongo.ConcernError(reply); e != nil {
			return &mongo.UnconfirmedError{Err: e}
		}
		e, _ := rawbson.Lookup(reply, "operationTime")
		var ok bool
		if at, ok = e.Timestamp(); !ok {
			return errNoTime
		}
		return nil
	})
	return at, err
}
