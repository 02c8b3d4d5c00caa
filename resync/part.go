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

// Part is a collection that is copied again, by a link of its own.
type Part struct {
	// NS is the collection, by the source's name.
	NS oplog.Namespace
	// Link is the name of the part's link.
	Link string
	// Until, if not null, is the entry up to which the part is to apply the oplog. Its
	// run ends there.
	Until oplog.OpTime
}

// Runner copies a part and applies the oplog to it, from where its link is.
type Runner interface {
	// Run runs until soft is done and everything read is applied, or until Part.Until
	// is (nil). It returns an error that wraps ErrInterrupted if the part can continue
	// from where it is, ErrRestart if it has to be copied from the beginning,
	// lease.ErrFenced if another process runs it, and any other error if the
	// collection cannot be copied.
	Run(ctx, soft context.Context) error
	// Status returns what it does now. It is called while Run runs.
	Status() Status
}

// Status is what a Runner does.
type Status struct {
	// Text is the progress, for operators.
	Text string
	// Consistent reports that the collection is as the source's was at Applied, and
	// that the oplog no longer comes from the spool.
	Consistent bool
	// Steady reports that everything that the source has committed is applied.
	Steady  bool
	Applied oplog.OpTime
}

var (
	// ErrInterrupted is a part that ended before everything read was applied.
	ErrInterrupted = errors.New("the copy of the collection was interrupted")
	// ErrRestart is a collection that was replaced by another one while it was copied.
	ErrRestart = errors.New("the collection was replaced")
)

// namePrefix is what the names of parts begin with.
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
	// done is closed once err is what Run returned.
	done chan struct{}
	err  error
}

// newRun makes the run of the part that serves a request.
func (m *Manager) newRun(req request.Resync) (*run, error) {
	r := &run{part: Part{NS: req.NS, Link: m.partName(req)}, asked: req.Asked, done: make(chan struct{})}
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

// ready reports whether the part can be merged into a link that is at applied, or has
// ended.
func (r *run) ready(applied oplog.OpTime) bool {
	select {
	case <-r.done:
		return true
	default:
	}
	s := r.runner.Status()
	return s.Consistent && (s.Steady || !s.Applied.Before(applied))
}
