package resync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Part is a collection that is copied again by a link of its own.
type Part struct {
	// NS is the collection, by the source's name.
	NS oplog.Namespace
	// Link is the name of the part's link.
	Link string
	// Asked is when that was requested.
	Asked time.Time
	// Since, if not null, is the entry for which the collection has to be copied. A copy that begins before that meets it again,
	// and starts over.
	Since oplog.OpTime
	// Until, if not null, is the entry up to which the part applies the oplog. Its run
	// ends there.
	Until oplog.OpTime
}

// Runner copies a part and applies the oplog to it, from the position of its link.
type Runner interface {
	// Run runs until soft is done and everything read is applied, or until Part.Until
	// is applied, and returns nil then; entries on disk need not be applied. Neither waits for an
	// index build. It returns an error that wraps ErrInterrupted if the part can continue from its
	// position, ErrRestart if it has to be copied from the beginning, lease.ErrFenced if another
	// process runs it, and any other error if the collection cannot be copied.
	Run(ctx, soft context.Context) error
	// Status returns the current status. It is called while Run runs.
	Status() Status
}

// Status is the status of a Runner.
type Status struct {
	// Text is the progress, for operators.
	Text string
	// Consistent reports that the collection equals the source's at Applied.
	Consistent bool
	// Steady reports that all majority-committed entries of the source are applied.
	Steady  bool
	Applied oplog.OpTime
	// KeptBack reports that the collection waits for an index build.
	KeptBack bool
}

var (
	// ErrInterrupted reports that a part ended before everything read was applied.
	ErrInterrupted = errors.New("the copy of the collection was interrupted")
	// ErrRestart reports that the collection was replaced while it was copied, or that the oplog
	// from the part's position on is gone.
	ErrRestart = errors.New("its copy cannot be continued")
	// ErrLeavesOut reports a link that leaves collections out, which were being copied again.
	ErrLeavesOut = errors.New("collections are being copied again, and are not as they should be")
)

// ReplacedError is an ErrRestart for a collection that an entry of the oplog replaced.
type ReplacedError struct {
	At  oplog.OpTime
	Err error
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("%v: the collection was replaced: %v", ErrRestart, e.Err)
}

// Unwrap returns ErrRestart and the error of the entry.
func (e *ReplacedError) Unwrap() []error { return []error{ErrRestart, e.Err} }

// namePrefix is the prefix of the names of parts.
const namePrefix = "resync-"

// IsPart reports whether link is the name of a part.
func IsPart(link string) bool {
	return strings.HasPrefix(link, namePrefix) && len(link) == len(namePrefix)+16
}

// partName returns the name of the link that serves a request.
func (m *Manager) partName(req request.Resync) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", m.cfg.Link, req.NS, req.Asked.UTC().Format(time.RFC3339Nano), m.copies))
	return namePrefix + hex.EncodeToString(sum[:8])
}

// run is one run of a part.
type run struct {
	part   Part
	asked  time.Time
	runner Runner
	drain  context.CancelCauseFunc
	// done is closed once err has the result of Run.
	done chan struct{}
	err  error
}

// newRun makes the run of the part that serves a request.
func (m *Manager) newRun(req request.Resync) (*run, error) {
	r := &run{part: Part{NS: req.NS, Link: m.partName(req), Asked: req.Asked, Since: m.since[req.NS]}, asked: req.Asked, done: make(chan struct{})}
	var err error
	if r.runner, err = m.cfg.Runner(r.part); err != nil {
		return nil, fmt.Errorf("copy %s again: %w", req.NS, err)
	}
	return r, nil
}

// stop drains the part and waits until it has ended.
func (r *run) stop(ctx context.Context) error {
	r.drain(nil)
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ready reports whether the part can be merged into a link that is at this position, or has
// ended. Neither can advance to the other's position while one of them waits for an index build.
func (r *run) ready(at Position) bool {
	select {
	case <-r.done:
		return true
	default:
	}
	if at.KeptBack {
		return false
	}
	s := r.runner.Status()
	return s.hasCaughtUp(at) && !s.isTooFar(at)
}

// hasCaughtUp reports whether a part has everything that a link at this position has.
func (s *Status) hasCaughtUp(at Position) bool {
	return s.Consistent && !s.KeptBack && (s.Steady || !s.Applied.Before(at.Applied))
}

// isTooFar reports whether a part is farther ahead of a link that reads its spool than it may
// be. A link that does not keep up for ever never leaves its spool, and a part is merged
// nevertheless: the link has only to get as far as the part is when that is stopped.
func (s *Status) isTooFar(at Position) bool { return at.Spooled && s.lead(at) > at.mostLead() }

// minLead is how far a part may be ahead of a link that reads its spool, even if the source's
// oplog is short, or its length is not known. Were the merge given up, the part would read on from there.
const minLead = 10 * time.Minute

// mostLead returns how far a part may be ahead of a link at this position that reads its spool.
func (at Position) mostLead() time.Duration { return max(minLead, at.Kept/4) }

// lead returns how far a part is ahead of a link, by the source's clock.
func (s *Status) lead(at Position) time.Duration {
	return time.Duration(int64(s.Applied.TS.T)-int64(at.Applied.TS.T)) * time.Second
}

// progress returns the progress of the part, for operators.
func (r *run) progress(at Position) string {
	s := r.runner.Status()
	if s.hasCaughtUp(at) && s.isTooFar(at) {
		return fmt.Sprintf("copied, and ahead of the link, which applies what it has on disk: merged once the link is within %s of it", at.mostLead())
	}
	return s.Text
}
