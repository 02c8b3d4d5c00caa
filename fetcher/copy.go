package fetcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Copy is for an oplog that an unfinished copy needs: another copy can be made if the
// oplog is lost.
type Copy struct {
	// Wait is how long there may be no member to read from: after it Run returns ErrLogLost.
	Wait time.Duration
	// Check returns an error, which ends Run, if entries must not be sent. It may wait until that
	// is known.
	Check func(ctx context.Context, entries []oplog.Entry) error
}

// Copied makes f read on like after a copy, which is complete.
func (f *Fetcher) Copied() { f.copied.Store(true) }

// ErrLogLost reports that no member has the oplog after the position.
var ErrLogLost = errors.New("the source's oplog no longer has the entries that the copy needs")

// copying returns Config.Copy until the copy is complete, then nil.
func (f *Fetcher) copying() *Copy {
	if f.copied.Load() {
		return nil
	}
	return f.cfg.Copy
}

// away is called with an error when there is no member to read from, and returns it as
// ErrLogLost if that has lasted too long for a copy.
func (f *Fetcher) away(err error) error {
	c := f.copying()
	if f.noMemberSince.IsZero() {
		f.noMemberSince = time.Now()
	}
	if lasted := time.Since(f.noMemberSince); c != nil && lasted > c.Wait {
		return fmt.Errorf("%w: no member could be read for %s: %w", ErrLogLost, lasted.Round(time.Second), err)
	}
	return nil
}

// final returns an error that says that no member will have the position.
func (f *Fetcher) final(err error) error {
	if f.copying() != nil {
		return fmt.Errorf("%w: %w", ErrLogLost, err)
	}
	return err
}
