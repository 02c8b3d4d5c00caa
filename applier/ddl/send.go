package ddl

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// How long to wait before a command is tried again that other work stands in the
// way of: doubling from shortest to longest, and half of it at random.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 5 * time.Second
)

// send runs a command that is built without its write concern, and waits for a
// majority. Where the target says that other work is in the way it did nothing,
// and is asked again until ctx ends, or the link is not held any more.
func (s *step) send(ctx context.Context, d deed) (bson.Raw, error) {
	var reply bson.Raw
	err := s.patiently(ctx, false, func() (err error) {
		reply, err = s.run(ctx, &d)
		return err
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// patiently tries something until it is done, or refused for other reasons than
// that other work is in the way. Of a transaction, nothing was done then: what became
// of a commit may be unknown, whatever it was refused for.
func (s *step) patiently(ctx context.Context, inTxn bool, try func() error) error {
	for wait := shortestWait; ; wait = min(wait*2, longestWait) {
		err := try()
		again := busy(err)
		if inTxn {
			_, stuck := errors.AsType[*mongo.StuckError](err) // of what passes, by who tried it
			disposition := mongo.DispositionOf(err)
			again = stuck || disposition == mongo.Again || disposition == mongo.Smaller
		}
		if !again {
			return err
		}
		if wait == shortestWait {
			s.logWaiting(err)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// pause waits, by a half of it at random.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait/2 + rand.N(wait/2)) //nolint:gosec // spreads load, keeps no secret
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// busy tells whether a refusal is because of work that ends by itself, or because
// the target has no room for the command just then. One that was carried out, and is
// not known to be where it was wanted, was not refused.
func busy(err error) bool {
	if errors.Is(err, mongo.ErrTooLate) {
		return true
	}
	k := servererr.Classify(err)
	return k == servererr.Transient || k == servererr.Split
}

// says reports whether the target has refused a command in the way that what tells. Of
// one that was late, what the fence says is no word about it.
func says(err error, what func(error) bool) bool {
	_, late := errors.AsType[*LateError](err)
	return !late && what(err)
}

// command begins a command on a collection.
func command(name, collection string) *bsoncore.DocumentBuilder {
	return bsoncore.NewDocumentBuilder().AppendString(name, collection)
}

// write runs an insert, update or delete on the metadata, and fails where a
// statement does.
func (s *step) write(ctx context.Context, cmd *bsoncore.DocumentBuilder) error {
	return s.within(ctx, mongo.Command{DB: s.cfg.MetaDB, Body: bson.Raw(cmd.Build())})
}
