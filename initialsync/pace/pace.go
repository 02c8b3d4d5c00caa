// Package pace slows a copy down: to limits that an operator sets, and when one of
// the clusters shows that it has enough to do.
package pace

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
)

// Config says how fast a copy may be.
type Config struct {
	// BytesPerSecond and OpsPerSecond are limits, 0 for none. SetLimits changes
	// them.
	BytesPerSecond, OpsPerSecond int64
	// Source and Target are asked (serverStatus) for signs of pressure. Nil is not
	// asked.
	Source, Target call.Caller
	// Every is how often they are asked. Zero means 2 s.
	Every    time.Duration
	Observer event.Observer
	Registry prometheus.Registerer
}

// Pacer implements clone.Pacer.
type Pacer struct{}

var _ clone.Pacer = (*Pacer)(nil)

// New checks cfg. It does no I/O.
func New(cfg Config) (*Pacer, error) { panic("not written yet") }

// Run watches both sides until ctx is done, and returns its cause.
func (p *Pacer) Run(ctx context.Context) error { panic("not written yet") }

// SetLimits changes the limits, at once; 0 is none.
func (p *Pacer) SetLimits(bytesPerSecond, opsPerSecond int64) { panic("not written yet") }

// Wait implements clone.Pacer.
func (p *Pacer) Wait(ctx context.Context, docs, bytes int) error { panic("not written yet") }

// Took implements clone.Pacer.
func (p *Pacer) Took(side clone.Side, d time.Duration, docs, bytes int) { panic("not written yet") }

// Status is what slows the copy down.
type Status struct {
	BytesPerSecond, OpsPerSecond int64
	// Factor is the part of its speed that the copy has at present, 1 for all of
	// it; Side and Why say why it is less.
	Factor float64
	Side   clone.Side
	Why    string
}

// Status returns the state of the moment.
func (p *Pacer) Status() Status { panic("not written yet") }
