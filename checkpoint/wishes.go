package checkpoint

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Wishes are what operators want of a link, whatever process runs it, and
// wherever. They are kept in the metadata (collection wishes) and read every few
// seconds by who runs the link.
type Wishes struct {
	// BytesPerSecond and OpsPerSecond bound the copy; 0 is no bound, negative is
	// nothing said: what the process was started with counts.
	BytesPerSecond, OpsPerSecond int64
	// Resync are the collections, by the source's names, that are to be copied
	// again, with when that was asked for.
	Resync []ResyncWish
}

// ResyncWish is one collection to be copied again.
type ResyncWish struct {
	NS    oplog.Namespace
	Asked time.Time
	// State is what became of it, for who asked: "asked", "copying",
	// "joining", "done" or "failed", with the reason of the latter.
	State, Why string
}

// ReadWishes reads what is wanted of the link.
func (s *Store) ReadWishes(ctx context.Context) (Wishes, error) { panic("not written yet") }

// WishLimits sets the limits; negative removes what was wished.
func (s *Store) WishLimits(ctx context.Context, bytesPerSecond, opsPerSecond int64) error {
	panic("not written yet")
}

// WishResync asks for a collection to be copied again. A wish for it that is not
// done or failed stays as it is.
func (s *Store) WishResync(ctx context.Context, ns oplog.Namespace) error { panic("not written yet") }

// TellResync says what became of the wish.
func (s *Store) TellResync(ctx context.Context, ns oplog.Namespace, state, why string) error {
	panic("not written yet")
}
